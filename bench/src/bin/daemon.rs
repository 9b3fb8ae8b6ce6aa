//! Resources of headroom-oomd itself: memory, CPU time when idle, time until it is ready.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bench::child::unused_uid;
use bench::machine::process_cpu_ns;
use bench::oomd::Oomd;
use bench::results::Row;
use clap::Parser;
use control::Uid;
use headroom_linux::machine_memory::bytes_of;

const BENCH: &str = "daemon";
/// Time that each daemon is idle.
const IDLE: Duration = Duration::from_secs(4);
/// Numbers of limited users, and what the results call them.
const CASES: [(u32, &str); 3] = [(0, "no limit"), (1, "1 user limited"), (64, "64 users limited")];

/// Starts a private headroom-oomd with no limit, one, and 64 limits, and measures the time until it
/// replies, with all limits in force, its memory when idle, and its CPU time when idle. Triggers
/// of the machine are off. Needs root.
#[derive(Parser)]
struct Arguments {
    /// Daemons that are started in each case
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
}

/// Results of one daemon.
#[derive(Default)]
struct Found {
    start_ms: Vec<f64>,
    rss_kib: Vec<f64>,
    own_kib: Vec<f64>,
    idle_percent: Vec<f64>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mut found = CASES.map(|_| Found::default());
    for _ in 0..arguments.runs {
        for ((users, _), found) in CASES.iter().zip(&mut found) {
            measure(*users, found)?;
        }
    }
    for ((_, case), found) in CASES.iter().zip(&found) {
        let mut row = Row::new(BENCH, case, "headroom-oomd", arguments.runs as usize);
        row.median("start_ms", &found.start_ms, "ms", &[]);
        row.median("rss_kib", &found.rss_kib, "KiB", &[]);
        row.median("own_kib", &found.own_kib, "KiB", &[]);
        row.median("idle_cpu_percent", &found.idle_percent, "%", &[]);
    }
    Ok(())
}

fn measure(users: u32, found: &mut Found) -> Result<()> {
    let Uid(first) = unused_uid();
    let limits: String = (0..users)
        .map(|user| format!("[[limit]]\nuser = {}\nhard = \"256M\"\n", first + user))
        .collect();
    let begun = Instant::now();
    let daemon = Oomd::start("auto", &limits)?;
    found.start_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    // The first scans, and the growth of memory that they cause, are over.
    std::thread::sleep(Duration::from_secs(1));
    let (before, since) = (process_cpu_ns(daemon.pid())?, Instant::now());
    std::thread::sleep(IDLE);
    let used = process_cpu_ns(daemon.pid())? - before;
    found.idle_percent.push(used as f64 / since.elapsed().as_nanos() as f64 * 100.0);
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid()))?;
    let kib = |name: &str| -> Result<f64> {
        let bytes = bytes_of(&status, name).with_context(|| format!("no {name} in its status"))?;
        Ok(bytes as f64 / 1024.0)
    };
    found.rss_kib.push(kib("VmRSS")?);
    found.own_kib.push(kib("RssAnon")?);
    Ok(())
}
