//! The kernel's shrinkers, driven while clients call.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::tracing::Trace;

/// Written to it: reclaimable slab objects, which is where binder's shrinker is called as well.
const DROP: &str = "/proc/sys/vm/drop_caches";
/// A binder page that was taken from the kernel's mapping. Both ways of keeping pages have it.
const RECLAIMED: &str = "binder/binder_unmap_kernel_end";
/// Between two rounds.
const PAUSE: Duration = Duration::from_millis(5);

/// Shrinks until it is stopped.
pub struct Shrinking {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
    trace: Option<Trace>,
    started: Instant,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Shrunk {
    /// How often all shrinkers were called.
    pub rounds: u64,
    /// Binder pages that the kernel's driver gave back per second; `None` if nobody could count.
    pub pages_per_s: Option<f64>,
}

impl Shrinking {
    /// Begins. An error if we may not.
    pub fn start() -> Result<Self> {
        let mut file = File::create(DROP).with_context(|| format!("cannot open {DROP}"))?;
        let trace = match Trace::start(RECLAIMED, "", &[]) {
            Ok(trace) => Some(trace),
            Err(why) => {
                eprintln!("pages_reclaimed_per_s: skipped: {why:#}");
                None
            }
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut rounds = 0;
            while !stopped.load(Ordering::Relaxed) {
                file.write_all(b"2").with_context(|| format!("cannot write to {DROP}"))?;
                rounds += 1;
                thread::sleep(PAUSE);
            }
            Ok(rounds)
        });
        Ok(Self { stop, thread, trace, started: Instant::now() })
    }

    /// Ends.
    pub fn stop(self) -> Result<Shrunk> {
        self.stop.store(true, Ordering::Relaxed);
        let rounds =
            self.thread.join().map_err(|_| anyhow::anyhow!("the shrinking thread panicked"))??;
        let seconds = self.started.elapsed().as_secs_f64();
        let pages = self.trace.map(|trace| trace.count()).transpose()?;
        Ok(Shrunk { rounds, pages_per_s: pages.map(|pages| pages as f64 / seconds) })
    }
}
