//! How fast the memory of a killed process comes back.

use anyhow::{Context, Result};
use bench::affinity::{self, Class};
use bench::progress::Progress;
use bench::results::Measurement;
use bench::statistics::{Estimate, estimate};
use bench::victims::{self, Condition, Killer, Pages, Ready, munmap_back};
use bench::{machine, peer};
use clap::Parser;
use reclaim::Reaper;

const BENCH: &str = "reclaim";
const SUBJECTS: [(&str, Killer); 2] = [("kill", Killer::Signal), ("headroom", Killer::Headroom)];
const LIMIT: &str = "munmap";
/// As many as the daemon has.
const REAPERS: usize = 2;

/// Measures how fast the memory of a killed process comes back, from the signal until it is free, in
/// 10^6 bytes a second: by the signal alone, and with our help (the crate `reclaim`, as the daemon uses
/// it: the signal, a moment for the victim, then process_mrelease).
///
/// The memory counts as free when the victim's pidfd becomes readable, since a process tears its memory
/// down before it becomes a zombie, or when process_mrelease returns with success; what
/// /proc/PID/statm then still shows is not counted. A victim that is still dying 3 s after the signal
/// is reported with what it gave until then (of statm; once its exit has begun, of the growth of the
/// machine's free memory, which others disturb), and then loses its competitor to end quickly.
/// `over_limit` is the rate over that of munmap of the same memory in this process, in the same run.
#[derive(Parser)]
struct Arguments {
    /// Sizes of victims
    #[arg(long, value_delimiter = ',', default_values_t = [256, 1024], value_parser = clap::value_parser!(u64).range(4..=65_536))]
    mib: Vec<u64>,
    /// Times that everybody is killed; kill and headroom take turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The core of the victims and their competitors; we use the others [default: the last one]
    #[arg(long)]
    cpu: Option<usize>,
    /// Memory to leave to others, MiB: larger victims are left out
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
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
        (arguments.rounds, arguments.mib) = (1, vec![32]);
    }
    run(&arguments)
}

/// Results of one kind of victim; rates in MB/s, one a round.
struct Case {
    name: String,
    mib: u64,
    pages: Pages,
    condition: Condition,
    rates: [Vec<f64>; SUBJECTS.len()],
}

/// The physical limit, MB/s, by size and pages.
struct Limit {
    mib: u64,
    pages: Pages,
    rates: Vec<f64>,
}

fn case_name(mib: u64, pages: Pages) -> String {
    format!("{mib} MiB{}", if pages == Pages::Huge { " THP" } else { "" })
}

fn run(arguments: &Arguments) -> Result<()> {
    let core = match arguments.cpu {
        Some(core) => core,
        None => std::thread::available_parallelism().context("how many cores?")?.get() - 1,
    };
    if !affinity::avoid(core)? {
        eprintln!("there is one core: victims, competitors and we share it");
    }
    // As the daemon: the reapers inherit the first, the loop goes before them.
    let eager = Class::Fifo(1).take().and_then(|()| {
        let reaper = Reaper::start(REAPERS).context("cannot start the reapers")?;
        Class::Fifo(2).take()?;
        Ok(reaper)
    });
    let reaper = match eager {
        Ok(reaper) => reaper,
        Err(error) => {
            eprintln!("no real-time priority ({error:#}): other work will disturb");
            Reaper::start(REAPERS).context("cannot start the reapers")?
        }
    };
    let (mut cases, mut limits) = plan(arguments)?;
    let steps = cases.len() * SUBJECTS.len() * arguments.rounds as usize;
    let mut progress = Progress::new(BENCH, steps);
    let mut warned = false;
    for round in 0..arguments.rounds {
        for limit in &mut limits {
            limit.rates.push(munmap_back(limit.mib, limit.pages)?.mb_per_s());
        }
        for case in &mut cases {
            // Each goes first as often as the other.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for at in order {
                let (subject, killer) = SUBJECTS[at];
                progress.step(&format!("{}, {subject}, round {}", case.name, round + 1));
                let ready = Ready::start(case.mib, case.pages, case.condition, core);
                let ready = ready.with_context(|| case.name.clone())?;
                if case.pages == Pages::Huge && ready.huge_share() < 0.9 && !warned {
                    warned = true;
                    let percent = ready.huge_share() * 100.0;
                    eprintln!("{}: only {percent:.0} % are huge pages", case.name);
                }
                let back = ready.kill(killer, &reaper).with_context(|| case.name.clone())?;
                case.rates[at].push(back.mb_per_s());
            }
        }
    }
    drop(progress);
    tell(&cases, &limits);
    Ok(())
}

fn plan(arguments: &Arguments) -> Result<(Vec<Case>, Vec<Limit>)> {
    let (mut cases, mut limits) = (Vec::new(), Vec::new());
    let available = machine::available_mib()?;
    for &mib in &arguments.mib {
        if available < mib + arguments.keep_free_mib {
            eprintln!(
                "{mib} MiB: left out: {available} MiB are available, and --keep-free-mib is {}",
                arguments.keep_free_mib
            );
            continue;
        }
        for pages in [Pages::Small, Pages::Huge] {
            limits.push(Limit { mib, pages, rates: Vec::new() });
            cases.extend(Condition::ALL.map(|condition| Case {
                name: format!("{}, {}", case_name(mib, pages), condition.name()),
                mib,
                pages,
                condition,
                rates: Default::default(),
            }));
        }
    }
    anyhow::ensure!(!cases.is_empty(), "nothing is left to measure");
    Ok((cases, limits))
}

fn tell(cases: &[Case], limits: &[Limit]) {
    eprintln!(
        "{:<44} {:<10} {:>10} {:>10} {:>10} {:>10}",
        "MB/s from the signal on", "", "median", "least", "most", "over limit"
    );
    for limit in limits {
        tell_one(&case_name(limit.mib, limit.pages), LIMIT, &limit.rates, None);
    }
    for case in cases {
        let same = |limit: &&Limit| (limit.mib, limit.pages) == (case.mib, case.pages);
        let limit = limits.iter().find(same).and_then(|limit| estimate(&limit.rates));
        for ((subject, _), rates) in SUBJECTS.iter().zip(&case.rates) {
            tell_one(&case.name, subject, rates, limit);
        }
    }
}

fn tell_one(case: &str, subject: &str, rates: &[f64], limit: Option<Estimate>) {
    let Some(e) = estimate(rates) else { return };
    let least = rates.iter().copied().fold(f64::MAX, f64::min);
    let most = rates.iter().copied().fold(f64::MIN, f64::max);
    let over = limit.map(|limit| e.median / limit.median);
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
