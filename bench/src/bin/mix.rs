//! A mix of operations of several clients, replayed from a seed, beside the same operations over
//! Unix sockets in the same run.

use anyhow::{Context, Result};
use bench::devices::{self, DeviceArguments};
use bench::measure::{Summary, alternate};
use bench::mix::{self, Clients, KINDS, Replay};
use bench::{affinity, peer, report};
use clap::Parser;

const BENCH: &str = "mix";

/// Replays calls of several sizes, one-way calls, nested calls, descriptors and pings of several
/// clients at once.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// Seed of the first client's operations; each further client has the next one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Clients.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Operations of each client in a turn.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,
    /// Turns of each subject.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Short: 3 passes of 100 operations.
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    peer::serve(mix::play).unwrap_or_else(|| {
        let mut arguments = Arguments::parse();
        if arguments.quick {
            (arguments.passes, arguments.operations) = (3, 100);
        }
        run(&arguments)
    })
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    affinity::be_eager();
    let count = arguments.clients.into();
    let devices = arguments.devices.open(None)?;
    let mut subjects = vec![Clients::over_sockets("seqpacket", count)?];
    for device in &devices {
        let clients = Clients::over_binder(device, count);
        subjects.push(clients.with_context(|| device.name.clone())?);
    }
    let replays = alternate(&mut subjects, arguments.passes as usize, |subject| {
        let replay = subject.replay(arguments.seed, arguments.operations as usize);
        replay.with_context(|| subject.name().to_owned())
    })?;
    let rates = subjects.iter().zip(&replays).map(|(subject, replays)| {
        let rates = replays.iter().map(Replay::per_second).collect();
        (subject.name(), rates, replays.iter().filter_map(Replay::daemon_cpu_us).collect())
    });
    let case = format!("{} clients, seed {}", arguments.clients, arguments.seed);
    report::rates(BENCH, &case, &rates.collect::<Vec<_>>());
    for (kind, _) in KINDS {
        let times = subjects.iter().zip(&replays).map(|(subject, replays)| {
            let blocks: Vec<Vec<u64>> = replays.iter().map(|replay| replay.of(kind)).collect();
            (subject.name(), Summary::of_blocks(&blocks))
        });
        report::round_trips(BENCH, kind.name(), &times.collect::<Vec<_>>());
    }
    drop(subjects);
    devices::close(devices)
}
