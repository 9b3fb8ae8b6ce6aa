//! How fast the memory of a killed process comes back.

use std::time::Duration;

use anyhow::{Context, Result};
use bench::affinity::{self, Class};
use bench::memory::{Layout, Pages, munmap_back};
use bench::results::{MAX, MIN, Row};
use bench::statistics::{median, ratios};
use bench::victims::{self, Condition, KillMethod, Killed, Ready};
use bench::{machine, peer};
use clap::Parser;
use reclaim::Reaper;

const BENCH: &str = "reclaim";
const WORST: &str = "worst of all";
/// Maximum of reaper threads in the daemon.
const REAPERS: usize = 2;
/// Sizes of victims.
const SIZES_MIB: [u64; 3] = [256, 1024, 4096];
/// Kills of each victim, fewer for large ones; the subjects alternate.
const ROUNDS: u32 = 4;
/// From this size on there is one round less for each doubling.
const LARGE_MIB: u64 = 512;
/// From this size on only the conditions in which the signal alone does least are measured.
const VERY_LARGE_MIB: u64 = 2048;

const SUBJECTS: [(&str, KillMethod); 2] =
    [("kill", KillMethod::Signal), ("headroom", KillMethod::Reclaim)];

/// Measures how fast the memory of a killed process comes back, from the signal until it is free,
/// in 10^6 bytes a second: by the signal alone (`kill`), and with process_mrelease from a waiting
/// thread (`headroom`, as the daemon does it).
///
/// The memory counts as free when the victim's pidfd becomes readable, since a process tears its
/// memory down before it becomes a zombie, or when process_mrelease returns with success; what
/// /proc/PID/statm then still shows is not counted. A victim that has not exited within
/// half a second is reported with the memory that it has released until then (by statm; once its
/// exit has begun, by the growth of the machine's free memory, which other programs disturb), and
/// is then released from its cgroup, freezer or CPU quota.
/// `over_limit` is the rate over that of munmap of memory of the same size, pages and mappings in
/// this process, just before; the median of all rounds. "worst of all" has the least of all cases.
#[derive(Parser)]
struct Arguments {
    /// The core of the victims and their competitors; this program uses the others [default: the
    /// last one]
    #[arg(long)]
    cpu: Option<usize>,
    /// Memory that must stay available, MiB: larger victims are left out
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
    /// One round with victims of 32 MiB
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    peer::serve(victims::serve).unwrap_or_else(|| run(&Arguments::parse()))
}

/// One kind of victim.
struct Case {
    layout: Layout,
    condition: Condition,
    rounds: u32,
    /// By subject, then by round.
    kills: [Vec<Killed>; 2],
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
    if !affinity::avoid(core)? {
        eprintln!("there is one core: victims, competitors and we share it");
    }
    let reaper = start_reaper()?;
    let patience = Duration::from_millis(if arguments.quick { 100 } else { 500 });
    let mut cases = plan(arguments)?;
    let mut warned = false;
    for round in 0..ROUNDS {
        for case in cases.iter_mut().filter(|case| round < case.rounds) {
            case.limits.push(munmap_back(case.layout)?.mb_per_s());
            // Each subject is first equally often.
            for turn in 0..SUBJECTS.len() {
                let at = (turn + round as usize) % SUBJECTS.len();
                let ready = Ready::start(case.layout, case.condition, core);
                let ready = ready.with_context(|| case.name())?;
                let huge = ready.huge_share();
                if case.layout.pages == Pages::Huge && huge < 0.9 && !warned {
                    warned = true;
                    eprintln!("{}: only {:.0} % are huge pages", case.name(), huge * 100.0);
                }
                let killed = ready.kill(SUBJECTS[at].1, &reaper, patience);
                case.kills[at].push(killed.with_context(|| case.name())?);
            }
        }
    }
    print_results(&cases);
    Ok(())
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

fn plan(arguments: &Arguments) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let available = machine::available_mib()?;
    let (sizes, rounds): (&[u64], u32) =
        if arguments.quick { (&[32], 1) } else { (&SIZES_MIB, ROUNDS) };
    for &mib in sizes {
        if available < mib + arguments.keep_free_mib {
            eprintln!(
                "{mib} MiB: left out: {available} MiB are available, and --keep-free-mib is {}",
                arguments.keep_free_mib
            );
            continue;
        }
        let fewer = (mib.max(LARGE_MIB) / LARGE_MIB).ilog2();
        let rounds = rounds.saturating_sub(fewer).max(1);
        for pages in [Pages::Small, Pages::Huge] {
            for condition in Condition::all() {
                let least = condition.is_starved() || condition == Condition::Idle;
                if mib < VERY_LARGE_MIB || least {
                    let many_mappings = condition == Condition::Mappings;
                    let layout = Layout { mib, pages, many_mappings };
                    let (kills, limits) = Default::default();
                    cases.push(Case { layout, condition, rounds, kills, limits });
                }
            }
        }
    }
    anyhow::ensure!(!cases.is_empty(), "nothing is left to measure");
    Ok(cases)
}

fn print_results(cases: &[Case]) {
    let mut layouts: Vec<Layout> = Vec::new();
    for Case { layout, .. } in cases {
        if !layouts.contains(layout) {
            layouts.push(*layout);
            let many = if layout.many_mappings { ", many mappings" } else { "" };
            let same = cases.iter().filter(|other| other.layout == *layout);
            let limits: Vec<f64> = same.flat_map(|case| case.limits.iter().copied()).collect();
            let name = format!("{}{many}", size_name(*layout));
            print_rates(&mut Row::new(BENCH, &name, "munmap", limits.len()), &limits);
        }
    }
    for (at, (subject, _)) in SUBJECTS.iter().enumerate() {
        let mut worst = [f64::INFINITY; 2];
        for case in cases {
            let figures = print_kills(case, subject, &case.kills[at]);
            worst = [worst[0].min(figures[0]), worst[1].min(figures[1])];
        }
        let mut row = Row::new(BENCH, WORST, subject, cases.len());
        row.value("mb_per_s", worst[0], "MB/s");
        row.value("over_limit", worst[1], "ratio");
    }
}

/// Prints and returns the medians of the rates and of their shares of the limit.
fn print_kills(case: &Case, subject: &str, kills: &[Killed]) -> [f64; 2] {
    let name = case.name();
    let rates: Vec<f64> = kills.iter().map(|killed| killed.back.mb_per_s()).collect();
    let shares = ratios(&rates, &case.limits);
    let exits = kills
        .iter()
        .map(|killed| killed.exit.map_or(f64::INFINITY, |exit| exit.as_secs_f64() * 1e3));
    let mut row = Row::new(BENCH, &name, subject, kills.len());
    print_rates(&mut row, &rates);
    row.median("over_limit", &shares, "ratio", &[]);
    row.median("exit_ms", &exits.collect::<Vec<_>>(), "ms", &[]);
    [&rates, &shares].map(|values| median(values).unwrap_or(f64::INFINITY))
}

fn print_rates(row: &mut Row<'_>, rates: &[f64]) {
    row.median("mb_per_s", rates, "MB/s", &[MIN, MAX]);
}
