//! How fast the memory of a killed process comes back.

use std::time::Duration;

use anyhow::{Context, Result};
use bench::affinity::{self, Class};
use bench::progress::Progress;
use bench::results::Measurement;
use bench::statistics::estimate;
use bench::victim_memory::{Layout, Pages, munmap_back};
use bench::victims::{self, Condition, Killer, Ready};
use bench::{machine, peer};
use clap::Parser;
use reclaim::{Help, Reaper};

const BENCH: &str = "reclaim";
const LIMIT: &str = "munmap";
const WORST: &str = "worst of all";
/// As many as the daemon has at the most.
const REAPERS: usize = 2;
/// From this size on only the first and the last subject are measured, with one round less for each
/// doubling, unless everything is asked for.
const LARGE_MIB: u64 = 512;

const SUBJECTS: [(&str, Killer); 4] = [
    ("kill", Killer::Signal),
    ("reap", Killer::Help(Help { release: true, boost: false })),
    ("boost", Killer::Help(Help { release: false, boost: true })),
    ("headroom", Killer::Help(Help { release: true, boost: true })),
];

/// Measures how fast the memory of a killed process comes back, from the signal until it is free, in
/// 10^6 bytes a second: by the signal alone (`kill`), with process_mrelease (`reap`), with the victim's
/// threads raised and let out of a freezer (`boost`), and with both, as the daemon does it (`headroom`).
///
/// The memory counts as free when the victim's pidfd becomes readable, since a process tears its memory
/// down before it becomes a zombie, or when process_mrelease returns with success; what
/// /proc/PID/statm then still shows is not counted. A victim that is still dying when its patience is
/// over is reported with what it gave until then (of statm; once its exit has begun, of the growth of
/// the machine's free memory, which others disturb), and is then freed of what holds it.
/// `over_limit` is the rate over that of munmap of memory of the same size, pages and mappings in this
/// process, just before; the median of all rounds. "worst of all" has the least of all cases.
#[derive(Parser)]
struct Arguments {
    /// Sizes of victims; from 512 MiB on, only kill and headroom are measured, and from 2048 MiB on,
    /// only the conditions in which the signal alone does least
    #[arg(long, value_delimiter = ',', default_values_t = [256, 1024, 4096], value_parser = clap::value_parser!(u64).range(8..=65_536))]
    mib: Vec<u64>,
    /// Times that everybody is killed, fewer for large victims; the subjects take turns
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// How long a victim that is not helped may take, milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    patience_ms: u64,
    /// The core of the victims and their competitors; we use the others [default: the last one]
    #[arg(long)]
    cpu: Option<usize>,
    /// Memory to leave to others, MiB: larger victims are left out
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
    /// Only cases with this in their names, like "THP, stopped"
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// All subjects in all conditions for all sizes
    #[arg(long)]
    full: bool,
    /// One round with victims of 32 MiB
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = words.split_first()
        && first == peer::PEER
        && let Some(done) = victims::serve(rest)
    {
        return done;
    }
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.rounds, arguments.mib, arguments.patience_ms) = (1, vec![32], 100);
    }
    run(&arguments)
}

/// One kind of victim.
struct Case {
    layout: Layout,
    condition: Condition,
    rounds: u32,
    /// Rates in MB/s, one a round; none of a subject that is left out.
    rates: [Option<Vec<f64>>; SUBJECTS.len()],
    /// The physical limit just before each round, MB/s.
    limits: Vec<f64>,
}

impl Case {
    fn name(&self) -> String {
        format!("{}, {}", size_name(self.layout), self.condition.name())
    }
}

fn size_name(layout: Layout) -> String {
    format!("{} MiB{}", layout.mib, if layout.pages == Pages::Huge { " THP" } else { "" })
}

fn run(arguments: &Arguments) -> Result<()> {
    let core = match arguments.cpu {
        Some(core) => core,
        None => std::thread::available_parallelism().context("how many cores?")?.get() - 1,
    };
    if !affinity::avoid(core)? {
        eprintln!("there is one core: victims, competitors and we share it");
    }
    let reaper = start_reaper()?;
    let mut cases = plan(arguments)?;
    let patience = Duration::from_millis(arguments.patience_ms);
    let steps = |case: &Case| case.rates.iter().flatten().count() * case.rounds as usize;
    let mut progress = Progress::new(BENCH, cases.iter().map(steps).sum());
    let mut warned = false;
    for round in 0..arguments.rounds {
        for case in cases.iter_mut().filter(|case| round < case.rounds) {
            let name = case.name();
            case.limits.push(munmap_back(case.layout)?.mb_per_s());
            // Each goes first as often as any other.
            for turn in 0..SUBJECTS.len() {
                let at = (turn + round as usize) % SUBJECTS.len();
                let ((subject, killer), Some(rates)) = (SUBJECTS[at], &mut case.rates[at]) else {
                    continue;
                };
                progress.step(&format!("{name}, {subject}, round {}", round + 1));
                let ready = Ready::start(case.layout, case.condition, core);
                let ready = ready.with_context(|| name.clone())?;
                if case.layout.pages == Pages::Huge && ready.huge_share() < 0.9 && !warned {
                    warned = true;
                    let percent = ready.huge_share() * 100.0;
                    eprintln!("{name}: only {percent:.0} % are huge pages");
                }
                let back = ready.kill(killer, &reaper, patience).with_context(|| name.clone())?;
                rates.push(back.mb_per_s());
            }
        }
    }
    drop(progress);
    tell(&cases);
    Ok(())
}

/// As in the daemon: the reapers inherit the first class, the loop goes before them.
fn start_reaper() -> Result<Reaper> {
    let eager = Class::Fifo(1).take().and_then(|()| {
        let reaper = Reaper::start(Reaper::enough(REAPERS)).context("cannot start the reapers")?;
        Class::Fifo(2).take()?;
        Ok(reaper)
    });
    eager.or_else(|error| {
        eprintln!("no real-time priority ({error:#}): other work will disturb");
        Reaper::start(Reaper::enough(REAPERS)).context("cannot start the reapers")
    })
}

fn plan(arguments: &Arguments) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let available = machine::available_mib()?;
    for &mib in &arguments.mib {
        if available < mib + arguments.keep_free_mib {
            eprintln!(
                "{mib} MiB: left out: {available} MiB are available, and --keep-free-mib is {}",
                arguments.keep_free_mib
            );
            continue;
        }
        let large = mib >= LARGE_MIB && !arguments.full;
        let very_large = mib >= 4 * LARGE_MIB && !arguments.full;
        let fewer = if large { mib.ilog2() - LARGE_MIB.ilog2() } else { 0 };
        let rounds = arguments.rounds.saturating_sub(fewer).max(1);
        for pages in [Pages::Small, Pages::Huge] {
            for condition in Condition::ALL {
                if very_large && !condition.is_starved() && condition != Condition::Idle {
                    continue;
                }
                let many_mappings = condition == Condition::Mappings;
                let layout = Layout { mib, pages, many_mappings };
                let wanted = |(at, _)| !large || at == 0 || at == SUBJECTS.len() - 1;
                let mut subjects = SUBJECTS.iter().enumerate();
                let rates = std::array::from_fn(|_| {
                    subjects.next().filter(|s| wanted(*s)).map(|_| Vec::new())
                });
                let case = Case { layout, condition, rounds, rates, limits: Vec::new() };
                if case.name().contains(&arguments.only) {
                    cases.push(case);
                }
            }
        }
    }
    anyhow::ensure!(!cases.is_empty(), "nothing is left to measure");
    Ok(cases)
}

fn tell(cases: &[Case]) {
    eprintln!(
        "{:<44} {:<10} {:>10} {:>10} {:>10} {:>10}",
        "MB/s from the signal on", "", "median", "least", "most", "over limit"
    );
    let mut layouts: Vec<Layout> = Vec::new();
    for case in cases {
        if !layouts.contains(&case.layout) {
            layouts.push(case.layout);
            let many = if case.layout.many_mappings { ", many mappings" } else { "" };
            let same = cases.iter().filter(|other| other.layout == case.layout);
            let limits: Vec<f64> = same.flat_map(|case| case.limits.iter().copied()).collect();
            tell_one(&format!("{}{many}", size_name(case.layout)), LIMIT, &limits, None);
        }
    }
    // Rate, least rate and share of the limit: the least of each subject.
    let mut worst = [[f64::INFINITY; 3]; SUBJECTS.len()];
    for case in cases {
        for (at, rates) in case.rates.iter().enumerate() {
            let Some(rates) = rates else { continue };
            let shares = rates.iter().zip(&case.limits).map(|(rate, limit)| rate / limit);
            let share = estimate(&shares.collect::<Vec<_>>()).map(|e| e.median);
            tell_one(&case.name(), SUBJECTS[at].0, rates, share);
            if let (Some(e), Some(share)) = (estimate(rates), share) {
                let least = rates.iter().copied().fold(f64::MAX, f64::min);
                let [median, lowest, over] = worst[at];
                worst[at] = [median.min(e.median), lowest.min(least), over.min(share)];
            }
        }
    }
    for ((subject, _), [median, least, over]) in SUBJECTS.iter().zip(worst) {
        eprintln!("{WORST:<44} {subject:<10} {median:>10.0} {least:>10.0} {:>10} {over:>10.3}", "");
        let figures = [
            ("mb_per_s", median, "MB/s"),
            ("mb_per_s_min", least, "MB/s"),
            ("over_limit", over, "ratio"),
        ];
        for (metric, value, unit) in figures {
            Measurement::new(BENCH, WORST, subject, metric, value, unit, cases.len()).print();
        }
    }
}

fn tell_one(case: &str, subject: &str, rates: &[f64], over: Option<f64>) {
    let Some(e) = estimate(rates) else { return };
    let least = rates.iter().copied().fold(f64::MAX, f64::min);
    let most = rates.iter().copied().fold(f64::MIN, f64::max);
    let shown = over.map_or(String::new(), |over| format!("{over:.3}"));
    eprintln!("{case:<44} {subject:<10} {:>10.0} {least:>10.0} {most:>10.0} {shown:>10}", e.median);
    let line = |metric: &str, value, unit: &str| {
        Measurement::new(BENCH, case, subject, metric, value, unit, e.runs).print();
    };
    line("mb_per_s", e.median, "MB/s");
    line("mb_per_s_min", least, "MB/s");
    line("mb_per_s_max", most, "MB/s");
    if let Some(over) = over {
        line("over_limit", over, "ratio");
    }
}
