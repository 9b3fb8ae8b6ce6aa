//! By how much a limit is exceeded, and how many processes are killed for it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::child::Child;
use bench::oomd;
use bench::overshoot::{Guard, Load, Pages, Run, run};
use bench::progress::Progress;
use bench::results::{Key, Measurement, Value};
use bench::statistics::estimate;
use clap::{Parser, ValueEnum};

const BENCH: &str = "overshoot";
const MIB: u64 = 1 << 20;

/// Lets processes of one user allocate memory until their sum exceeds the limit, and reports the
/// pages above the limit when the kill was decided, their maximum until the signal or the victim's
/// last page, and the victims. Needs root.
#[derive(Parser)]
struct Arguments {
    /// Runs of each case, each with a fresh daemon
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The limit. A small one is also exceeded by the few dozen pages that each process has at its
    /// start, which costs more victims
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(8..=4096))]
    limit_mib: u64,
    /// Cases: numbers of processes
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [1, 4, 8],
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    processes: Vec<u16>,
    /// Further cases: the numbers of processes above, after they have rested for this time since
    /// their forks, milliseconds; 0: none
    #[arg(long, default_value_t = 1200)]
    rest_ms: u64,
    /// Further cases: a process for each CPU fills this limit, MiB, with small and with huge pages;
    /// 0: none
    #[arg(long, default_value_t = 2048)]
    far_mib: u64,
    /// What enforces the limit; several alternate
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_values_t = [Subject::Bpf, Subject::Proc, Subject::Stopped, Subject::Cgroup]
    )]
    subject: Vec<Subject>,
    /// Busy loops of ordinary priority that run beside the processes
    #[arg(long, default_value_t = 0)]
    busy: usize,
    /// The daemon; by default the headroom-oomd beside this program or in $HEADROOM_BIN_DIR
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// One run of each case, under a limit of 64 MiB
    #[arg(long)]
    quick: bool,
}

/// What enforces the limit.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// The daemon, which watches in the kernel where that works
    Auto,
    /// The daemon, which watches in the kernel
    Bpf,
    /// The daemon, which reads /proc on a timer
    Proc,
    /// What works in the kernel while the daemon is stopped
    Stopped,
    /// A control group's own limit, and the kernel's own killer
    Cgroup,
}

impl Subject {
    fn guard(self, program: &Path) -> Guard<'_> {
        match self {
            Self::Auto => Guard::Daemon(program, "auto"),
            Self::Bpf => Guard::Daemon(program, "bpf"),
            Self::Proc => Guard::Daemon(program, "proc"),
            Self::Stopped => Guard::Stopped(program),
            Self::Cgroup => Guard::ControlGroup,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto | Self::Bpf => "headroom",
            Self::Proc => "headroom proc",
            Self::Stopped => "headroom stopped",
            Self::Cgroup => "memory cgroup",
        }
    }
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.runs, arguments.limit_mib, arguments.far_mib) = (1, 64, 256);
    }
    anyhow::ensure!(rustix::process::geteuid().is_root(), "changing users needs root");
    let program = oomd::program(arguments.daemon.clone())?;
    let _busy = busy_loops(arguments.busy)?;
    let cases = arguments.cases();
    let steps: usize = cases.iter().map(|case| case.subjects.len()).sum();
    let mut progress = Progress::new(BENCH, steps * arguments.runs as usize);
    let mut results = Vec::new();
    for Case { name, load, subjects } in cases {
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); subjects.len()];
        for number in 1..=arguments.runs {
            for (subject, runs) in subjects.iter().zip(&mut runs) {
                progress.step(&format!("{name}, {}, run {number}", subject.name()));
                let one = run(subject.guard(&program), &load);
                runs.push(one.with_context(|| format!("{name}, {}", subject.name()))?);
            }
        }
        results.extend(subjects.into_iter().zip(runs).map(|(it, runs)| (name.clone(), it, runs)));
    }
    drop(progress);
    print_results(&results);
    Ok(())
}

/// Processes, and what is to enforce their limit.
struct Case {
    name: String,
    load: Load,
    subjects: Vec<Subject>,
}

impl Arguments {
    fn cases(&self) -> Vec<Case> {
        let limit_bytes = self.limit_mib * MIB;
        let fresh = |&processes: &u16| Case {
            name: format!("{processes} process{}", if processes == 1 { "" } else { "es" }),
            load: Load { processes, limit_bytes, rest: Duration::ZERO, pages: Pages::Small },
            subjects: self.subject.clone(),
        };
        let mut cases: Vec<Case> = self.processes.iter().map(fresh).collect();
        // Without the notifier each kill waits for a measurement, and control groups do not
        // measure.
        let mut subjects = self.subject.clone();
        subjects.retain(|it| matches!(it, Subject::Auto | Subject::Bpf | Subject::Stopped));
        if self.rest_ms > 0 {
            let rest = Duration::from_millis(self.rest_ms);
            cases.extend(self.processes.iter().map(fresh).map(|case| Case {
                name: format!("{}, rested", case.name),
                load: Load { rest, ..case.load },
                subjects: subjects.clone(),
            }));
        }
        if self.far_mib > 0 {
            let processes = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
            let rest = Duration::from_millis(self.rest_ms);
            let limit_bytes = self.far_mib * MIB;
            let load = |pages| Load { processes: processes as u16, limit_bytes, rest, pages };
            for (size, pages) in [("small", Pages::Small), ("huge", Pages::Huge)] {
                let name = format!("from far, {size} pages");
                cases.push(Case { name, load: load(pages), subjects: subjects.clone() });
            }
        }
        cases
    }
}

fn busy_loops(count: usize) -> Result<Vec<Child>> {
    (0..count)
        .map(|_| Child::start(Command::new("sh").args(["-c", "while :; do :; done"])))
        .collect()
}

fn print_results(results: &[(String, Subject, Vec<Run>)]) {
    eprintln!(
        "{:<22} {:<16} {:>17} {:>17} {:>9} {:>15} {:>17} {:>9}",
        "",
        "median (most)",
        "pages over, kill",
        "peak",
        "victims",
        "us to signal",
        "ms to memory",
        "in kernel"
    );
    for (case, subject, runs) in results {
        print_row(case, subject.name(), runs);
    }
}

fn print_row(case: &str, subject: &str, runs: &[Run]) {
    let columns: [(&str, &str, Vec<f64>); 5] = [
        ("pages_over_at_kill", "pages", runs.iter().map(|r| r.pages_over_at_kill as f64).collect()),
        ("pages_over_peak", "pages", runs.iter().map(|r| r.pages_over_peak as f64).collect()),
        ("victims", "processes", runs.iter().map(|r| r.victims as f64).collect()),
        ("signal_us", "us", runs.iter().filter_map(|r| Some(r.signal_us? as f64)).collect()),
        (
            "memory_back_ms",
            "ms",
            runs.iter().filter_map(|r| Some(r.memory_back_us? as f64 / 1000.0)).collect(),
        ),
    ];
    let mut row = format!("{case:<22} {subject:<16}");
    for ((metric, unit, values), width) in columns.iter().zip([17, 17, 9, 15, 17]) {
        let Some(e) = estimate(values) else {
            row += &format!(" {:>width$}", "-");
            continue;
        };
        let most = values.iter().copied().fold(f64::MIN, f64::max);
        row += &format!(" {:>width$}", format!("{} ({most})", Short(e.median), most = Short(most)));
        let line = |metric: &str, value| {
            Measurement::new(
                Key { bench: BENCH, case, subject, metric },
                Value { value, unit, runs: e.runs },
            )
            .print();
        };
        line(metric, e.median);
        line(&format!("{metric}_max"), most);
    }
    let in_kernel = runs.iter().filter(|run| run.by_kernel).count();
    eprintln!("{row} {:>9}", format!("{in_kernel}/{}", runs.len()));
}

/// Displays a number without decimals if it has none.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.fract() == 0.0 { write!(f, "{}", self.0) } else { write!(f, "{:.1}", self.0) }
    }
}
