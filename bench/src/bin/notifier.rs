//! Cost of the notifier for the watched processes.

use anyhow::Result;
use bench::affinity;
use bench::child::unused_uid;
use bench::fault_work::{self, Work, Worker};
use bench::peer;
use bench::progress::Progress;
use bench::results::{Key, Measurement, Value};
use bench::statistics::estimate;
use bench::watchers::{Took, Watcher, Watchers};
use clap::Parser;
use control::Uid;
use memory_watch::SlotLimit;

const BENCH: &str = "notifier";
/// Limits far above what this benchmark uses, pages.
const FAR: SlotLimit = SlotLimit { soft_pages: 1 << 30, hard_pages: 1 << 31 };
/// Above its soft limit from the first page on: every change is accounted for at once.
const NEAR: SlotLimit = SlotLimit { soft_pages: 1, hard_pages: 1 << 31 };
/// Maximum of processes of the limited user.
const MOST: usize = 8;
/// Repetitions of the work while events are counted.
const COUNTED: usize = 2;

/// Measures the CPU time of page-fault work (map, touch, unmap; fork, touch, exit; a compiler run)
/// with a memory watcher over that without, alternating: no watcher; the notifier without a limit;
/// with a limit for the workers' user, far away or with the soft limit exceeded; a program that
/// scans all processes at every event, as the published naive one; and a timer that reads /proc
/// every 200 ms, whose own CPU time counts. Several processes are spread over the
/// cores. Needs root and BPF.
#[derive(Parser)]
struct Arguments {
    /// The core of a single process
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Turns of each watcher
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Pages that are mapped, touched and unmapped at a time
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pages: u32,
    /// Repetitions in a block, of all processes together
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Pages that a forked child writes to; it is forked as often as these fit into a block
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    fork_pages: u32,
    /// Functions in the compiled program
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    functions: u32,
    /// Six rounds of short blocks
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    if let Some(arguments) = peer::arguments()
        && let [kind, uid] = &arguments[..]
        && kind == fault_work::KIND
    {
        return fault_work::serve(uid);
    }
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.rounds, arguments.times, arguments.functions) = (6, 2, 3);
    }
    run(&arguments)
}

/// The work, the number of processes, and the watchers to compare.
struct Case {
    name: &'static str,
    processes: usize,
    /// The workers belong to the watched user.
    limited: bool,
    work: Work,
    /// Repetitions per process.
    times: usize,
    limit: SlotLimit,
    watchers: Vec<Watcher>,
    /// The unit of work: name of its metric, nanoseconds per unit of that metric, and units done in
    /// each repetition.
    unit: (&'static str, f64, f64),
    /// By watcher, then by round.
    took: Vec<Vec<Took>>,
}

fn cases(arguments: &Arguments) -> Vec<Case> {
    let (pages, times) = (arguments.pages as usize, arguments.times as usize);
    let forked = arguments.fork_pages as usize;
    let (faults, huge) = (Work::Faults(pages), Work::Huge(pages));
    let (forks, compile) = (Work::Forks(forked), Work::Compile(arguments.functions as usize));
    // A fork costs about as much as some hundred page faults.
    let fork_times = (pages * times / (forked + 256)).max(1);
    let case = |name, processes: usize, work, limit, watchers: &[Watcher]| {
        let (unit, times) = match work {
            Work::Faults(pages) | Work::Huge(pages) => (("fault_ns", 1.0, pages as f64), times),
            Work::Forks(_) => (("fork_us", 1e3, 1.0), fork_times),
            Work::Compile(_) => (("compile_ms", 1e6, 1.0), 1),
        };
        let watchers = [&[Watcher::Nobody, Watcher::Headroom(limit)], watchers].concat();
        let took = vec![Vec::new(); watchers.len()];
        let times = (times / processes).max(1);
        Case { name, processes, limited: true, work, times, limit, watchers, unit, took }
    };
    let all = [Watcher::NoLimit, Watcher::EveryEvent, Watcher::Timer];
    vec![
        case("1 process", 1, faults, FAR, &all),
        case("4 processes", 4, faults, FAR, &all),
        case("8 processes", MOST, faults, FAR, &all),
        case("1 process, huge pages", 1, huge, FAR, &all[1..]),
        case("8 processes, huge pages", MOST, huge, FAR, &all[1..]),
        case("compiler", 1, compile, FAR, &all),
        case("1 process, above the soft limit", 1, faults, NEAR, &[]),
        case("8 processes, above the soft limit", MOST, faults, NEAR, &[]),
        case("forks", 1, forks, FAR, &[]),
        case("forks, above the soft limit", 1, forks, NEAR, &[]),
        Case { limited: false, ..case("1 process of another user", 1, faults, FAR, &[]) },
    ]
}

/// Workers of the limited user, one alone on the core and several spread over the cores, and one of
/// another user.
struct Workers {
    alone: [Worker; 1],
    spread: Vec<Worker>,
    other: [Worker; 1],
}

impl Workers {
    fn start(uid: Uid, cpu: usize) -> Result<Self> {
        let cores = std::thread::available_parallelism()?.get();
        let spread = (0..MOST).map(|number| {
            affinity::pin((cpu + number) % cores)?;
            Worker::start(uid)
        });
        let spread = spread.collect::<Result<_>>()?;
        affinity::pin(cpu)?;
        // From another range, so that no concurrent run uses this uid.
        let other = Worker::start(Uid(uid.0 + 100_000_000))?;
        Ok(Self { alone: [Worker::start(uid)?], spread, other: [other] })
    }

    fn of(&mut self, case: &Case) -> &mut [Worker] {
        match (case.limited, case.processes) {
            (false, _) => &mut self.other,
            (true, 1) => &mut self.alone,
            (true, processes) => &mut self.spread[..processes],
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    anyhow::ensure!(rustix::process::geteuid().is_root(), "the notifier needs root");
    if !affinity::be_eager() {
        eprintln!("not allowed to raise the priority: other work on the core will disturb");
    }
    let uid = unused_uid();
    let mut watchers = Watchers::new(uid)?;
    let mut workers = Workers::start(uid, arguments.cpu)?;
    let mut cases = cases(arguments);
    if !fault_work::can_compile() {
        eprintln!("no C compiler: its case is left out");
        cases.retain(|case| !matches!(case.work, Work::Compile(_)));
    }
    let mut progress = Progress::new(BENCH, (arguments.rounds as usize + 1) * cases.len());
    for round in 0..=arguments.rounds as usize {
        for case in &mut cases {
            progress.step(&format!("{}, round {round}", case.name));
            let (work, times) = (case.work, case.times);
            let workers = workers.of(case);
            // Each watcher is first equally often, so that drift affects all of them alike.
            for turn in 0..case.watchers.len() {
                let who = (turn + round) % case.watchers.len();
                let watcher = case.watchers[who];
                if !watchers.has(watcher) {
                    continue;
                }
                let took = watchers.watch(watcher, workers, work, times)?;
                // The first round is for warming up.
                if round > 0 {
                    case.took[who].push(took);
                }
            }
        }
    }
    drop(progress);
    eprintln!("{:<34} {:<20} {:>14} {:>10}  {:>19}", "", "CPU time", "", "over none", "95 %");
    for case in &cases {
        print_results(case, &watchers);
        let limited = workers.of(case);
        let events = watchers.count(case.limit, limited, case.work, COUNTED)?;
        let units = case.unit.2 * (COUNTED * case.processes) as f64;
        let line = |metric: &str, value, unit: &str| {
            Measurement::new(
                Key { bench: BENCH, case: case.name, subject: "headroom", metric },
                Value { value, unit, runs: 1 },
            )
            .print();
        };
        let (per_unit, ns) =
            (events.events as f64 / units, events.ns as f64 / events.events.max(1) as f64);
        eprintln!("{:34} {per_unit:.3} events a unit, {ns:.0} ns each", "");
        line("events", per_unit, "");
        line("event_ns", ns, "ns");
    }
    Ok(())
}

fn print_results(case: &Case, watchers: &Watchers) {
    let (metric, ns, units) = case.unit;
    let units = units * ns * (case.times * case.processes) as f64;
    for (watcher, took) in case.watchers.iter().zip(&case.took) {
        let share = watchers.share(*watcher);
        let cpu = |took: &Took| took.cpu_ns as f64 + share * took.wall_ns as f64;
        let ratios: Vec<f64> = took
            .iter()
            .zip(&case.took[0])
            .map(|(took, idle)| cpu(took) / idle.cpu_ns as f64)
            .collect();
        let each: Vec<f64> = took.iter().map(|took| cpu(took) / units).collect();
        let (Some(ratio), Some(each)) = (estimate(&ratios), estimate(&each)) else { continue };
        let unit = metric.rsplit('_').next().unwrap_or_default();
        let shown = format!("{:.1} {unit}", each.median);
        eprintln!(
            "{:<34} {:<20} {shown:>14} {:>10.4}  {:>8.4} to {:>7.4}",
            case.name,
            watcher.name(),
            ratio.median,
            ratio.low,
            ratio.high
        );
        let line = |metric: &str, value, unit: &str| {
            let runs = took.len();
            Measurement::new(
                Key { bench: BENCH, case: case.name, subject: watcher.name(), metric },
                Value { value, unit, runs },
            )
            .print();
        };
        if *watcher != Watcher::Nobody {
            line("cpu_over_off", ratio.median, "ratio");
            line("cpu_over_off_low", ratio.low, "ratio");
            line("cpu_over_off_high", ratio.high, "ratio");
        }
        line(metric, each.median, unit);
        line(&format!("{metric}_low"), each.low, unit);
        line(&format!("{metric}_high"), each.high, unit);
    }
}
