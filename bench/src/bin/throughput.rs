//! Calls per second of 1 to 16 pairs of a client and a server, with idle and with busy handlers,
//! beside as many pairs over Unix sockets in the same run; and the CPU time of the daemon per call.

use std::time::Duration;

use anyhow::{Context, Result};
use bench::devices::{self, DeviceArguments};
use bench::measure::alternate;
use bench::throughput::{self, Load, Pairs};
use bench::{affinity, peer, report};
use clap::Parser;

/// Counts the calls per second of several pairs of a client and a server at once.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// Numbers of pairs.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,4,8,16",
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pairs: Vec<u16>,
    /// CPU time of a busy handler per call, microseconds.
    #[arg(long, default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..))]
    busy_us: u32,
    /// Turns of each subject.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Duration of a turn, milliseconds.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    period_ms: u64,
    /// Short: 1 and 2 pairs, 3 passes of 100 ms.
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    peer::serve(throughput::play).unwrap_or_else(|| {
        let mut arguments = Arguments::parse();
        if arguments.quick {
            (arguments.pairs, arguments.passes, arguments.period_ms) = (vec![1, 2], 3, 100);
        }
        run(&arguments)
    })
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    affinity::be_eager();
    let most = arguments.pairs.iter().copied().max().context("--pairs: no number")?;
    let devices = arguments.devices.open(None)?;
    let mut subjects = vec![Pairs::over_sockets("seqpacket", most.into())?];
    for device in &devices {
        let pairs = Pairs::over_binder(device, most.into());
        subjects.push(pairs.with_context(|| device.name.clone())?);
    }
    for (handlers, handler_us) in [("idle handlers", 0), ("busy handlers", arguments.busy_us)] {
        for &pairs in &arguments.pairs {
            let case = format!("{}, {handlers}", report::number(pairs.into(), "pair", "pairs"));
            let period = Duration::from_millis(arguments.period_ms);
            let load = Load { pairs: pairs.into(), handler_us, period };
            let rates =
                alternate(&mut subjects, arguments.passes as usize, |pairs| pairs.measure(load))?;
            let results = subjects.iter().zip(&rates).map(|(subject, rates)| {
                let calls = rates.iter().map(|rate| rate.calls_per_s).collect();
                let daemon_us = rates.iter().filter_map(|rate| rate.daemon_cpu_us).collect();
                (subject.name(), calls, daemon_us)
            });
            report::rates("throughput", &case, &results.collect::<Vec<_>>());
        }
    }
    drop(subjects);
    devices::close(devices)
}
