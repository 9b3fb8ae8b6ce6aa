//! Round trip of an empty call over a binder device, against a Unix socket in the same run: first
//! with all processes on one core, then with placement by the scheduler. The baseline of both is
//! the socket on one core, which the scheduler places differently from run to run.

use anyhow::Result;
use bench::devices::{self, DeviceArguments};
use bench::measure::{Summary, alternate, block, message};
use bench::pingpong::{self, MAX_MESSAGE};
use bench::{affinity, peer, report};
use clap::Parser;

/// Times round trips of binder calls beside those of a Unix socket.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// The core of the processes that are bound to one.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Only with all processes on one core.
    #[arg(long)]
    pinned: bool,
    /// Message sizes, bytes.
    #[arg(long, value_delimiter = ',', default_value = "4,1024,4096,16384,65536")]
    sizes: Vec<usize>,
    /// Turns of each subject.
    #[arg(long, default_value_t = 20)]
    blocks: usize,
    /// Round trips in a turn.
    #[arg(long, default_value_t = 500)]
    block: usize,
}

fn main() -> Result<()> {
    peer::serve(pingpong::serve).unwrap_or_else(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    affinity::be_eager();
    for size in &arguments.sizes {
        anyhow::ensure!(*size <= MAX_MESSAGE, "--sizes: {size} is above {MAX_MESSAGE}");
    }
    let bound = affinity::bind(arguments.cpu)?;
    measure(arguments, Placement::OneCore)?;
    drop(bound);
    if arguments.pinned { Ok(()) } else { measure(arguments, Placement::Free) }
}

/// The processes' cores.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placement {
    /// All run on `--cpu`, to which the caller is bound.
    OneCore,
    /// The scheduler decides, except for the baseline.
    Free,
}

fn measure(arguments: &Arguments, placement: Placement) -> Result<()> {
    // Started from here, so that they inherit core and priority. They outlive their clients below.
    let core = (placement == Placement::OneCore).then_some(arguments.cpu);
    let devices = arguments.devices.open(core)?;
    let mut subjects = pingpong::subjects(arguments.cpu, &devices)?;
    for &size in &arguments.sizes {
        let (message, mut reply) = (message(size), vec![0; size]);
        let blocks = alternate(&mut subjects, arguments.blocks, |subject| {
            block(subject.as_mut(), arguments.block, &message, &mut reply)
        })?;
        let names = subjects.iter().map(|subject| subject.name());
        let results: Vec<_> = names.zip(blocks.iter().map(|b| Summary::of_blocks(b))).collect();
        let any_core = if placement == Placement::Free { ", any core" } else { "" };
        report::round_trips("roundtrip", &(report::bytes(size) + any_core), &results);
    }
    drop(subjects);
    devices::close(devices)
}
