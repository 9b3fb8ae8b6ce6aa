//! Round trip of an empty call over a binder device, against a pipe, a Unix socket and a futex in
//! the same run: first with all processes on one core, then with placement by the scheduler. The
//! baseline of both is the socket on one core, which the scheduler places differently from run to
//! run.

use anyhow::{Context, Result};
use bench::devices::{self, DeviceArguments};
use bench::measure::{OnCore, Plan, Subject, interleave};
use bench::pingpong::{self, Binder, Futex, MAX_MESSAGE, Pipe, SeqPacket};
use bench::{affinity, peer, report};
use clap::Parser;

/// Times round trips of binder calls beside those of a pipe, a Unix socket and a futex.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// The core of the processes that are bound to one.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Only with placement by the scheduler.
    #[arg(long)]
    free: bool,
    /// Only with all processes on one core.
    #[arg(long, conflicts_with = "free")]
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
    /// Accepted and ignored: what `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    if let Some(arguments) = peer::arguments() {
        return pingpong::serve(&arguments);
    }
    run(&Arguments::parse())
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    for size in &arguments.sizes {
        anyhow::ensure!(*size <= MAX_MESSAGE, "--sizes: {size} is above {MAX_MESSAGE}");
    }
    if !affinity::be_eager() {
        eprintln!("not allowed to raise the priority: other work on the core will disturb");
    }
    report::round_trips_head(SeqPacket::NAME);
    if !arguments.free {
        let bound = affinity::bind(arguments.cpu)?;
        measure(arguments, Placement::OneCore)?;
        drop(bound);
    }
    if !arguments.pinned {
        measure(arguments, Placement::Free)?;
    }
    Ok(())
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
    let baseline = OnCore::start(arguments.cpu, SeqPacket::start).context("seqpacket")?;
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(baseline),
        Box::new(Pipe::start().context("pipe")?),
        Box::new(Futex::start().context("futex")?),
    ];
    for device in &devices {
        subjects.push(Box::new(Binder::start(device).context(device.name.clone())?));
    }

    let plan = Plan { blocks: arguments.blocks, block: arguments.block, warm_up: arguments.block };
    for size in &arguments.sizes {
        let summaries = interleave(&mut subjects, *size, plan)?;
        let names = subjects.iter().map(|subject| subject.name());
        let results: Vec<_> = names.zip(summaries).collect();
        let baseline = (SeqPacket::NAME, "over_seqpacket");
        let any_core = if placement == Placement::Free { ", any core" } else { "" };
        let case = report::bytes(*size) + any_core;
        report::round_trips("roundtrip", &case, baseline, &results);
    }
    drop(subjects);
    devices::close(devices)
}
