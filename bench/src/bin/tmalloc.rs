//! What becomes of processes that ask for more than their user's limit.

use std::path::PathBuf;

use anyhow::{Context, Result};
use bench::askers::{MAX_PROCESSES, Plan, Run, Subject, run};
use bench::oomd;
use bench::progress::Progress;
use bench::results::Measurement;
use bench::statistics::estimate;
use clap::Parser;

const BENCH: &str = "tmalloc";
const SUBJECT: &str = "tmalloc";
const MIB: u64 = 1 << 20;
const MB: u64 = 1_000_000;

/// Has 1, 4 and 8 processes of one user ask for 1 GB each, in pieces of 4 KiB that they write to and
/// keep, under a limit of 16 MiB that headroom-oomd enforces.
///
/// They ask tmalloc, which refuses in time, and keep what they have until all were refused. Reported are
/// the kills; the pages above the limit, at most; and the usable share: how much of the limit was in
/// use when all had been refused. Needs root.
#[derive(Parser)]
struct Arguments {
    /// Runs of each case, each with a fresh daemon
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The limit
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(8..=4096))]
    limit_mib: u64,
    /// What each process asks for, 10^6 bytes
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    wanted_mb: u64,
    /// Cases: numbers of processes
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8], value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PROCESSES)))]
    processes: Vec<u16>,
    /// How headroom-oomd watches memory: auto, bpf or proc
    #[arg(long, default_value = "auto", value_parser = ["auto", "bpf", "proc"])]
    notifier: String,
    /// Memory to leave to others, MiB: stops when less is available
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
    /// The daemon; by default the headroom-oomd beside this program or in $HEADROOM_BIN_DIR
    #[arg(long)]
    daemon: Option<PathBuf>,
    /// One run of each case
    #[arg(long)]
    quick: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runs = if arguments.quick { 1 } else { arguments.runs };
    anyhow::ensure!(rustix::process::geteuid().is_root(), "changing users needs root");
    let program = oomd::program(arguments.daemon.clone())?;
    let mut progress = Progress::new(BENCH, arguments.processes.len() * runs as usize);
    let mut results = Vec::new();
    for &processes in &arguments.processes {
        let case = format!("{processes} process{}", if processes == 1 { "" } else { "es" });
        let plan = Plan {
            processes: processes.into(),
            wanted: arguments.wanted_mb * MB,
            limit: arguments.limit_mib * MIB,
            keep_free_mib: arguments.keep_free_mib,
            subject: Subject::Tmalloc,
            hold: true,
            replace_daemon: false,
        };
        let one = |number| {
            progress.step(&format!("{case}, run {number}"));
            run(&program, &arguments.notifier, &plan).with_context(|| case.clone())
        };
        let runs = (1..=runs).map(one).collect::<Result<Vec<Run>>>()?;
        results.push((case, runs));
    }
    drop(progress);
    eprintln!(
        "{:<12} {:<8} {:>16} {:>22} {:>20} {:>22}",
        "",
        "median",
        "kills (most)",
        "pages over (most)",
        "usable share (least)",
        "MB granted (most)"
    );
    for (case, runs) in &results {
        tell(case, runs);
    }
    Ok(())
}

fn tell(case: &str, runs: &[Run]) {
    let columns: [(&str, &str, &str, Vec<f64>); 4] = [
        ("kills", "_max", "processes", runs.iter().map(|run| run.kills as f64).collect()),
        ("pages_over", "_max", "pages", runs.iter().map(|run| run.pages_over as f64).collect()),
        ("usable_share", "_min", "ratio", runs.iter().map(|run| run.usable_share).collect()),
        (
            "granted_mb",
            "_max",
            "MB",
            runs.iter().map(|run| run.granted as f64 / MB as f64).collect(),
        ),
    ];
    let mut row = format!("{case:<12} {SUBJECT:<8}");
    for ((metric, end, unit, values), width) in columns.iter().zip([16, 22, 20, 22]) {
        let Some(e) = estimate(values) else { continue };
        let least = values.iter().copied().fold(f64::MAX, f64::min);
        let most = values.iter().copied().fold(f64::MIN, f64::max);
        let worst = if *end == "_min" { least } else { most };
        let decimals = if e.median.fract() == 0.0 && worst.fract() == 0.0 { 0 } else { 3 };
        row += &format!(" {:>width$}", format!("{:.decimals$} ({worst:.decimals$})", e.median));
        Measurement::new(BENCH, case, SUBJECT, metric, e.median, unit, e.runs).print();
        let metric = format!("{metric}{end}");
        Measurement::new(BENCH, case, SUBJECT, &metric, worst, unit, e.runs).print();
    }
    eprintln!("{row}");
}
