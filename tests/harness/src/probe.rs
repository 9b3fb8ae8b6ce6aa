//! The delay of wake-ups under `SCHED_FIFO`: what the machine itself adds to a latency.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use headroom_linux::sched::SchedAttr;

/// Of the probe, and of the programs whose latency is measured: the daemon may delay them, but not
/// other programs' use of the CPU.
pub const REALTIME: SchedAttr = SchedAttr::fifo(1);
/// Passes with a larger part of stolen time say nothing about the daemon.
pub const MAX_STEAL: f64 = 0.02;
/// Between two wake-ups.
const INTERVAL: Duration = Duration::from_micros(500);

/// Gives the calling thread the probe's priority.
pub fn set_realtime() -> Result<()> {
    REALTIME.apply(None).context("SCHED_FIFO")
}

/// By how much sleeps were too long, nanoseconds.
pub fn delays_until(ended: &AtomicBool) -> Result<Vec<u64>> {
    set_realtime()?;
    let mut delays = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        sleep(INTERVAL);
        delays.push(begun.elapsed().saturating_sub(INTERVAL).as_nanos() as u64);
    }
    Ok(delays)
}

/// CPU time of the machine since its start, ticks.
pub struct Steal {
    stolen: u64,
    all: u64,
}

impl Steal {
    /// Reads it.
    pub fn now() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
        let fields = line.context("/proc/stat: no line `cpu`")?.split_ascii_whitespace();
        let ticks = fields.map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user's.
        let [.., stolen] = ticks.get(..8).context("/proc/stat: no stolen time")? else {
            bail!("/proc/stat: no stolen time");
        };
        Ok(Self { stolen: *stolen, all: ticks[..8].iter().sum() })
    }

    /// The part of the time since then that the hypervisor took.
    pub fn since(&self, before: &Self) -> f64 {
        (self.stolen - before.stolen) as f64 / (self.all - before.all).max(1) as f64
    }
}
