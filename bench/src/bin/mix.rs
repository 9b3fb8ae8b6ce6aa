//! A mix of operations of several clients, replayed from a seed, beside the same operations over
//! Unix sockets in the same run.

use anyhow::Result;
use bench::callers::Callers;
use bench::devices::{self, DeviceArguments};
use bench::measure::{Summary, alternate};
use bench::mix::{self, KINDS, Replay};
use bench::{affinity, peer, report};
use clap::Parser;

const BENCH: &str = "mix";
/// Seed of the first client's operations; each further client has the next one.
const SEED: u64 = 1;
const CLIENTS: usize = 4;

/// Replays calls of several sizes, one-way calls, nested calls, descriptors and pings of several
/// clients at once.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// Short: 3 passes of 100 operations.
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    peer::serve(mix::play).unwrap_or_else(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    affinity::be_eager();
    // Turns of each subject, and operations of each client in a turn.
    let (passes, operations) = if arguments.quick { (3, 100) } else { (9, 1000) };
    let devices = arguments.devices.open(None)?;
    let mut subjects = vec![Callers::over_sockets("seqpacket", CLIENTS)?];
    for device in &devices {
        subjects.push(Callers::over_binder(device, CLIENTS)?);
    }
    let replays =
        alternate(&mut subjects, passes, |clients| mix::replay(clients, SEED, operations))?;
    let rates = subjects.iter().zip(&replays).map(|(subject, replays)| {
        let rates = replays.iter().map(Replay::per_second).collect();
        (subject.name.as_str(), rates, replays.iter().filter_map(Replay::daemon_cpu_us).collect())
    });
    let case = format!("{CLIENTS} clients, seed {SEED}");
    report::rates(BENCH, &case, &rates.collect::<Vec<_>>());
    for (kind, _) in KINDS {
        let times = subjects.iter().zip(&replays).map(|(subject, replays)| {
            let blocks: Vec<Vec<u64>> = replays.iter().map(|replay| replay.of(kind)).collect();
            (subject.name.as_str(), Summary::of_blocks(&blocks))
        });
        report::round_trips(BENCH, kind.name(), &times.collect::<Vec<_>>());
    }
    drop(subjects);
    devices::close(devices)
}
