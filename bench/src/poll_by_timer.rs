//! A baseline for the notifier that polls: a timer, which reads all of `/proc` at each tick.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::{machine, walk};

/// Interval of the ticks: that of the published timer.
pub const PERIOD: Duration = Duration::from_millis(200);

/// A thread that scans all processes at each tick, until dropped.
pub struct LookByTimer {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LookByTimer {
    /// Starts the thread on the cores of the calling thread. Its first tick is at a random time
    /// within a period, since the measured work may be shorter than one.
    pub fn start() -> Result<Self> {
        let (end, ended) = channel();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let first = Duration::from_nanos(u64::from(now.subsec_nanos()) % PERIOD.as_nanos() as u64);
        let thread = std::thread::Builder::new().name("timer".into());
        let thread = thread.spawn(move || tick(first, &ended)).context("no thread")?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

/// CPU time of a scan, nanoseconds: the mean of `looks` scans.
pub fn cost_ns(looks: u32) -> Result<f64> {
    let before = machine::thread_cpu_ns()?;
    for _ in 0..looks {
        walk::walk()?;
    }
    Ok((machine::thread_cpu_ns()? - before) as f64 / f64::from(looks))
}

fn tick(first: Duration, ended: &Receiver<()>) {
    let mut pause = first;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        // Errors are ignored: `cost_ns` has already run a scan successfully.
        let _ = walk::walk();
        pause = PERIOD;
    }
}

impl Drop for LookByTimer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_has_a_cost_and_the_timer_ends_on_request() {
        assert!(cost_ns(2).unwrap() > 0.0);
        drop(LookByTimer::start().unwrap());
    }
}
