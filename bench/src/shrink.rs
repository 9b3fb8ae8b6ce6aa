//! Reclaim of idle buffers' memory while clients call: by the kernel's shrinkers, or by a daemon's.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use control::Client;
use control::binderd::{Reply, Request};

/// 2 is written to this file: reclaimable slab objects, with which binder's shrinker is called as
/// well.
const DROP: &str = "/proc/sys/vm/drop_caches";
/// Pause between two rounds of either kind.
const PAUSE: Duration = Duration::from_millis(5);

/// A thread that shrinks until it is stopped.
pub struct Shrinking {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Shrinking {
    /// Starts to call the kernel's shrinkers. An error if that is not permitted.
    pub fn of_kernel() -> Result<Self> {
        let mut file = File::create(DROP).with_context(|| format!("cannot open {DROP}"))?;
        Ok(Self::start(move || {
            file.write_all(b"2").with_context(|| format!("cannot write to {DROP}"))
        }))
    }

    /// Starts to call the shrinker of the daemon with this control socket.
    pub fn of_daemon(socket: &Path) -> Result<Self> {
        let socket: PathBuf = socket.to_owned();
        let mut client = Client::connect(&socket).context("the daemon's control socket")?;
        Ok(Self::start(move || match client.call(&Request::Reclaim { pages: u64::MAX })? {
            Reply::Reclaimed(_) => Ok(()),
            other => anyhow::bail!("{}: {other:?}", socket.display()),
        }))
    }

    fn start(mut shrink: impl FnMut() -> Result<()> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                shrink()?;
                thread::sleep(PAUSE);
            }
            Ok(())
        });
        Self { stop, thread }
    }

    /// Stops the thread. An error if it could not shrink.
    pub fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the shrinking thread panicked"))?
    }
}
