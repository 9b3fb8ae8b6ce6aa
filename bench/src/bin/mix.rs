//! A mix of operations of several clients, replayed from a seed, beside the same operations over
//! Unix sockets in the same run.

use anyhow::{Context, Result};
use bench::devices::{self, DeviceArguments};
use bench::measure::Summary;
use bench::mix::{self, Clients, KINDS, Replay};
use bench::progress::Progress;
use bench::results::Key;
use bench::{affinity, peer, report};
use clap::Parser;

const BENCH: &str = "mix";
const SOCKETS: &str = "seqpacket";

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
    if let Some(arguments) = peer::arguments() {
        return mix::play(&arguments);
    }
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.passes, arguments.operations) = (3, 100);
    }
    run(&arguments)
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    if !affinity::be_eager() {
        eprintln!("not allowed to raise the priority: other work on the machine will disturb");
    }
    let count = arguments.clients.into();
    let devices = arguments.devices.open(None)?;
    let mut subjects = vec![Clients::over_sockets(SOCKETS, count).context(SOCKETS)?];
    for device in &devices {
        let clients = Clients::over_binder(device, count);
        subjects.push(clients.with_context(|| device.name.clone())?);
    }
    let mut replays: Vec<Vec<Replay>> = subjects.iter().map(|_| Vec::new()).collect();
    let mut progress = Progress::new(BENCH, arguments.passes as usize);
    let operations = arguments.operations as usize;
    for subject in &mut subjects {
        // Warms up, and is discarded.
        subject.replay(arguments.seed, operations)?;
    }
    for pass in 1..=arguments.passes {
        progress.step(&format!("pass {pass}"));
        for (subject, replays) in subjects.iter_mut().zip(&mut replays) {
            let replay = subject.replay(arguments.seed, operations);
            replays.push(replay.with_context(|| subject.name().to_owned())?);
        }
    }
    drop(progress);
    print_rates(arguments, &subjects, &replays);
    print_times(&subjects, &replays);
    drop(subjects);
    devices::close(devices)
}

fn print_rates(arguments: &Arguments, subjects: &[Clients], replays: &[Vec<Replay>]) {
    let [sockets, ..] = replays else { return };
    let case = format!("{} clients, seed {}", arguments.clients, arguments.seed);
    eprintln!(
        "{:<24} {:>26}  {:>20}  {:>20}",
        case, "operations/s (quartiles)", "over seqpacket", "daemon CPU, us each"
    );
    for (subject, replays) in subjects.iter().zip(replays) {
        let name = subject.name();
        let rates: Vec<f64> = replays.iter().map(Replay::per_second).collect();
        let shares: Vec<f64> = match name {
            SOCKETS => Vec::new(),
            _ => rates.iter().zip(sockets).map(|(rate, base)| rate / base.per_second()).collect(),
        };
        let each_us = |replay: &Replay| {
            replay.daemon_cpu_ns.map(|ns| ns as f64 / 1000.0 / replay.count() as f64)
        };
        let daemon: Vec<f64> = replays.iter().filter_map(each_us).collect();
        let [rates, shares, daemon] = [
            ("calls_per_s", "calls/s", rates, 0),
            ("rate_over_seqpacket", "ratio", shares, 3),
            ("daemon_cpu_us", "us", daemon, 2),
        ]
        .map(|(metric, unit, values, decimals)| {
            let key = Key { bench: BENCH, case: &case, subject: name, metric };
            report::quartiles(key, unit, &values, decimals)
        });
        eprintln!("{name:<24} {rates:>26}  {shares:>20}  {daemon:>20}");
    }
}

/// Prints the times of each kind of operation.
fn print_times(subjects: &[Clients], replays: &[Vec<Replay>]) {
    report::round_trips_head(SOCKETS);
    for (kind, _) in KINDS {
        let of_subject = |(subject, replays): (&Clients, &Vec<Replay>)| {
            let blocks: Vec<Vec<u64>> = replays.iter().map(|replay| replay.of(kind)).collect();
            (subject.name().to_owned(), Summary::of_blocks(&blocks))
        };
        let found: Vec<(String, Summary)> = subjects.iter().zip(replays).map(of_subject).collect();
        let results: Vec<(&str, Summary)> =
            found.iter().map(|(name, summary)| (name.as_str(), summary.clone())).collect();
        report::round_trips(BENCH, kind.name(), (SOCKETS, "over_seqpacket"), &results);
    }
}
