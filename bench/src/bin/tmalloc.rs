//! Fate of processes that request more than their user's limit, and the cost of requests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bench::allocator_cost::{Case, Gate, round_trips, wall_time};
use bench::child::unused_uid;
use bench::oomd::{self, Oomd};
use bench::progress::Progress;
use bench::requesters::{MAX_PROCESSES, Plan, Run, Subject, run};
use bench::results::{Key, Measurement, Value};
use bench::statistics::estimate;
use clap::Parser;
use control::Uid;

const BENCH: &str = "tmalloc";
const MIB: u64 = 1 << 20;
const MB: u64 = 1_000_000;
const SIZES: [usize; 5] = [16, 256, 4096, 64 << 10, 1 << 20];
const THREADS: [usize; 2] = [1, 8];
const PRELOAD: &str = "libtmalloc_preload.so";

/// Lets 1, 4 and 8 processes of one user allocate 1 GB each, in pieces of 4 KiB that they write to
/// and keep, under a limit of 16 MiB: once by malloc, which never fails, so that all are killed in
/// the end; once by tmalloc, which fails in time. Reports the kills, the maximum of pages above the
/// limit, and the usable share: the maximum share of the limit in use before a kill.
///
/// In every other run of tmalloc, a process whose allocation fails keeps its memory until all have
/// failed; with --replace-daemon the daemon is killed in the middle of each run and replaced.
///
/// Then measures the cost: a pair of free and malloc with reservation over the same allocator
/// without, blocks of 16 B to 1 MiB, 1 and 8 threads; requests to the daemon per second; a Python
/// script and a compiler with the preloaded library over those without. Needs root.
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
    /// Kill the daemon in the middle of each run of tmalloc, and start another
    #[arg(long)]
    replace_daemon: bool,
    /// Do not measure the cost
    #[arg(long)]
    no_cost: bool,
    /// Source of memory events: auto, bpf or proc
    #[arg(long, default_value = "auto", value_parser = ["auto", "bpf", "proc"])]
    notifier: String,
    /// Stop when less memory than this is available, MiB
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
    /// The daemon; by default the headroom-oomd beside this program or in $HEADROOM_BIN_DIR
    #[arg(long)]
    daemon: Option<PathBuf>,
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
        match size {
            0 => println!("{}", round_trips(threads)?),
            size => Case { size, threads }.run_worker(),
        }
        return Ok(());
    }
    if arguments.quick {
        (arguments.runs, arguments.rounds) = (1, 1);
    }
    anyhow::ensure!(rustix::process::geteuid().is_root(), "changing users needs root");
    let program = oomd::program(arguments.daemon.clone())?;
    refusals(&arguments, &program)?;
    if !arguments.no_cost {
        costs(&arguments, &program)?;
    }
    Ok(())
}

/// Counts kills and the usable share of the limit.
fn refusals(arguments: &Arguments, program: &Path) -> Result<()> {
    // The result of malloc is known; a few runs confirm it.
    let runs_of = |subject| match subject {
        Subject::Malloc => arguments.runs.div_ceil(5),
        Subject::Tmalloc => arguments.runs,
    };
    let subjects = [Subject::Malloc, Subject::Tmalloc];
    let total: u32 = subjects.into_iter().map(runs_of).sum();
    let mut progress = Progress::new(BENCH, arguments.processes.len() * total as usize);
    let mut results = Vec::new();
    for &processes in &arguments.processes {
        let case = format!("{processes} process{}", if processes == 1 { "" } else { "es" });
        for subject in subjects {
            let mut runs = Vec::new();
            for number in 1..=runs_of(subject) {
                progress.step(&format!("{case}, {}, run {number}", subject.name()));
                let plan = Plan {
                    subject,
                    processes: processes.into(),
                    wanted: arguments.wanted_mb * MB,
                    limit: arguments.limit_mib * MIB,
                    keep_free_mib: arguments.keep_free_mib,
                    hold: subject == Subject::Tmalloc && number % 2 == 1,
                    replace_daemon: subject == Subject::Tmalloc && arguments.replace_daemon,
                };
                let done = run(program, &arguments.notifier, &plan);
                runs.push(done.with_context(|| case.clone())?);
            }
            results.push((case.clone(), subject, runs));
        }
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
    for (case, subject, runs) in &results {
        print_results(case, subject.name(), runs);
    }
    Ok(())
}

fn print_results(case: &str, subject: &str, runs: &[Run]) {
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
    let mut row = format!("{case:<12} {subject:<8}");
    for ((metric, end, unit, values), width) in columns.iter().zip([16, 22, 20, 22]) {
        let Some(e) = estimate(values) else { continue };
        let least = values.iter().copied().fold(f64::MAX, f64::min);
        let most = values.iter().copied().fold(f64::MIN, f64::max);
        let worst = if *end == "_min" { least } else { most };
        let decimals = if e.median.fract() == 0.0 && worst.fract() == 0.0 { 0 } else { 3 };
        row += &format!(" {:>width$}", format!("{:.decimals$} ({worst:.decimals$})", e.median));
        Measurement::new(
            Key { bench: BENCH, case, subject, metric },
            Value { value: e.median, unit, runs: e.runs },
        )
        .print();
        let metric = format!("{metric}{end}");
        Measurement::new(
            Key { bench: BENCH, case, subject, metric: &metric },
            Value { value: worst, unit, runs: e.runs },
        )
        .print();
    }
    if subject == Subject::Tmalloc.name() {
        let other: usize = runs.iter().map(|run| run.failed).sum();
        Measurement::new(
            Key { bench: BENCH, case, subject, metric: "failed" },
            Value { value: other as f64, unit: "processes", runs: runs.len() },
        )
        .print();
    }
    eprintln!("{row}");
}

/// Alternates runs with and without the gate; the limit is far away.
fn costs(arguments: &Arguments, program: &Path) -> Result<()> {
    let uid = unused_uid();
    let limit = format!("[[limit]]\nuser = {uid}\nhard = \"6G\"\n");
    let oomd = Oomd::start_with(program, &arguments.notifier, &limit)?;
    let socket = oomd.lease_socket();
    eprintln!(
        "{:<20} {:>14} {:>14} {:>18}",
        "ns a pair, median", "without", "with", "ratio (95 %)"
    );
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
            print_cost(&case.name(), "ns_per_pair", "ns", &times);
        }
    }
    let requested = Case { size: 0, threads: if arguments.quick { 100 } else { 20_000 } };
    let rate = requested.measure(uid, &socket, Gate::On)?;
    eprintln!("{:<20} {rate:>14.0} a second", "questions");
    let name = "questions to the daemon";
    Measurement::new(
        Key { bench: BENCH, case: name, subject: "tmalloc", metric: "per_second" },
        Value { value: rate, unit: "1/s", runs: requested.threads },
    )
    .print();
    programs(arguments, uid, &socket)
}

/// Prints a ratio for each round, and their median: other load affects both sides alike.
fn print_cost(case: &str, metric: &str, unit: &str, times: &[Vec<f64>; 2]) {
    let [without, with] = times;
    let ratios: Vec<f64> = with.iter().zip(without).map(|(with, without)| with / without).collect();
    let (Some(a), Some(b), Some(ratio)) = (estimate(without), estimate(with), estimate(&ratios))
    else {
        return;
    };
    Measurement::new(
        Key { bench: BENCH, case, subject: "malloc", metric },
        Value { value: a.median, unit, runs: a.runs },
    )
    .print();
    Measurement::new(
        Key { bench: BENCH, case, subject: "tmalloc", metric },
        Value { value: b.median, unit, runs: b.runs },
    )
    .print();
    let ratio_of = b.median / a.median;
    Measurement::new(
        Key { bench: BENCH, case, subject: "tmalloc", metric: "cost_over_malloc" },
        Value { value: ratio_of, unit: "ratio", runs: ratio.runs },
    )
    .print();
    eprintln!(
        "{case:<20} {:>14.3} {:>14.3} {:>18}",
        a.median,
        b.median,
        format!("{ratio_of:.3} ({:.3}-{:.3})", ratio.low, ratio.high)
    );
}

/// Whole programs, unmodified, with and without the preloaded library.
fn programs(arguments: &Arguments, uid: Uid, socket: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("a folder for the programs")?;
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), all)?;
    let beside = std::env::current_exe()?.with_file_name(PRELOAD);
    if !beside.exists() {
        eprintln!("{} is missing, so no programs: build tmalloc-preload", beside.display());
        return Ok(());
    }
    let library = folder.path().join(PRELOAD);
    std::fs::copy(&beside, &library).with_context(|| beside.display().to_string())?;
    std::fs::write(folder.path().join("script.py"), PYTHON)?;
    std::fs::write(
        folder.path().join("program.c"),
        c_program(if arguments.quick { 40 } else { 2500 }),
    )?;
    let python = if arguments.quick { "1" } else { "12" };
    let cases: [(&str, &[&str]); 2] = [
        ("Python script", &["/usr/bin/python3", "script.py", python]),
        ("C compiler", &["cc", "-O1", "-c", "program.c", "-o", "/dev/null"]),
    ];
    for (name, command) in cases {
        let mut times = [Vec::new(), Vec::new()];
        let preload: [(&str, &Path); 2] =
            [("LD_PRELOAD", &library), ("HEADROOM_LEASE_SOCKET", socket)];
        let warm = wall_time(command, uid, folder.path(), &[]);
        if let Err(error) = warm {
            eprintln!("{name}: left out: {error:#}");
            continue;
        }
        for round in 0..arguments.rounds {
            for with in [round % 2 == 0, round % 2 == 1] {
                let variables: &[(&str, &Path)] = if with { &preload } else { &[] };
                let time = wall_time(command, uid, folder.path(), variables)?;
                times[usize::from(with)].push(time);
            }
        }
        print_cost(name, "wall_s", "s", &times);
    }
    Ok(())
}

/// Dictionaries, lists, strings, sorting: the usual operations of scripts.
const PYTHON: &str = "\
import json, sys
for turn in range(int(sys.argv[1])):
    rows = [{'id': i, 'name': 'row %d' % (i * 7919 % 10007),
             'tags': [str(i % k) for k in range(1, 6)]} for i in range(20000)]
    rows.sort(key=lambda row: row['name'])
    text = json.dumps(rows)
    back = json.loads(text)
    words = {}
    for row in back:
        for tag in row['tags']:
            words[tag] = words.get(tag, 0) + 1
    assert len(back) == len(rows)
";

/// A C program with this number of functions, as work for a compiler.
fn c_program(functions: usize) -> String {
    let one = |n: usize| {
        format!(
            "static int f{n}(int a, int b) {{ int s = {n}; for (int i = 0; i < a; i++) \
             {{ s += (i ^ b) * {n}; if (s % 7 == i % 3) s -= b << (i & 3); }} return s; }}\n\
             int g{n}(int *p, int n) {{ int s = 0; while (n--) s += f{n}(p[n], n) ^ p[s & 1]; \
             return s; }}\n"
        )
    };
    (0..functions).map(one).collect()
}
