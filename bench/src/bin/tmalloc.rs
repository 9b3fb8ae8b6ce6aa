//! Fate of processes that request more than their user's limit.

use anyhow::{Context, Result};
use bench::report;
use bench::requesters::{Plan, Run, Subject, run};
use bench::results::{MAX, MIN, Row};
use clap::Parser;

const BENCH: &str = "tmalloc";
const MB: u64 = 1_000_000;
/// Numbers of processes.
const PROCESSES: [usize; 3] = [1, 4, 8];
/// Memory that each process requests, and their user's limit, bytes.
const WANTED: u64 = 1000 * MB;
const LIMIT: u64 = 16 << 20;

/// Lets 1, 4 and 8 processes of one user allocate 1 GB each, in pieces of 4 KiB that they write to
/// and keep, under a limit of 16 MiB: once by malloc, which never fails, so that all are killed in
/// the end; once by tmalloc, which fails in time. Reports the kills, the maximum of pages above the
/// limit, and the usable share: the maximum share of the limit in use before a kill.
///
/// In every other run of tmalloc, a process whose allocation fails keeps its memory until all have
/// failed. Needs root.
#[derive(Parser)]
struct Arguments {
    /// Runs of each number of processes, each with a fresh daemon
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Stop when less memory than this is available, MiB
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
    /// One run of each case
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        arguments.runs = 1;
    }
    anyhow::ensure!(rustix::process::geteuid().is_root(), "changing users needs root");
    for processes in PROCESSES {
        // The result of malloc is known; a few runs confirm it.
        for (subject, runs) in
            [(Subject::Malloc, arguments.runs.div_ceil(5)), (Subject::Tmalloc, arguments.runs)]
        {
            refusals(arguments.keep_free_mib, processes, subject, runs)?;
        }
    }
    Ok(())
}

/// Counts kills and the usable share of the limit.
fn refusals(keep_free_mib: u64, processes: usize, subject: Subject, count: u32) -> Result<()> {
    let case = report::number(processes as u64, "process", "processes");
    let one = |number| {
        let plan = Plan {
            subject,
            processes,
            wanted: WANTED,
            limit: LIMIT,
            keep_free_mib,
            hold: subject == Subject::Tmalloc && number % 2 == 1,
        };
        run(&plan).with_context(|| format!("{case}, {}", subject.name()))
    };
    let runs = (1..=count).map(one).collect::<Result<Vec<Run>>>()?;
    let values = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let mut row = Row::new(BENCH, &case, subject.name(), runs.len());
    row.median("kills", &values(|run| run.kills as f64), "processes", &[MAX]);
    row.median("pages_over", &values(|run| run.pages_over as f64), "pages", &[MAX]);
    row.median("usable_share", &values(|run| run.usable_share), "ratio", &[MIN]);
    row.median("granted_mb", &values(|run| run.granted as f64 / MB as f64), "MB", &[MAX]);
    if subject == Subject::Tmalloc {
        row.value("failed", values(|run| run.failed as f64).iter().sum(), "processes");
    }
    Ok(())
}
