//! Cost of the notifier for the watched processes.

use anyhow::Result;
use bench::affinity;
use bench::child::unused_uid;
use bench::fault_work::{self, Work};
use bench::memory::Pages;
use bench::peer::{self, Worker};
use bench::results::Row;
use bench::statistics::{estimate, ratios};
use bench::watchers::Watcher;
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
/// Pages that are mapped, touched and unmapped at a time.
const PAGES: usize = 4096;
/// Pages that a forked child writes to; it is forked as often as these fit into a block.
const FORK_PAGES: usize = 256;
/// Repetitions of the work while events are counted.
const COUNTED: usize = 2;

/// Measures the CPU time of page-fault work (map, touch, unmap; fork, touch, exit; a compiler run)
/// with the notifier over that without, alternating: detached, since no limit is set; and with a
/// limit for the workers' user, far away or with the soft limit exceeded. Several processes are
/// spread over the cores. Needs root and BPF.
#[derive(Parser)]
struct Arguments {
    /// The core of a single process
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Six rounds of short blocks
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let peer = peer::serve(|words| match words {
        [fault_work::KIND] => fault_work::serve(),
        _ => anyhow::bail!("no such peer: {words:?}"),
    });
    peer.unwrap_or_else(|| run(&Arguments::parse()))
}

/// The work, and the number of processes.
struct Case {
    name: &'static str,
    processes: usize,
    /// The workers belong to the watched user.
    limited: bool,
    work: Work,
    /// Repetitions per process.
    times: usize,
    limit: SlotLimit,
    /// The unit of work: name of its metric, nanoseconds per unit of that metric, and units done in
    /// each repetition.
    unit: (&'static str, f64, f64),
    /// CPU time, nanoseconds: by subject, then by round.
    took: [Vec<f64>; 3],
}

/// The baseline, and the notifier without and with a limit.
const SUBJECTS: [&str; 3] = ["no notifier", "headroom, no limit", "headroom"];

/// `times`: repetitions in a block, of all processes together; `functions`: of the compiled
/// program.
fn cases(times: usize, functions: usize) -> Vec<Case> {
    let (faults, huge) = (Work::Faults(PAGES, Pages::Small), Work::Faults(PAGES, Pages::Huge));
    let (forks, compile) = (Work::Forks(FORK_PAGES), Work::Compile(functions));
    // A fork costs about as much as some hundred page faults.
    let fork_times = PAGES * times / (FORK_PAGES + 256);
    let case = |name, processes: usize, work, limit| {
        let (unit, times) = match work {
            Work::Faults(pages, _) => (("fault_ns", 1.0, pages as f64), times),
            Work::Forks(_) => (("fork_us", 1e3, 1.0), fork_times),
            Work::Compile(_) => (("compile_ms", 1e6, 1.0), 1),
        };
        let (times, took) = ((times / processes).max(1), Default::default());
        Case { name, processes, limited: true, work, times, limit, unit, took }
    };
    vec![
        case("1 process", 1, faults, FAR),
        case("4 processes", 4, faults, FAR),
        case("8 processes", MOST, faults, FAR),
        case("1 process, huge pages", 1, huge, FAR),
        case("8 processes, huge pages", MOST, huge, FAR),
        case("compiler", 1, compile, FAR),
        case("1 process, above the soft limit", 1, faults, NEAR),
        case("8 processes, above the soft limit", MOST, faults, NEAR),
        case("forks", 1, forks, FAR),
        case("forks, above the soft limit", 1, forks, NEAR),
        Case { limited: false, ..case("1 process of another user", 1, faults, FAR) },
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
        // On the core of this thread, with its priority.
        let start = |uid: Uid| Worker::start(Some(uid.0), &[fault_work::KIND]);
        let cores = std::thread::available_parallelism()?.get();
        let spread = (0..MOST).map(|number| {
            affinity::pin((cpu + number) % cores)?;
            start(uid)
        });
        let spread = spread.collect::<Result<_>>()?;
        affinity::pin(cpu)?;
        // From another range, so that no concurrent run uses this uid.
        let other = start(Uid(uid.0 + 100_000_000))?;
        Ok(Self { alone: [start(uid)?], spread, other: [other] })
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
    affinity::be_eager();
    let uid = unused_uid();
    let mut watcher = Watcher::new(uid)?;
    let mut workers = Workers::start(uid, arguments.cpu)?;
    let (rounds, times, functions) = if arguments.quick { (6, 2, 3) } else { (20, 16, 30) };
    let mut cases = cases(times, functions);
    if !fault_work::can_compile() {
        eprintln!("no C compiler: its case is left out");
        cases.retain(|case| !matches!(case.work, Work::Compile(_)));
    }
    for round in 0..=rounds {
        for case in &mut cases {
            let workers = workers.of(case);
            // Each subject is first equally often, so that drift affects all of them alike.
            for turn in 0..SUBJECTS.len() {
                let at = (turn + round) % SUBJECTS.len();
                let limit = (at == 2).then_some(case.limit);
                let cpu_ns = watcher.watch(limit, workers, case.work, case.times)?;
                // The first round is for warming up.
                if round > 0 {
                    case.took[at].push(cpu_ns as f64);
                }
            }
        }
    }
    for case in &cases {
        print_results(case);
        let events = watcher.count(case.limit, workers.of(case), case.work, COUNTED)?;
        let units = case.unit.2 * (COUNTED * case.processes) as f64;
        let mut row = Row::new(BENCH, case.name, "headroom", 1);
        row.value("events", events.events as f64 / units, "");
        row.value("event_ns", events.ns as f64 / events.events.max(1) as f64, "ns");
    }
    Ok(())
}

fn print_results(case: &Case) {
    let (metric, ns, units) = case.unit;
    let units = units * ns * (case.times * case.processes) as f64;
    for (at, (subject, took)) in SUBJECTS.iter().zip(&case.took).enumerate() {
        let mut row = Row::new(BENCH, case.name, subject, took.len());
        if let Some(ratio) = estimate(&ratios(took, &case.took[0])).filter(|_| at > 0) {
            row.estimate("cpu_over_off", &ratio, "ratio");
        }
        let each: Vec<f64> = took.iter().map(|took| took / units).collect();
        if let Some(each) = estimate(&each) {
            row.estimate(metric, &each, metric.rsplit('_').next().unwrap_or_default());
        }
    }
}
