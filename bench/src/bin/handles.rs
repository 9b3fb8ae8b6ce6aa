//! Cost of a handle when many are in use: a new node is sent with every call and kept by the
//! server. The baseline is the walk over an ordered map by which free handles used to be found.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};
use bench::devices::{self, Device, DeviceArguments};
use bench::measure::Summary;
use bench::peer::{self, Peer};
use bench::results::Row;
use bench::stash::{self, Sender};
use bench::statistics::estimate;
use bench::{affinity, machine};
use binder_client::{Client, Options};
use clap::Parser;

const BENCH: &str = "handles";
const NAIVE: &str = "naive-walk";
/// Nodes in a range.
const RANGE: u32 = 10_000;

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
    let peer = peer::serve(|words| match words {
        [device] => stash::serve(device),
        _ => anyhow::bail!("no such peer: {words:?}"),
    });
    peer.unwrap_or_else(|| run(&Arguments::parse()))
}

/// Blocks of one subject: by range, then by round.
type Samples = Vec<Vec<Vec<u64>>>;

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    let ranges = ranges(arguments.up_to);
    affinity::pin(arguments.cpu)?;
    affinity::be_eager();
    let devices = arguments.devices.open(Some(arguments.cpu))?;
    let mut samples: Vec<Samples> = vec![vec![Vec::new(); ranges.len()]; devices.len() + 1];
    for _ in 0..arguments.rounds {
        one_round(arguments, &ranges, &devices, &mut samples)?;
    }
    let names = devices.iter().map(|device| device.name.as_str()).chain([NAIVE]);
    for (name, samples) in names.zip(&samples) {
        print_results(&ranges, name, samples);
    }
    devices::close(devices)
}

/// First and last (exclusive) node of each range.
fn ranges(up_to: u32) -> Vec<(u32, u32)> {
    (0..up_to).step_by(RANGE as usize).map(|first| (first, up_to.min(first + RANGE))).collect()
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
) -> Result<()> {
    let mut servers = Vec::new();
    let mut clients = Vec::new();
    for device in devices {
        let server = Peer::start(&[device.path_text()?], Stdio::null(), Stdio::null());
        servers.push(server.with_context(|| device.name.clone())?);
        clients.push(Client::open(&device.path, &Options::default())?);
    }
    let mut senders: Vec<Sender> = clients.iter().map(Sender::new).collect();
    let mut table = BTreeSet::new();
    for (at, range) in ranges.iter().enumerate() {
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

/// Fills a range of the table, in some cases by a walk from the lowest handle to the first free
/// one, which is timed: the way in which drivers found it before they had a bitmap.
fn walk(table: &mut BTreeSet<u32>, (first, last): (u32, u32), timed: u32) -> Result<Vec<u64>> {
    let every = ((last - first) / timed.max(1)).max(1);
    let mut times = Vec::new();
    for handle in first + 1..=last {
        if timed > 0 && (handle - first).is_multiple_of(every) {
            let start = Instant::now();
            let found = (1..).zip(&*table).take_while(|(free, used)| free == *used).count() + 1;
            table.insert(found as u32);
            times.push(start.elapsed().as_nanos() as u64);
            anyhow::ensure!(found as u32 == handle, "the walk found {found}, {handle} is free");
        } else {
            table.insert(handle);
        }
    }
    Ok(times)
}

fn print_results(ranges: &[(u32, u32)], name: &str, samples: &Samples) {
    let time = if name == NAIVE { "allocation_us" } else { "rtt_us" };
    for (range, rounds) in ranges.iter().zip(samples) {
        let s = Summary::of_blocks(rounds);
        if s.runs > 0 {
            let case = case(*range);
            let mut row = Row::new(BENCH, &case, name, s.runs);
            row.value(&format!("{time}_p50"), s.p50, "us");
            row.value(&format!("{time}_p99"), s.p99, "us");
        }
    }
    let (Some(first), Some(last), Some(range)) = (samples.first(), samples.last(), ranges.last())
    else {
        return;
    };
    let ratios = Summary::of_blocks(last).over(&Summary::of_blocks(first));
    let ratios: Vec<f64> = ratios.into_iter().filter(|ratio| ratio.is_finite()).collect();
    if let Some(ratio) = estimate(&ratios) {
        let case = format!("0-{}", range.1);
        let mut row = Row::new(BENCH, &case, name, ratio.runs);
        row.estimate("last_over_first", &ratio, "ratio");
    }
}
