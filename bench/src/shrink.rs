//! Reclaim of idle buffers' memory while clients call: by the kernel's shrinkers, or by a daemon's.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::Client;
use control::binderd::{Reply, Request};

use crate::tracing::Trace;

/// 2 is written to this file: reclaimable slab objects, with which binder's shrinker is called as
/// well.
const DROP: &str = "/proc/sys/vm/drop_caches";
/// Tracepoint: a binder page was removed from the kernel's mapping. Both ways of keeping pages have
/// it.
const RECLAIMED: &str = "binder/binder_unmap_kernel_end";
/// Pause between two rounds of either kind.
const PAUSE: Duration = Duration::from_millis(5);

/// A thread that shrinks until it is stopped.
pub struct Shrinking {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Rounds>>,
    trace: Option<Trace>,
    started: Instant,
}

/// Counters of the thread.
#[derive(Clone, Copy, Default)]
struct Rounds {
    rounds: u64,
    /// Reclaimed pages; `None`: the kernel does not report them.
    pages: Option<u64>,
}

/// Result of the shrinking.
#[derive(Clone, Copy, Debug)]
pub struct Shrunk {
    /// Number of calls of all shrinkers, or of requests to the daemon.
    pub rounds: u64,
    /// Reclaimed binder pages per second; `None` if they could not be counted.
    pub pages_per_s: Option<f64>,
}

impl Shrinking {
    /// Starts to call the kernel's shrinkers. An error if that is not permitted.
    pub fn of_kernel() -> Result<Self> {
        let mut file = File::create(DROP).with_context(|| format!("cannot open {DROP}"))?;
        let trace = match Trace::start(RECLAIMED, "", &[]) {
            Ok(trace) => Some(trace),
            Err(why) => {
                eprintln!("pages_reclaimed_per_s: skipped: {why:#}");
                None
            }
        };
        let mut shrinking = Self::start(move || {
            file.write_all(b"2").with_context(|| format!("cannot write to {DROP}"))?;
            Ok(None)
        });
        shrinking.trace = trace;
        Ok(shrinking)
    }

    /// Starts to call the shrinker of the daemon with this control socket.
    pub fn of_daemon(socket: &Path) -> Result<Self> {
        let socket: PathBuf = socket.to_owned();
        let mut client = Client::connect(&socket).context("the daemon's control socket")?;
        Ok(Self::start(move || match client.call(&Request::Reclaim { pages: u64::MAX })? {
            Reply::Reclaimed { pages, .. } => Ok(Some(pages)),
            other => anyhow::bail!("{}: {other:?}", socket.display()),
        }))
    }

    fn start(mut shrink: impl FnMut() -> Result<Option<u64>> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut done = Rounds::default();
            while !stopped.load(Ordering::Relaxed) {
                if let Some(pages) = shrink()? {
                    *done.pages.get_or_insert(0) += pages;
                }
                done.rounds += 1;
                thread::sleep(PAUSE);
            }
            Ok(done)
        });
        Self { stop, thread, trace: None, started: Instant::now() }
    }

    /// Stops the thread.
    pub fn stop(self) -> Result<Shrunk> {
        self.stop.store(true, Ordering::Relaxed);
        let Rounds { rounds, pages } =
            self.thread.join().map_err(|_| anyhow::anyhow!("the shrinking thread panicked"))??;
        let seconds = self.started.elapsed().as_secs_f64();
        let traced = self.trace.map(|trace| trace.count()).transpose()?;
        let pages = pages.or(traced);
        Ok(Shrunk { rounds, pages_per_s: pages.map(|pages| pages as f64 / seconds) })
    }
}
