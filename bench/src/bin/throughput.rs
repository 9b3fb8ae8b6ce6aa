//! Calls per second of 1 to 16 pairs of a client and a server, with idle and with busy handlers,
//! beside as many pairs over Unix sockets in the same run; and the CPU time of the daemon per call.

use std::time::Duration;

use anyhow::Result;
use bench::callers::Callers;
use bench::devices::{self, DeviceArguments};
use bench::measure::alternate;
use bench::throughput::{self, Load};
use bench::{affinity, peer, report};
use clap::Parser;

/// Numbers of pairs.
const PAIRS: [usize; 5] = [1, 2, 4, 8, 16];
/// CPU time of a busy handler per call, microseconds.
const BUSY_US: u32 = 75;

/// Counts the calls per second of several pairs of a client and a server at once.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// Short: 1 and 2 pairs, 3 passes of 100 ms.
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    peer::serve(throughput::play).unwrap_or_else(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    affinity::be_eager();
    // Turns of each subject, and their duration.
    let (numbers, passes, period_ms) =
        if arguments.quick { (&PAIRS[..2], 3, 100) } else { (&PAIRS[..], 9, 300) };
    let most = numbers.iter().copied().max().unwrap_or(0);
    let devices = arguments.devices.open(None)?;
    let mut subjects = vec![Callers::over_sockets("seqpacket", most)?];
    for device in &devices {
        subjects.push(throughput::over_binder(device, most)?);
    }
    for (handlers, handler_us) in [("idle handlers", 0), ("busy handlers", BUSY_US)] {
        for &pairs in numbers {
            let case = format!("{}, {handlers}", report::number(pairs as u64, "pair", "pairs"));
            let load = Load { pairs, handler_us, period: Duration::from_millis(period_ms) };
            let rates = alternate(&mut subjects, passes, |pairs| throughput::measure(pairs, load))?;
            let results = subjects.iter().zip(&rates).map(|(subject, rates)| {
                let calls = rates.iter().map(|rate| rate.calls_per_s).collect();
                let daemon_us = rates.iter().filter_map(|rate| rate.daemon_cpu_us).collect();
                (subject.name.as_str(), calls, daemon_us)
            });
            report::rates("throughput", &case, &results.collect::<Vec<_>>());
        }
    }
    drop(subjects);
    devices::close(devices)
}
