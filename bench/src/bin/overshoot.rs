//! By how much a limit is exceeded, and how many processes are killed for it.

use std::time::Duration;

use anyhow::{Context, Result};
use bench::memory::Pages;
use bench::overshoot::{Guard, Load, Run, run};
use bench::report;
use bench::results::{End, Row};
use clap::Parser;

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
    /// One run of each case, under a limit of 64 MiB
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        (arguments.runs, arguments.limit_mib, arguments.far_mib) = (1, 64, 256);
    }
    anyhow::ensure!(rustix::process::geteuid().is_root(), "changing users needs root");
    for Case { name, load, guards } in arguments.cases() {
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); guards.len()];
        for _ in 0..arguments.runs {
            for (guard, runs) in guards.iter().zip(&mut runs) {
                let one = run(*guard, &load);
                runs.push(one.with_context(|| format!("{name}, {}", guard.name()))?);
            }
        }
        for (guard, runs) in guards.iter().zip(&runs) {
            print_row(&name, guard.name(), runs);
        }
    }
    Ok(())
}

/// Processes, and what is to enforce their limit.
struct Case {
    name: String,
    load: Load,
    guards: Vec<Guard>,
}

impl Arguments {
    fn cases(&self) -> Vec<Case> {
        let limit_bytes = self.limit_mib * MIB;
        let fresh = |&processes: &u16| Case {
            name: report::number(processes.into(), "process", "processes"),
            load: Load { processes, limit_bytes, rest: Duration::ZERO, pages: Pages::Small },
            guards: vec![Guard::Bpf, Guard::Proc, Guard::Stopped],
        };
        let mut cases: Vec<Case> = self.processes.iter().map(fresh).collect();
        // Without the notifier each kill waits for a measurement.
        let guards = vec![Guard::Bpf, Guard::Stopped];
        let rest = Duration::from_millis(self.rest_ms);
        if self.rest_ms > 0 {
            cases.extend(self.processes.iter().map(fresh).map(|case| Case {
                name: format!("{}, rested", case.name),
                load: Load { rest, ..case.load },
                guards: guards.clone(),
            }));
        }
        if self.far_mib > 0 {
            let processes =
                std::thread::available_parallelism().map_or(1, |cpus| cpus.get()) as u16;
            let limit_bytes = self.far_mib * MIB;
            for (size, pages) in [("small", Pages::Small), ("huge", Pages::Huge)] {
                let name = format!("from far, {size} pages");
                let load = Load { processes, limit_bytes, rest, pages };
                cases.push(Case { name, load, guards: guards.clone() });
            }
        }
        cases
    }
}

fn print_row(case: &str, subject: &str, runs: &[Run]) {
    let values = |of: fn(&Run) -> Option<f64>| runs.iter().filter_map(of).collect::<Vec<_>>();
    let mut row = Row::new(BENCH, case, subject, runs.len());
    let mut print = |metric, unit, of| row.median(metric, &values(of), unit, &[End::Max]);
    print("pages_over_at_kill", "pages", |run| Some(run.pages_over_at_kill as f64));
    print("pages_over_peak", "pages", |run| Some(run.pages_over_peak as f64));
    print("victims", "processes", |run| Some(run.victims as f64));
    print("signal_us", "us", |run| Some(run.signal_us as f64));
    print("memory_back_ms", "ms", |run| Some(run.memory_back_us? as f64 / 1000.0));
    let in_kernel = runs.iter().filter(|run| run.by_kernel).count();
    row.value("killed_in_kernel", in_kernel as f64, "runs");
}
