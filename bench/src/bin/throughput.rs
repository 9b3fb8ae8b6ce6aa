//! Calls per second of 1 to 16 pairs of a client and a server, with idle and with busy handlers,
//! beside as many pairs over Unix sockets in the same run; and the CPU time of the daemon per call.

use std::time::Duration;

use anyhow::{Context, Result};
use bench::devices::{self, DeviceArguments};
use bench::progress::Progress;
use bench::results::Key;
use bench::throughput::{self, Load, Pairs, Rate};
use bench::{affinity, peer, report};
use clap::Parser;

const BENCH: &str = "throughput";
const SOCKETS: &str = "seqpacket";

/// Counts the calls per second of several pairs of a client and a server at once.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// Numbers of pairs.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,4,8,16",
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pairs: Vec<u16>,
    /// CPU time of a busy handler per call, microseconds.
    #[arg(long, default_value_t = 75, value_parser = clap::value_parser!(u32).range(1..))]
    busy_us: u32,
    /// Turns of each subject.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    passes: u32,
    /// Duration of a turn, milliseconds.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    period_ms: u64,
    /// Short: 1 and 2 pairs, 3 passes of 100 ms.
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    if let Some(arguments) = peer::arguments() {
        return throughput::play(&arguments);
    }
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.pairs, arguments.passes, arguments.period_ms) = (vec![1, 2], 3, 100);
    }
    run(&arguments)
}

/// The handlers of a case.
#[derive(Clone, Copy)]
enum Handlers {
    /// They reply at once.
    Idle,
    /// They use `--busy-us` of CPU time per call.
    Busy,
}

impl Handlers {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle handlers",
            Self::Busy => "busy handlers",
        }
    }

    fn cpu_us(self, arguments: &Arguments) -> u32 {
        match self {
            Self::Idle => 0,
            Self::Busy => arguments.busy_us,
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    if !affinity::be_eager() {
        eprintln!("not allowed to raise the priority: other work on the machine will disturb");
    }
    let most = arguments.pairs.iter().copied().max().context("--pairs: no number")?;
    let devices = arguments.devices.open(None)?;
    let mut subjects = vec![Pairs::over_sockets(SOCKETS, most.into()).context(SOCKETS)?];
    for device in &devices {
        let pairs = Pairs::over_binder(device, most.into());
        subjects.push(pairs.with_context(|| device.name.clone())?);
    }
    let mut progress = Progress::new(BENCH, arguments.pairs.len() * 2 * subjects.len());
    print_head();
    for handlers in [Handlers::Idle, Handlers::Busy] {
        for &pairs in &arguments.pairs {
            let many = if pairs == 1 { "" } else { "s" };
            let case = format!("{pairs} pair{many}, {}", handlers.name());
            progress.step(&case);
            let load = Load {
                pairs: pairs.into(),
                handler_us: handlers.cpu_us(arguments),
                period: Duration::from_millis(arguments.period_ms),
            };
            let rates = measure(&mut subjects, load, arguments.passes);
            print_case(&case, &subjects, &rates.with_context(|| case.clone())?);
        }
    }
    drop(progress);
    drop(subjects);
    devices::close(devices)
}

/// Measures the subjects alternately. Returns the rates of each subject, one per pass.
fn measure(subjects: &mut [Pairs], load: Load, passes: u32) -> Result<Vec<Vec<Rate>>> {
    let mut rates = vec![Vec::new(); subjects.len()];
    for _ in 0..passes {
        for (subject, rates) in subjects.iter_mut().zip(&mut rates) {
            rates.push(subject.measure(load)?);
        }
    }
    Ok(rates)
}

fn print_head() {
    eprintln!(
        "{:<24} {:<24} {:>26}  {:>20}  {:>20}",
        "case", "quartiles", "calls/s", "over seqpacket", "daemon CPU, us/call"
    );
}

fn print_case(case: &str, subjects: &[Pairs], rates: &[Vec<Rate>]) {
    let [sockets, ..] = rates else { return };
    for (subject, rates) in subjects.iter().zip(rates) {
        let calls: Vec<f64> = rates.iter().map(|rate| rate.calls_per_s).collect();
        let shares: Vec<f64> = match subject.name() {
            SOCKETS => Vec::new(),
            _ => rates.iter().zip(sockets).map(|(r, s)| r.calls_per_s / s.calls_per_s).collect(),
        };
        let daemon: Vec<f64> = rates.iter().filter_map(|rate| rate.daemon_cpu_us).collect();
        let [calls, share, daemon] = [
            ("calls_per_s", "calls/s", calls, 0),
            ("rate_over_seqpacket", "ratio", shares, 3),
            ("daemon_cpu_us", "us", daemon, 2),
        ]
        .map(|(metric, unit, values, decimals)| {
            let key = Key { bench: BENCH, case, subject: subject.name(), metric };
            report::quartiles(key, unit, &values, decimals)
        });
        eprintln!("{case:<24} {:<24} {calls:>26}  {share:>20}  {daemon:>20}", subject.name());
    }
}
