//! A call that carries file descriptors over the same call without any, and over `SCM_RIGHTS` on a
//! Unix socket in the same run.

use anyhow::Result;
use bench::callers::Callers;
use bench::devices::{self, Device};
use bench::measure::{Summary, alternate};
use bench::passing;
use bench::results::Row;
use bench::{affinity, peer, report, rings};
use clap::Parser;
use e2e::Mapping;

const BENCH: &str = "descriptors";
/// Descriptors per call.
const DESCRIPTORS: [usize; 2] = [1, 8];

/// Times calls with and without file descriptors, beside a Unix socket.
#[derive(Parser)]
struct Arguments {
    /// The core of all processes.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Bind no process to a core: the scheduler decides.
    #[arg(long, conflicts_with = "cpu")]
    free: bool,
    /// Measure a daemon that accepts rings too: its receivers fetch the files over a socket.
    #[arg(long)]
    ring: bool,
    /// Turns of each subject.
    #[arg(long, default_value_t = 20)]
    blocks: usize,
    /// Calls in a turn.
    #[arg(long, default_value_t = 200)]
    block: usize,
}

fn main() -> Result<()> {
    peer::serve(passing::play).unwrap_or_else(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    if arguments.ring {
        rings::preload()?;
    }
    let core = (!arguments.free).then_some(arguments.cpu);
    core.map_or(Ok(()), affinity::pin)?;
    affinity::be_eager();
    let mut pairs = vec![Callers::over_sockets("seqpacket, SCM_RIGHTS", 1)?];
    let mut devices = Vec::new();
    let subjects = [("headroom, ptrace", &[][..]), ("headroom, ring", rings::ACCEPTED)];
    for (name, options) in subjects.into_iter().take(1 + usize::from(arguments.ring)) {
        if let Some(device) = Device::start(name, Mapping::Auto, options, core)? {
            pairs.push(Callers::over_binder(&device, 1)?);
            devices.push(device);
        }
    }
    let plain = measure(&mut pairs, 0, arguments)?;
    for count in DESCRIPTORS {
        let with = measure(&mut pairs, count, arguments)?;
        for ((pair, with), without) in pairs.iter().zip(&with).zip(&plain) {
            let each = (with.p50 - without.p50) / count as f64;
            let case = case(count, arguments);
            Row::new(BENCH, &case, &pair.name, with.runs).value("descriptor_us", each, "us");
        }
    }
    drop(pairs);
    devices::close(devices)
}

fn case(count: usize, arguments: &Arguments) -> String {
    let any_core = if arguments.free { ", any core" } else { "" };
    match count {
        0 => format!("no descriptor{any_core}"),
        _ => report::number(count as u64, "descriptor", "descriptors") + any_core,
    }
}

/// Measures all pairs alternately.
fn measure(pairs: &mut [Callers], count: usize, arguments: &Arguments) -> Result<Vec<Summary>> {
    let blocks = alternate(pairs, arguments.blocks, |pair| pair.calls(arguments.block, count))?;
    let found: Vec<Summary> = blocks.iter().map(|blocks| Summary::of_blocks(blocks)).collect();
    let results: Vec<_> =
        pairs.iter().map(|pair| pair.name.as_str()).zip(found.iter().cloned()).collect();
    report::round_trips(BENCH, &case(count, arguments), &results);
    Ok(found)
}
