//! Round trip of an empty call over a binder device, against a pipe, a Unix socket and a futex in the
//! same run, everybody on one core.

use std::path::PathBuf;

use anyhow::{Context, Result};
use bench::measure::{Plan, Subject, interleave};
use bench::pingpong::{self, Binder, Futex, MAX_MESSAGE, Pipe, SeqPacket};
use bench::{affinity, peer, report};
use clap::Parser;
use e2e::{Bus, Mapping};

/// Times round trips of binder calls beside those of a pipe, a Unix socket and a futex.
#[derive(Parser)]
struct Arguments {
    /// A binder device without a context manager, of any driver.
    #[arg(long)]
    device: Option<PathBuf>,
    /// Start a headroom-binderd of our own (found beside this program or in $HEADROOM_BIN_DIR), once
    /// for each way in which it can map buffers.
    #[arg(long)]
    headroom: bool,
    /// The core on which everybody runs.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// A daemon that serves --device, to be put on that core too.
    #[arg(long)]
    daemon_pid: Option<u32>,
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
    anyhow::ensure!(
        arguments.device.is_some() || arguments.headroom,
        "nothing to measure: give --device PATH, --headroom, or both"
    );
    for size in &arguments.sizes {
        anyhow::ensure!(*size <= MAX_MESSAGE, "--sizes: {size} is above {MAX_MESSAGE}");
    }
    affinity::pin(arguments.cpu)?;
    if !affinity::be_eager() {
        eprintln!("not allowed to raise the priority: other work on the core will disturb");
    }
    if let Some(pid) = arguments.daemon_pid {
        affinity::pin_process(pid, arguments.cpu).with_context(|| format!("process {pid}"))?;
    }
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(SeqPacket::start().context("seqpacket")?),
        Box::new(Pipe::start().context("pipe")?),
        Box::new(Futex::start().context("futex")?),
    ];
    if let Some(device) = &arguments.device {
        let name = format!("binder {}", device.display());
        subjects.push(Box::new(Binder::start(&name, device).context(name.clone())?));
    }
    // Started from here, so pinned and eager as we are. They outlive their clients below.
    let buses = if arguments.headroom { private_buses()? } else { Vec::new() };
    for (name, bus) in &buses {
        subjects.push(Box::new(Binder::start(name, &bus.device("binder")).context(*name)?));
    }

    let plan = Plan { blocks: arguments.blocks, block: arguments.block, warm_up: arguments.block };
    report::round_trips_head(SeqPacket::NAME);
    for size in &arguments.sizes {
        let summaries = interleave(&mut subjects, *size, plan)?;
        let names = subjects.iter().map(|subject| subject.name());
        let results: Vec<_> = names.zip(summaries).collect();
        let baseline = (SeqPacket::NAME, "over_seqpacket");
        report::round_trips("roundtrip", &report::bytes(*size), baseline, &results);
    }
    drop(subjects);
    for (name, bus) in buses {
        bus.stop().map_err(|fault| anyhow::anyhow!("{name}: {fault}"))?;
    }
    Ok(())
}

fn private_buses() -> Result<Vec<(&'static str, Bus)>> {
    let modes = [
        ("headroom passthrough", Mapping::Passthrough),
        ("headroom notify-store", Mapping::NotifyStore),
    ];
    let start = |(name, mapping)| match Bus::start(mapping) {
        Ok(bus) => Some(Ok((name, bus))),
        Err(e2e::BusError::Unavailable(reason)) => {
            eprintln!("{name}: skipped: {reason}");
            None
        }
        Err(fault) => Some(Err(anyhow::anyhow!("{name}: {fault}"))),
    };
    modes.into_iter().filter_map(start).collect()
}
