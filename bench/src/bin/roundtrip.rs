//! Round trip of an empty call over a binder device, against a pipe, a Unix socket and a futex in
//! the same run, with all processes on one core or wherever the scheduler puts them.

use anyhow::{Context, Result};
use bench::devices::{self, DeviceArguments};
use bench::measure::{Plan, Subject, interleave};
use bench::pingpong::{self, Binder, Futex, MAX_MESSAGE, Pipe, SeqPacket};
use bench::{affinity, peer, report};
use clap::Parser;

/// Times round trips of binder calls beside those of a pipe, a Unix socket and a futex.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// The core of all processes.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Bind no process to a core: the scheduler decides.
    #[arg(long, conflicts_with = "cpu")]
    free: bool,
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
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = words.split_first()
        && first == peer::PEER
    {
        return pingpong::serve(rest);
    }
    run(&Arguments::parse())
}

fn run(arguments: &Arguments) -> Result<()> {
    for size in &arguments.sizes {
        anyhow::ensure!(*size <= MAX_MESSAGE, "--sizes: {size} is above {MAX_MESSAGE}");
    }
    let core = (!arguments.free).then_some(arguments.cpu);
    core.map_or(Ok(()), affinity::pin)?;
    if !affinity::be_eager() {
        eprintln!("not allowed to raise the priority: other work on the core will disturb");
    }
    // Started from here, so that they inherit core and priority. They outlive their clients below.
    let devices = arguments.devices.open(core)?;
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(SeqPacket::start().context("seqpacket")?),
        Box::new(Pipe::start().context("pipe")?),
        Box::new(Futex::start().context("futex")?),
    ];
    for device in &devices {
        subjects.push(Box::new(Binder::start(device).context(device.name.clone())?));
    }

    let plan = Plan { blocks: arguments.blocks, block: arguments.block, warm_up: arguments.block };
    report::round_trips_head(SeqPacket::NAME);
    for size in &arguments.sizes {
        let summaries = interleave(&mut subjects, *size, plan)?;
        let names = subjects.iter().map(|subject| subject.name());
        let results: Vec<_> = names.zip(summaries).collect();
        let baseline = (SeqPacket::NAME, "over_seqpacket");
        let case = report::bytes(*size) + if arguments.free { ", any core" } else { "" };
        report::round_trips("roundtrip", &case, baseline, &results);
    }
    drop(subjects);
    devices::close(devices)
}
