//! A call that carries file descriptors, given by ptrace or by a seccomp listener, over the same
//! call without any, and over `SCM_RIGHTS` on a Unix socket in the same run.

use anyhow::{Context, Result};
use bench::measure::Summary;
use bench::passing::{self, MAX_DESCRIPTORS, Pair};
use bench::results::{Key, Measurement, Value};
use bench::{affinity, peer, report, rings};
use clap::Parser;
use e2e::{Bus, BusError, Mapping};

const SOCKET: &str = "seqpacket, SCM_RIGHTS";
const PTRACE: &str = "headroom, ptrace";
const SECCOMP: &str = "headroom, seccomp";
const RING: &str = "headroom, ring";

/// Times calls with and without file descriptors, installed by ptrace and by seccomp, beside a Unix
/// socket.
#[derive(Parser)]
struct Arguments {
    /// The core of all processes.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Bind no process to a core: the scheduler decides.
    #[arg(long, conflicts_with = "cpu")]
    free: bool,
    /// Descriptors per call; 0 is always measured.
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    descriptors: Vec<usize>,
    /// Measure a daemon that accepts rings too: its receivers fetch the files over a socket.
    #[arg(long)]
    ring: bool,
    /// Turns of each subject.
    #[arg(long, default_value_t = 20)]
    blocks: usize,
    /// Calls in a turn.
    #[arg(long, default_value_t = 200)]
    block: usize,
    /// Accepted and ignored: what `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    if let Some(arguments) = peer::arguments() {
        return passing::play(&arguments);
    }
    run(&Arguments::parse())
}

fn started(bus: Result<Bus, BusError>, core: Option<usize>) -> Result<Option<Bus>> {
    match bus {
        Ok(bus) => {
            core.map_or(Ok(()), |core| affinity::pin_process(bus.pid(), core))?;
            Ok(Some(bus))
        }
        Err(BusError::Unavailable(reason)) => {
            eprintln!("skipped: {reason}");
            Ok(None)
        }
        Err(fault) => Err(fault.into()),
    }
}

fn over(name: &str, bus: &Bus) -> Result<Pair> {
    let device = bus.device("binder");
    let device = device.to_str().context("a path that is text")?;
    Pair::over_binder(name, device, |command| bus.spawn(command))
}

fn run(arguments: &Arguments) -> Result<()> {
    if arguments.ring {
        rings::preload(rings::Accepting::Chosen)?;
    }
    let largest = arguments.descriptors.iter().copied().max().unwrap_or(0);
    anyhow::ensure!(largest <= MAX_DESCRIPTORS, "--descriptors: at most {MAX_DESCRIPTORS}");
    let core = (!arguments.free).then_some(arguments.cpu);
    core.map_or(Ok(()), affinity::pin)?;
    if !affinity::be_eager() {
        eprintln!("not allowed to raise the priority: other work on the core will disturb");
    }
    let ptrace = started(Bus::start(Mapping::Auto), core)?;
    let seccomp = started(Bus::start_with_filters(Mapping::Auto), core)?;
    let ring =
        arguments.ring.then(|| started(rings::start_bus(Mapping::Auto, rings::ACCEPTED), core));
    let ring = ring.transpose()?.flatten();
    let mut pairs = vec![Pair::over_socket(SOCKET)?];
    for (name, bus) in [(PTRACE, &ptrace), (SECCOMP, &seccomp), (RING, &ring)] {
        pairs.extend(bus.as_ref().map(|bus| over(name, bus)).transpose()?);
    }
    let plain = measure(&mut pairs, 0, arguments)?;
    show(&plain, "no descriptor", arguments);
    for &descriptors in arguments.descriptors.iter().filter(|&&descriptors| descriptors > 0) {
        let many = if descriptors == 1 { "" } else { "s" };
        let case = format!("{descriptors} descriptor{many}");
        let found = measure(&mut pairs, descriptors, arguments)?;
        show(&found, &case, arguments);
        for ((name, with), (_, without)) in found.iter().zip(&plain) {
            let each = (with.p50 - without.p50) / descriptors as f64;
            eprintln!("{case:>14}  {name:<24} {each:.2} us each");
            let case = placed(&case, arguments);
            let line = Measurement::new(
                Key { bench: "descriptors", case: &case, subject: name, metric: "descriptor_us" },
                Value { value: each, unit: "us", runs: with.runs },
            );
            line.print();
        }
    }
    drop(pairs);
    for bus in [ptrace, seccomp, ring].into_iter().flatten() {
        bus.stop().map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

fn placed(case: &str, arguments: &Arguments) -> String {
    if arguments.free { format!("{case}, any core") } else { case.to_owned() }
}

/// Measures all pairs alternately.
fn measure(
    pairs: &mut [Pair],
    descriptors: usize,
    arguments: &Arguments,
) -> Result<Vec<(String, Summary)>> {
    let mut blocks = vec![Vec::new(); pairs.len()];
    for pair in pairs.iter_mut() {
        pair.calls(arguments.block, descriptors)?;
    }
    for _ in 0..arguments.blocks {
        for (pair, blocks) in pairs.iter_mut().zip(&mut blocks) {
            blocks.push(pair.calls(arguments.block, descriptors)?);
        }
    }
    let summaries = blocks.iter().map(|blocks| Summary::of_blocks(blocks));
    Ok(pairs.iter().map(|pair| pair.name().to_owned()).zip(summaries).collect())
}

fn show(found: &[(String, Summary)], case: &str, arguments: &Arguments) {
    let results: Vec<_> =
        found.iter().map(|(name, found)| (name.as_str(), found.clone())).collect();
    report::round_trips_head(SOCKET);
    let case = placed(case, arguments);
    report::round_trips("descriptors", &case, (SOCKET, "over_seqpacket"), &results);
}
