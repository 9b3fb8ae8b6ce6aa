//! By how much a limit is exceeded, and how many processes are killed for it.

use std::time::Duration;

use anyhow::{Context, Result};
use bench::memory::Pages;
use bench::overshoot::{Guard, Load, Run, run};
use bench::report;
use bench::results::{MAX, Row};
use clap::Parser;

const BENCH: &str = "overshoot";
const MIB: u64 = 1 << 20;
/// Numbers of processes.
const PROCESSES: [u16; 3] = [1, 4, 8];
/// From the forks of rested processes to their first page.
const REST: Duration = Duration::from_millis(1200);

/// Lets processes of one user allocate memory until their sum exceeds the limit, and reports the
/// pages above the limit when the kill was decided, their maximum until the signal or the victim's
/// last page, and the victims. Needs root.
#[derive(Parser)]
struct Arguments {
    /// Runs of each case, each with a fresh daemon
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// One run of each case, under a limit of 64 MiB
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // A small limit is also exceeded by the few dozen pages that each process has at its start,
    // which costs more victims.
    let (count, limit_mib, far_mib) =
        if arguments.quick { (1, 64, 256) } else { (arguments.runs, 256, 2048) };
    anyhow::ensure!(rustix::process::geteuid().is_root(), "changing users needs root");
    for Case { name, load, guards } in cases(limit_mib * MIB, far_mib * MIB) {
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); guards.len()];
        for _ in 0..count {
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

/// Processes that have just been forked and those that have rested since, under one limit; and one
/// process for each CPU that fills another, far one with small and with huge pages.
fn cases(limit_bytes: u64, far_bytes: u64) -> Vec<Case> {
    let fresh = |processes: u16| Case {
        name: report::number(processes.into(), "process", "processes"),
        load: Load { processes, limit_bytes, rest: Duration::ZERO, pages: Pages::Small },
        guards: vec![Guard::Bpf, Guard::Proc, Guard::Stopped],
    };
    // Without the notifier each kill waits for a measurement.
    let guards = vec![Guard::Bpf, Guard::Stopped];
    let rested = PROCESSES.map(fresh).map(|case| Case {
        name: format!("{}, rested", case.name),
        load: Load { rest: REST, ..case.load },
        guards: guards.clone(),
    });
    let processes = std::thread::available_parallelism().map_or(1, |cpus| cpus.get()) as u16;
    let far = [("small", Pages::Small), ("huge", Pages::Huge)].map(|(size, pages)| Case {
        name: format!("from far, {size} pages"),
        load: Load { processes, limit_bytes: far_bytes, rest: REST, pages },
        guards: guards.clone(),
    });
    PROCESSES.map(fresh).into_iter().chain(rested).chain(far).collect()
}

fn print_row(case: &str, subject: &str, runs: &[Run]) {
    let values = |of: fn(&Run) -> Option<f64>| runs.iter().filter_map(of).collect::<Vec<_>>();
    let mut row = Row::new(BENCH, case, subject, runs.len());
    let mut print = |metric, unit, of| row.median(metric, &values(of), unit, &[MAX]);
    print("pages_over_at_kill", "pages", |run| Some(run.pages_over_at_kill as f64));
    print("pages_over_peak", "pages", |run| Some(run.pages_over_peak as f64));
    print("victims", "processes", |run| Some(run.victims as f64));
    print("signal_us", "us", |run| Some(run.signal_us as f64));
    print("memory_back_ms", "ms", |run| Some(run.memory_back_us? as f64 / 1000.0));
    let in_kernel = runs.iter().filter(|run| run.by_kernel).count();
    row.value("killed_in_kernel", in_kernel as f64, "runs");
}
