//! Fate of processes that request more than their user's limit, and the cost of requests.

use anyhow::{Context, Result};
use bench::allocator_cost::{Case, Gate};
use bench::child::unused_uid;
use bench::oomd::Oomd;
use bench::report;
use bench::requesters::{MAX_PROCESSES, Plan, Run, Subject, run};
use bench::results::{End, Row};
use bench::statistics::estimate;
use clap::Parser;

const BENCH: &str = "tmalloc";
const MIB: u64 = 1 << 20;
const MB: u64 = 1_000_000;
const SIZES: [usize; 5] = [16, 256, 4096, 64 << 10, 1 << 20];
const THREADS: [usize; 2] = [1, 8];

/// Lets 1, 4 and 8 processes of one user allocate 1 GB each, in pieces of 4 KiB that they write to
/// and keep, under a limit of 16 MiB: once by malloc, which never fails, so that all are killed in
/// the end; once by tmalloc, which fails in time. Reports the kills, the maximum of pages above the
/// limit, and the usable share: the maximum share of the limit in use before a kill.
///
/// In every other run of tmalloc, a process whose allocation fails keeps its memory until all have
/// failed.
///
/// Then measures the cost: a pair of free and malloc with reservation over the same allocator
/// without, blocks of 16 B to 1 MiB, 1 and 8 threads. Needs root.
#[derive(Parser)]
struct Arguments {
    /// Runs of each number of processes, each with a fresh daemon
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Rounds of each cost; with and without reservation alternate
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The limit
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(8..=4096))]
    limit_mib: u64,
    /// Memory that each process requests, 10^6 bytes
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    wanted_mb: u64,
    /// Cases: numbers of processes
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [1, 4, 8],
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PROCESSES))
    )]
    processes: Vec<u16>,
    /// Stop when less memory than this is available, MiB
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
    /// One run of each case
    #[arg(long)]
    quick: bool,
    /// Internal: measure in this process, blocks of so many bytes in so many threads
    #[arg(long, num_args = 2, hide = true)]
    worker: Vec<usize>,
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if let [size, threads] = arguments.worker[..] {
        Case { size, threads }.run_worker();
        return Ok(());
    }
    if arguments.quick {
        (arguments.runs, arguments.rounds) = (1, 1);
    }
    anyhow::ensure!(rustix::process::geteuid().is_root(), "changing users needs root");
    for &processes in &arguments.processes {
        // The result of malloc is known; a few runs confirm it.
        for (subject, runs) in
            [(Subject::Malloc, arguments.runs.div_ceil(5)), (Subject::Tmalloc, arguments.runs)]
        {
            refusals(&arguments, processes, subject, runs)?;
        }
    }
    costs(&arguments)
}

/// Counts kills and the usable share of the limit.
fn refusals(arguments: &Arguments, processes: u16, subject: Subject, count: u32) -> Result<()> {
    let case = report::number(processes.into(), "process", "processes");
    let one = |number| {
        let plan = Plan {
            subject,
            processes: processes.into(),
            wanted: arguments.wanted_mb * MB,
            limit: arguments.limit_mib * MIB,
            keep_free_mib: arguments.keep_free_mib,
            hold: subject == Subject::Tmalloc && number % 2 == 1,
        };
        run(&plan).with_context(|| format!("{case}, {}", subject.name()))
    };
    let runs = (1..=count).map(one).collect::<Result<Vec<Run>>>()?;
    let values = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
    let mut row = Row::new(BENCH, &case, subject.name(), runs.len());
    row.median("kills", &values(|run| run.kills as f64), "processes", &[End::Max]);
    row.median("pages_over", &values(|run| run.pages_over as f64), "pages", &[End::Max]);
    row.median("usable_share", &values(|run| run.usable_share), "ratio", &[End::Min]);
    row.median("granted_mb", &values(|run| run.granted as f64 / MB as f64), "MB", &[End::Max]);
    if subject == Subject::Tmalloc {
        row.value("failed", values(|run| run.failed as f64).iter().sum(), "processes");
    }
    Ok(())
}

/// Alternates runs with and without the gate; the limit is far away.
fn costs(arguments: &Arguments) -> Result<()> {
    let uid = unused_uid();
    let oomd = Oomd::start("auto", &format!("[[limit]]\nuser = {uid}\nhard = \"6G\"\n"))?;
    let socket = oomd.lease_socket();
    for size in SIZES {
        for threads in THREADS {
            let case = Case { size, threads };
            let mut times = [Vec::new(), Vec::new()];
            for round in 0..arguments.rounds {
                // The second run finds warmer caches: the order alternates.
                let mut gates = [Gate::Off, Gate::On];
                gates.rotate_left(round as usize % 2);
                for gate in gates {
                    times[gate as usize].push(case.measure(uid, &socket, gate)?);
                }
            }
            print_cost(&case.name(), &times);
        }
    }
    Ok(())
}

/// Prints a ratio for each round, and their median: other load affects both sides alike.
fn print_cost(case: &str, [without, with]: &[Vec<f64>; 2]) {
    Row::new(BENCH, case, "malloc", without.len()).median("ns_per_pair", without, "ns", &[]);
    let mut row = Row::new(BENCH, case, "tmalloc", with.len());
    row.median("ns_per_pair", with, "ns", &[]);
    let ratios: Vec<f64> = with.iter().zip(without).map(|(with, without)| with / without).collect();
    if let Some(ratio) = estimate(&ratios) {
        row.estimate("cost_over_malloc", &ratio, "ratio");
    }
}
