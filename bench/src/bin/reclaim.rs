//! How fast the memory of a killed process comes back.

use std::time::Duration;

use anyhow::{Context, Result};
use bench::affinity::{self, Class};
use bench::progress::Progress;
use bench::results::{Key, Measurement, Value};
use bench::statistics::{estimate, quartiles};
use bench::victim_memory::{Layout, Pages, munmap_back};
use bench::victims::{self, Condition, KillMethod, Killed, Ready};
use bench::{machine, peer};
use clap::Parser;
use reclaim::Reaper;

const BENCH: &str = "reclaim";
const LIMIT: &str = "munmap";
const WORST: &str = "worst of all";
/// Maximum of reaper threads in the daemon.
const REAPERS: usize = 2;
/// From this size on only the first and the last subject are measured, with one round less for each
/// doubling, unless all are requested.
const LARGE_MIB: u64 = 512;

/// Name and method of a subject.
type Subject = (&'static str, KillMethod);

const SUBJECTS: &[Subject] = &[
    ("kill", KillMethod::Signal),
    ("headroom kill", KillMethod::OneCall),
    ("headroom", KillMethod::Reclaim),
];

/// Measures how fast the memory of a killed process comes back, from the signal until it is free,
/// in 10^6 bytes a second: by the signal alone (`kill`), with process_mrelease from the thread that
/// sent the signal (`headroom kill`), and from a waiting thread (`headroom`, as the daemon does
/// it).
///
/// The memory counts as free when the victim's pidfd becomes readable, since a process tears its
/// memory down before it becomes a zombie, or when process_mrelease returns with success; what
/// /proc/PID/statm then still shows is not counted. A victim that has not exited within
/// --patience-ms is reported with the memory that it has released until then (by statm; once its
/// exit has begun, by the growth of the machine's free memory, which other programs disturb), and
/// is then released from its cgroup, freezer or CPU quota.
/// `over_limit` is the rate over that of munmap of memory of the same size, pages and mappings in
/// this process, just before; the median of all rounds. "worst of all" has the least of all cases.
#[derive(Parser)]
struct Arguments {
    /// Sizes of victims; from 512 MiB on, only kill and headroom are measured, and from 2048 MiB
    /// on, only the conditions in which the signal alone does least
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [256, 1024, 4096],
        value_parser = clap::value_parser!(u64).range(8..=65_536)
    )]
    mib: Vec<u64>,
    /// Kills of each victim, fewer for large ones; the subjects alternate
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Time limit for a victim that is killed by the signal alone, milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    patience_ms: u64,
    /// The core of the victims and their competitors; this program uses the others [default: the
    /// last one]
    #[arg(long)]
    cpu: Option<usize>,
    /// Let this program use all cores
    #[arg(long)]
    any_cpu: bool,
    /// Memory that must stay available, MiB: larger victims are left out
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
    /// Only cases with this in their names, like "THP, stopped"
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Only these subjects
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    subjects: Vec<String>,
    /// All subjects in all conditions for all sizes
    #[arg(long)]
    full: bool,
    /// One round with victims of 32 MiB
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    if let Some(arguments) = peer::arguments()
        && let Some(done) = victims::serve(&arguments)
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
    /// By subject, then by round; `None` for a subject that is left out.
    kills: Vec<Option<Vec<Killed>>>,
    /// Rate of munmap (the physical limit) just before each round, MB/s.
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
    if !arguments.any_cpu && !affinity::avoid(core)? {
        eprintln!("there is one core: victims, competitors and we share it");
    }
    let subjects = subjects(arguments)?;
    let reaper = start_reaper()?;
    let mut cases = plan(arguments, subjects.len())?;
    let patience = Duration::from_millis(arguments.patience_ms);
    let steps = |case: &Case| case.kills.iter().flatten().count() * case.rounds as usize;
    let mut progress = Progress::new(BENCH, cases.iter().map(steps).sum());
    let mut warned = false;
    for round in 0..arguments.rounds {
        for case in cases.iter_mut().filter(|case| round < case.rounds) {
            let name = case.name();
            case.limits.push(munmap_back(case.layout)?.mb_per_s());
            // Each subject is first equally often.
            for turn in 0..subjects.len() {
                let at = (turn + round as usize) % subjects.len();
                let ((subject, killer), Some(kills)) = (subjects[at], &mut case.kills[at]) else {
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
                kills.push(ready.kill(killer, &reaper, patience).with_context(|| name.clone())?);
            }
        }
    }
    drop(progress);
    print_results(&cases, &subjects);
    Ok(())
}

fn subjects(arguments: &Arguments) -> Result<Vec<Subject>> {
    let wanted = &arguments.subjects;
    for name in wanted {
        anyhow::ensure!(SUBJECTS.iter().any(|(known, _)| known == name), "no subject \"{name}\"");
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    Ok(SUBJECTS.iter().copied().filter(|(name, _)| is_wanted(name)).collect())
}

/// As in the daemon: the reapers inherit the first class, the event loop has a higher priority.
fn start_reaper() -> Result<Reaper> {
    let start = || Reaper::start(Reaper::enough(REAPERS)).context("cannot start the reapers");
    let eager = Class::Fifo(1).take().and_then(|()| {
        let reaper = start()?;
        Class::Fifo(2).take()?;
        Ok(reaper)
    });
    eager.or_else(|error: anyhow::Error| {
        eprintln!("no real-time priority ({error:#}): other work will disturb");
        start()
    })
}

fn plan(arguments: &Arguments, subjects: usize) -> Result<Vec<Case>> {
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
                let wanted = |at: usize| !large || at == 0 || at + 1 == subjects;
                let kills = (0..subjects).map(|at| wanted(at).then(Vec::new)).collect();
                let case = Case { layout, condition, rounds, kills, limits: Vec::new() };
                if case.name().contains(&arguments.only) {
                    cases.push(case);
                }
            }
        }
    }
    anyhow::ensure!(!cases.is_empty(), "nothing is left to measure");
    Ok(cases)
}

fn print_results(cases: &[Case], subjects: &[Subject]) {
    eprintln!(
        "{:<40} {:<18} {:>8} {:>8} {:>8} {:>24} {:>9} {:>9}",
        "MB/s from the signal on",
        "",
        "median",
        "least",
        "most",
        "over limit, quartiles",
        "exit ms",
        "most"
    );
    let mut layouts: Vec<Layout> = Vec::new();
    for case in cases {
        if !layouts.contains(&case.layout) {
            layouts.push(case.layout);
            let many = if case.layout.many_mappings { ", many mappings" } else { "" };
            let same = cases.iter().filter(|other| other.layout == case.layout);
            let limits: Vec<f64> = same.flat_map(|case| case.limits.iter().copied()).collect();
            print_rates(&format!("{}{many}", size_name(case.layout)), LIMIT, &limits, "");
        }
    }
    // Minimum of each subject: rate, least rate and share of the limit.
    let mut worst = vec![[f64::INFINITY; 3]; subjects.len()];
    for case in cases {
        for (at, kills) in case.kills.iter().enumerate() {
            let Some(kills) = kills else { continue };
            let figures = print_kills(case, subjects[at].0, kills);
            for (worst, figure) in worst[at].iter_mut().zip(figures) {
                *worst = worst.min(figure);
            }
        }
    }
    for ((subject, _), [median, least, over]) in subjects.iter().zip(worst) {
        eprintln!("{WORST:<40} {subject:<18} {median:>8.0} {least:>8.0} {:>8} {over:>15.3}", "");
        let figures = [
            ("mb_per_s", median, "MB/s"),
            ("mb_per_s_min", least, "MB/s"),
            ("over_limit", over, "ratio"),
        ];
        for (metric, value, unit) in figures {
            Measurement::new(
                Key { bench: BENCH, case: WORST, subject, metric },
                Value { value, unit, runs: cases.len() },
            )
            .print();
        }
    }
}

/// Prints and returns the median and the least rate, and the median share of the limit.
fn print_kills(case: &Case, subject: &str, kills: &[Killed]) -> [f64; 3] {
    let name = case.name();
    let rates: Vec<f64> = kills.iter().map(|killed| killed.back.mb_per_s()).collect();
    let shares: Vec<f64> =
        rates.iter().zip(&case.limits).map(|(rate, limit)| rate / limit).collect();
    let exits = kills
        .iter()
        .map(|killed| killed.exit.map_or(f64::INFINITY, |exit| exit.as_secs_f64() * 1e3));
    let exits: Vec<f64> = exits.collect();
    let [low, share, high] = quartiles(&shares).unwrap_or([0.0; 3]);
    let [_, exit, _] = quartiles(&exits).unwrap_or([0.0; 3]);
    let longest = exits.iter().copied().fold(0.0, f64::max);
    let more = format!("{low:>8.3} {share:>7.3} {high:>7.3} {exit:>9.1} {longest:>9.1}");
    let [median, least] = print_rates(&name, subject, &rates, &more);
    let line = |metric: &str, value: f64, unit: &str| {
        if value.is_finite() {
            Measurement::new(
                Key { bench: BENCH, case: &name, subject, metric },
                Value { value, unit, runs: kills.len() },
            )
            .print();
        }
    };
    line("over_limit", share, "ratio");
    line("exit_ms", exit, "ms");
    [median, least, share]
}

/// Prints and returns the median and the least rate.
fn print_rates(case: &str, subject: &str, rates: &[f64], more: &str) -> [f64; 2] {
    let Some(e) = estimate(rates) else { return [0.0; 2] };
    let least = rates.iter().copied().fold(f64::MAX, f64::min);
    let most = rates.iter().copied().fold(f64::MIN, f64::max);
    eprintln!("{case:<40} {subject:<18} {:>8.0} {least:>8.0} {most:>8.0} {more}", e.median);
    let figures = [("mb_per_s", e.median), ("mb_per_s_min", least), ("mb_per_s_max", most)];
    for (metric, value) in figures {
        Measurement::new(
            Key { bench: BENCH, case, subject, metric },
            Value { value, unit: "MB/s", runs: e.runs },
        )
        .print();
    }
    [e.median, least]
}
