//! What watching costs those who are watched.

use anyhow::{Context, Result};
use bench::affinity;
use bench::child::nobodys_uid;
use bench::fault_work::{self, Work, Worker};
use bench::peer;
use bench::progress::Progress;
use bench::results::Measurement;
use bench::statistics::{Estimate, estimate};
use clap::Parser;
use memory_watch::{Notifier, SlotLimit, Watch};

const BENCH: &str = "notifier";
const SUBJECT: &str = "headroom";
const WITHOUT: &str = "no notifier";
/// Limits that no work of ours comes near, pages.
const FAR: SlotLimit = SlotLimit { soft_pages: 1 << 30, hard_pages: 1 << 31 };
/// Above its soft limit from the first page on: every change is accounted for at once.
const NEAR: SlotLimit = SlotLimit { soft_pages: 1, hard_pages: 1 << 31 };

/// Measures the CPU time of page-fault work (map, touch, unmap; fork, touch, exit) with the notifier
/// attached over that with it detached, taking turns: for a process of a limited user far below its
/// limit and above its soft limit, and for one of a user without a limit. Needs root and BPF.
#[derive(Parser)]
struct Arguments {
    /// The core on which everybody runs
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Times that the notifier is attached and detached
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Pages that are mapped, touched and unmapped at a time
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pages: u32,
    /// Times that this is done in a block
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Pages that a forked child writes to; it is forked as often as these fit into a block
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    fork_pages: u32,
    /// Six rounds of short blocks
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, kind, uid] = &words[..]
        && (first == peer::PEER && kind == fault_work::KIND)
    {
        return fault_work::serve(uid);
    }
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.rounds, arguments.times) = (6, 2);
    }
    run(&arguments)
}

/// Who does what, and how the notifier is meanwhile.
struct Case {
    name: &'static str,
    limited: bool,
    work: Work,
    times: usize,
    limit: SlotLimit,
    /// What a unit of work is: its metric, nanoseconds of it, and how many there are in a block.
    unit: (&'static str, &'static str, f64),
    /// CPU time of the blocks, nanoseconds: detached, attached.
    off: Vec<u64>,
    on: Vec<u64>,
}

fn cases(arguments: &Arguments) -> Vec<Case> {
    let pages = arguments.pages as usize;
    let times = arguments.times as usize;
    let faults = Work::Faults(pages);
    let forked = arguments.fork_pages as usize;
    let forks = Work::Forks(forked);
    // A fork costs about as much as some hundred page faults.
    let fork_times = (pages * times / (forked + 256)).max(1);
    let case = |name, limited, work, times: usize, limit| {
        let unit = match work {
            Work::Faults(pages) => ("fault_ns", "ns", (pages * times) as f64),
            Work::Forks(_) => ("fork_us", "us", times as f64 * 1000.0),
        };
        Case { name, limited, work, times, limit, unit, off: Vec::new(), on: Vec::new() }
    };
    vec![
        case("faults, limited user", true, faults, times, FAR),
        case("faults, other user", false, faults, times, FAR),
        case("forks, limited user", true, forks, fork_times, FAR),
        case("faults, above the soft limit", true, faults, times, NEAR),
        case("forks, above the soft limit", true, forks, fork_times, NEAR),
    ]
}

fn run(arguments: &Arguments) -> Result<()> {
    anyhow::ensure!(rustix::process::geteuid().is_root(), "the notifier needs root");
    affinity::pin(arguments.cpu)?;
    if !affinity::be_eager() {
        eprintln!("not allowed to raise the priority: other work on the core will disturb");
    }
    let mut notifier = Notifier::load().context("the notifier cannot be loaded")?;
    let limited_uid = nobodys_uid();
    // Another range, so that it is nobody's whoever runs beside us.
    let other_uid = limited_uid + 100_000_000;
    let mut limited = Worker::start(limited_uid)?;
    let mut other = Worker::start(other_uid)?;
    let mut cases = cases(arguments);
    let mut progress = Progress::new(BENCH, (arguments.rounds as usize + 1) * cases.len());
    for round in 0..=arguments.rounds {
        for case in &mut cases {
            progress.step(&format!("{}, round {round}", case.name));
            let worker = if case.limited { &mut limited } else { &mut other };
            // Each goes first as often as the other: what drifts falls on both.
            let order = if round % 2 == 0 { [false, true] } else { [true, false] };
            for attached in order {
                if attached {
                    notifier.set_limit(limited_uid, case.limit)?;
                }
                anyhow::ensure!(notifier.is_attached() == attached, "the notifier is not as told");
                let took = worker.work(case.work, case.times)?;
                if attached {
                    notifier.clear_limit(limited_uid)?;
                }
                // The first round is for warming up.
                if round > 0 {
                    if attached { &mut case.on } else { &mut case.off }.push(took);
                }
            }
        }
    }
    drop(progress);
    tell(&cases);
    Ok(())
}

fn tell(cases: &[Case]) {
    eprintln!(
        "{:<30} {:>10} {:>12} {:>10}  {:>19}",
        "CPU time", "off", "with it", "over off", "95 %"
    );
    for case in cases {
        let ratios: Vec<f64> =
            case.on.iter().zip(&case.off).map(|(on, off)| *on as f64 / *off as f64).collect();
        let (metric, unit, count) = case.unit;
        let each = |blocks: &[u64]| {
            estimate(&blocks.iter().map(|ns| *ns as f64 / count).collect::<Vec<_>>())
        };
        let (Some(ratio), Some(on), Some(off)) =
            (estimate(&ratios), each(&case.on), each(&case.off))
        else {
            continue;
        };
        eprintln!(
            "{:<30} {:>7.1} {unit} {:>9.1} {unit} {:>10.3}  {:>8.3} to {:>7.3}",
            case.name, off.median, on.median, ratio.median, ratio.low, ratio.high
        );
        let line = |subject: &str, metric: &str, value, unit: &str, e: &Estimate| {
            Measurement::new(BENCH, case.name, subject, metric, value, unit, e.runs).print();
        };
        line(SUBJECT, "cpu_over_off", ratio.median, "ratio", &ratio);
        line(SUBJECT, "cpu_over_off_low", ratio.low, "ratio", &ratio);
        line(SUBJECT, "cpu_over_off_high", ratio.high, "ratio", &ratio);
        for (subject, e) in [(SUBJECT, &on), (WITHOUT, &off)] {
            line(subject, metric, e.median, unit, e);
            line(subject, &format!("{metric}_low"), e.low, unit, e);
            line(subject, &format!("{metric}_high"), e.high, unit, e);
        }
    }
}
