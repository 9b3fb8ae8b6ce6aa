//! Cost of a handle when many are in use: a new node is sent with every call and kept by the
//! server. The baseline is the walk over an ordered map by which free handles used to be found.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};
use bench::devices::{self, Device, DeviceArguments};
use bench::measure::Summary;
use bench::naive::NaiveTable;
use bench::peer::{self, Peer};
use bench::progress::Progress;
use bench::results::{Key, Measurement, Value, print_estimate};
use bench::stash::{self, Sender};
use bench::statistics::{estimate, quartiles};
use bench::{affinity, machine};
use binder_client::{Client, Options};
use clap::Parser;

const BENCH: &str = "handles";
const NAIVE: &str = "naive-walk";

/// Times calls that each carry a new node, per range of handles in use.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// The core of all processes.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Number of nodes: at most 2,000,000, the quota of a process in headroom-binderd.
    #[arg(
        long,
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(2..=2_000_000)
    )]
    up_to: u32,
    /// Nodes in a range.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    range: u32,
    /// Repetitions, each with fresh processes.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Timed walks in each range; other handles are inserted without a walk.
    #[arg(long, default_value_t = 100)]
    naive_samples: u32,
    /// Stop when less memory than this is available, MiB.
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
}

fn main() -> Result<()> {
    if let Some(arguments) = peer::arguments()
        && let [device] = &arguments[..]
    {
        return stash::serve(device);
    }
    run(&Arguments::parse())
}

/// Blocks of one subject: by range, then by round.
type Samples = Vec<Vec<Vec<u64>>>;

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    let ranges = ranges(arguments.up_to, arguments.range);
    affinity::pin(arguments.cpu)?;
    if !affinity::be_eager() {
        eprintln!("not allowed to raise the priority: other work on the core will disturb");
    }
    let devices = arguments.devices.open(Some(arguments.cpu))?;
    let mut samples: Vec<Samples> = vec![vec![Vec::new(); ranges.len()]; devices.len() + 1];
    let mut progress = Progress::new(BENCH, arguments.rounds as usize * ranges.len());
    for round in 1..=arguments.rounds {
        one_round(arguments, &ranges, &devices, &mut samples, &mut |range| {
            progress.step(&format!("round {round}, {range}"));
        })?;
    }
    drop(progress);
    let names = devices.iter().map(|device| device.name.as_str()).chain([NAIVE]);
    let results: Vec<(&str, Samples)> = names.zip(samples).collect();
    print_results(&ranges, &results);
    devices::close(devices)
}

/// First and last (exclusive) node of each range.
fn ranges(up_to: u32, range: u32) -> Vec<(u32, u32)> {
    (0..up_to).step_by(range as usize).map(|first| (first, up_to.min(first + range))).collect()
}

fn case(range: (u32, u32)) -> String {
    format!("{}-{}", range.0, range.1)
}

/// All subjects fill their tables from empty, alternating by range, in new processes.
fn one_round(
    arguments: &Arguments,
    ranges: &[(u32, u32)],
    devices: &[Device],
    samples: &mut [Samples],
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for device in devices {
        let server = Peer::start(&[device.path_text()?], Stdio::null(), Stdio::null());
        servers.push(server.with_context(|| device.name.clone())?);
        clients.push(Client::open(&device.path, &Options::default())?);
    }
    let mut senders: Vec<Sender> = clients.iter().map(Sender::new).collect();
    let mut table = NaiveTable::default();
    for (at, range) in ranges.iter().enumerate() {
        progress(&case(*range));
        let available = machine::available_mib()?;
        anyhow::ensure!(
            available > arguments.keep_free_mib,
            "stopped at {} handles: {available} MiB of memory are left, and --keep-free-mib is {}",
            range.0,
            arguments.keep_free_mib
        );
        for ((device, sender), samples) in devices.iter().zip(&mut senders).zip(&mut *samples) {
            let block = (range.0..range.1).map(|_| sender.send_new()).collect::<Result<_>>();
            samples[at].push(block.with_context(|| device.name.clone())?);
        }
        if let Some(naive) = samples.last_mut() {
            naive[at].push(walk(&mut table, *range, arguments.naive_samples)?);
        }
    }
    Ok(())
}

/// Fills a range of the table, timing some of the walks.
fn walk(table: &mut NaiveTable, (first, last): (u32, u32), timed: u32) -> Result<Vec<u64>> {
    let every = ((last - first) / timed.max(1)).max(1);
    let mut times = Vec::new();
    for handle in first + 1..=last {
        if timed > 0 && (handle - first).is_multiple_of(every) {
            let start = Instant::now();
            let found = table.allocate(handle.into());
            times.push(start.elapsed().as_nanos() as u64);
            anyhow::ensure!(found == handle, "the walk found {found}, {handle} is free");
        } else {
            table.insert(handle, handle.into());
        }
    }
    Ok(times)
}

fn print_results(ranges: &[(u32, u32)], results: &[(&str, Samples)]) {
    eprintln!(
        "{:<16} {:<24} {:>10} {:>10} {:>10}  {:>17}",
        "handles in use", "us a new handle", "p50", "p99", "max", "rounds' quartiles"
    );
    for (name, samples) in results {
        let naive = *name == NAIVE;
        let [p50, p99] = if naive {
            ["allocation_us_p50", "allocation_us_p99"]
        } else {
            ["rtt_us_p50", "rtt_us_p99"]
        };
        for (range, rounds) in ranges.iter().zip(samples) {
            let s = Summary::of_blocks(rounds);
            if s.runs == 0 {
                continue;
            }
            let case = case(*range);
            let [low, _, high] = quartiles(&s.block_medians).unwrap_or_default();
            let spread = format!("{low:.2}-{high:.2}");
            eprintln!(
                "{case:<16} {name:<24} {:>10.2} {:>10.2} {:>10.1}  {spread:>17}",
                s.p50, s.p99, s.max
            );
            Measurement::new(
                Key { bench: BENCH, case: &case, subject: name, metric: p50 },
                Value { value: s.p50, unit: "us", runs: s.runs },
            )
            .print();
            Measurement::new(
                Key { bench: BENCH, case: &case, subject: name, metric: p99 },
                Value { value: s.p99, unit: "us", runs: s.runs },
            )
            .print();
        }
    }
    for (name, samples) in results {
        let [Some(first), Some(last)] = [samples.first(), samples.last()] else { continue };
        let median = |block: &Vec<u64>| Summary::of_blocks(std::slice::from_ref(block)).p50;
        let ratios: Vec<f64> = first
            .iter()
            .zip(last)
            .map(|(first, last)| median(last) / median(first))
            .filter(|ratio| ratio.is_finite())
            .collect();
        let Some(e) = estimate(&ratios) else { continue };
        eprintln!(
            "{name:<24} last range over first: {:.3} ({:.3} to {:.3} in {} rounds)",
            e.median, e.low, e.high, e.runs
        );
        let case = ranges.last().map_or(String::new(), |last| format!("0-{}", last.1));
        let metric = "last_over_first";
        print_estimate(Key { bench: BENCH, case: &case, subject: name, metric }, "ratio", &e);
    }
}
