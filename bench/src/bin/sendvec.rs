//! Vectors of 4 B to 64 KiB echoed, on an idle machine and under memory stress.

use anyhow::Result;
use bench::devices::{self, DeviceArguments};
use bench::measure::{Subject, Summary, block, message};
use bench::pingpong;
use bench::report::bytes;
use bench::results::Row;
use bench::statistics::{estimate, median, ratios};
use bench::stressor::{self, Stressor};
use bench::{affinity, machine, peer};
use clap::Parser;

const BENCH: &str = "sendvec";
const CONDITIONS: [&str; 2] = ["idle", "stress"];
/// With less memory than this, MiB, the stress has no measurable effect.
const LEAST_STRESS_MIB: u64 = 64;

/// Times echoes of vectors, idle and under memory stress.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    devices: DeviceArguments,
    /// The core of all processes but the memory stressor.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Memory that the stressor allocates, MiB; 0: no stress.
    #[arg(long, default_value_t = 2048)]
    stress_mib: u64,
    /// Memory that must stay available, MiB: the stressor allocates less if necessary.
    #[arg(long, default_value_t = 4096)]
    keep_free_mib: u64,
    /// Pairs of sweeps, one idle and one under stress.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Echoes of each size in a sweep.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    block: u32,
}

/// Results of one subject for one size under one condition.
#[derive(Clone, Default)]
struct Cell {
    /// Times, nanoseconds, by sweep.
    blocks: Vec<Vec<u64>>,
    /// CPU time of all processes that take part, nanoseconds.
    cpu: u64,
}

/// By subject, size and condition.
type Cells = Vec<Vec<[Cell; 2]>>;

fn main() -> Result<()> {
    let peer = peer::serve(|words| match words {
        [stressor::KIND, mib, core] => stressor::serve(mib, core),
        rest => pingpong::serve(rest),
    });
    peer.unwrap_or_else(|| run(&Arguments::parse()))
}

fn run(arguments: &Arguments) -> Result<()> {
    arguments.devices.prepare()?;
    let sizes: Vec<usize> = (2..=16).map(|power| 1 << power).collect();
    // Before this thread is pinned: the stressor must be free to run on other cores.
    let mut stressor = start_stressor(arguments)?;
    affinity::pin(arguments.cpu)?;
    affinity::be_eager();
    let devices = arguments.devices.open(Some(arguments.cpu))?;
    let mut subjects = pingpong::subjects(arguments.cpu, &devices)?;
    let mut cells: Cells = vec![vec![Default::default(); sizes.len()]; subjects.len()];
    let mut warm_up = cells.clone();
    sweep(&mut subjects, &sizes, arguments.block, 0, &mut warm_up)?;
    for pair in 0..arguments.pairs {
        // Idle and stress alternate, as does which of them is first, so that drift affects both
        // alike.
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for condition in order {
            match (&mut stressor, condition) {
                (None, 1) => continue,
                (Some(stressor), 1) => {
                    stressor.go()?;
                    sweep(&mut subjects, &sizes, arguments.block, 1, &mut cells)?;
                    stressor.rest()?;
                }
                _ => sweep(&mut subjects, &sizes, arguments.block, 0, &mut cells)?,
            }
        }
    }
    print_results(&sizes, &subjects, &cells);
    drop(subjects);
    devices::close(devices)
}

fn start_stressor(arguments: &Arguments) -> Result<Option<Stressor>> {
    if arguments.stress_mib == 0 {
        return Ok(None);
    }
    let available = machine::available_mib()?;
    let mib = stressor::allowance_mib(arguments.stress_mib, available, arguments.keep_free_mib);
    if mib < LEAST_STRESS_MIB {
        eprintln!(
            "no memory stress: {available} MiB are available and {} stay free (--keep-free-mib)",
            arguments.keep_free_mib
        );
        return Ok(None);
    }
    if mib < arguments.stress_mib {
        eprintln!("the memory stressor eats {mib} MiB only, to leave some free (--keep-free-mib)");
    }
    let stressor = Stressor::start(mib, arguments.cpu)?;
    Ok(Some(stressor))
}

/// Measures all sizes once; the subjects alternate within each size.
fn sweep(
    subjects: &mut [Box<dyn Subject>],
    sizes: &[usize],
    runs: u32,
    condition: usize,
    cells: &mut Cells,
) -> Result<()> {
    for (at, size) in sizes.iter().enumerate() {
        let message = message(*size);
        let mut reply = vec![0; *size];
        for (subject, cells) in subjects.iter_mut().zip(&mut *cells) {
            let helpers = subject.helpers();
            let cell = &mut cells[at][condition];
            // The first echoes after another subject's block warm the caches.
            block(subject.as_mut(), runs as usize / 10, &message, &mut reply)?;
            let before = cpu(&helpers)?;
            let times = block(subject.as_mut(), runs as usize, &message, &mut reply)?;
            let after = cpu(&helpers)?;
            cell.blocks.push(times);
            cell.cpu += after - before;
        }
    }
    Ok(())
}

/// CPU time of this thread and of the helper processes.
fn cpu(helpers: &[u32]) -> Result<u64> {
    let others = helpers.iter().map(|pid| machine::process_cpu_ns(*pid)).sum::<Result<u64>>()?;
    Ok(machine::thread_cpu_ns()? + others)
}

/// Ratio of stress to idle, by sweep.
fn paired([idle, stress]: &[Cell; 2]) -> Vec<f64> {
    Summary::of_blocks(&stress.blocks).over(&Summary::of_blocks(&idle.blocks))
}

/// Ratio of stress to idle, the median of all sizes, by pair of sweeps: the sizes of one sweep are
/// not independent of each other, the pairs are.
fn by_pair(cells: &[[Cell; 2]]) -> Vec<f64> {
    let sizes: Vec<Vec<f64>> = cells.iter().map(paired).collect();
    let pairs = sizes.iter().map(Vec::len).min().unwrap_or(0);
    let of_pair = |pair: usize| sizes.iter().map(|size| size[pair]).collect::<Vec<f64>>();
    (0..pairs).filter_map(|pair| median(&of_pair(pair))).collect()
}

fn print_results(sizes: &[usize], subjects: &[Box<dyn Subject>], cells: &Cells) {
    let socket = cells.first().map_or(Vec::new(), |cells| by_pair(cells));
    for (at, (subject, cells)) in subjects.iter().zip(cells).enumerate() {
        let name = subject.name();
        for (size, cells) in sizes.iter().zip(cells) {
            print_size(&bytes(*size), name, cells);
        }
        let stress = by_pair(cells);
        print_ratio("all", name, "stress_over_idle", &stress);
        if at > 0 {
            // Load of other programs and changes of the CPU clock affect the socket as well.
            let over = ratios(&stress, &socket);
            print_ratio("all", name, "stress_over_idle_over_seqpacket", &over);
        }
    }
}

fn print_size(size: &str, name: &str, cells: &[Cell; 2]) {
    for (condition, cell) in CONDITIONS.iter().zip(cells) {
        let s = Summary::of_blocks(&cell.blocks);
        if s.runs > 0 {
            let case = format!("{size} {condition}");
            let mut row = Row::new(BENCH, &case, name, s.runs);
            row.value("echo_us_p50", s.p50, "us");
            row.value("echo_us_p99", s.p99, "us");
            row.value("cpu_us", cell.cpu as f64 / s.runs as f64 / 1000.0, "us");
        }
    }
    print_ratio(size, name, "stress_over_idle", &paired(cells));
}

fn print_ratio(case: &str, name: &str, metric: &str, ratios: &[f64]) {
    if let Some(ratio) = estimate(ratios) {
        Row::new(BENCH, case, name, ratio.runs).estimate(metric, &ratio, "ratio");
    }
}
