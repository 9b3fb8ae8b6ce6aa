//! The first step of the escalation: daemons that hold memory which they can do without are asked
//! to give it back, before anybody is killed.
//!
//! It happens in a thread of its own: neither a slow answer nor a dead daemon holds up a kill.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use control::binderd::{Reply, Request};
use control::{Client, ControlError};

/// Bytes of a page, the unit of the answers.
const PAGE: u64 = 4096;
/// Who has just given back has nothing new so soon.
const PAUSE: Duration = Duration::from_millis(100);

/// Asks reclaimers. Dropping it ends the thread once it has its answer.
pub struct Shrinker {
    ask: SyncSender<()>,
    given_bytes: Arc<AtomicU64>,
}

impl Shrinker {
    /// Starts the thread. Each reclaimer is the control socket of a `headroom-binderd`, which need
    /// not run.
    pub fn start(reclaimers: Vec<PathBuf>) -> io::Result<Self> {
        // Room for one: a second request while one waits asks for nothing more.
        let (ask, asked) = sync_channel(1);
        let given_bytes = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&given_bytes);
        std::thread::Builder::new()
            .name("shrinker".into())
            .spawn(move || serve(&asked, &reclaimers, &sum))?;
        Ok(Self { ask, given_bytes })
    }

    /// Memory is getting short. Returns at once, and allocates nothing.
    pub fn shrink(&self) {
        // Full: it is about to happen.
        let _ = self.ask.try_send(());
    }

    /// What was given back since the start, bytes.
    pub fn given_bytes(&self) -> u64 {
        self.given_bytes.load(Ordering::Relaxed)
    }
}

fn serve(asked: &Receiver<()>, reclaimers: &[PathBuf], sum: &AtomicU64) {
    while asked.recv().is_ok() {
        for socket in reclaimers {
            let (given, ended) = shrink_one(socket);
            sum.fetch_add(given, Ordering::Relaxed);
            if given > 0 {
                tracing::info!(reclaimer = %socket.display(), given, "idle memory given back");
            }
            match ended {
                // Not running is no fault.
                Ok(()) | Err(ControlError::NotListening { .. }) => {}
                Err(error) => tracing::warn!("cannot ask for idle memory: {error}"),
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Batch by batch until nothing idle is left. What came back, in bytes, also of one that fails
/// half-way.
fn shrink_one(socket: &Path) -> (u64, Result<(), ControlError>) {
    let mut given = 0;
    let ended = Client::connect(socket).and_then(|mut client| {
        loop {
            match client.call(&Request::Reclaim { pages: u64::MAX })? {
                Reply::Reclaimed { pages, idle_pages } => {
                    given += pages * PAGE;
                    if pages == 0 || idle_pages == 0 {
                        return Ok(());
                    }
                }
                other => {
                    tracing::warn!(reclaimer = %socket.display(), "{other:?}");
                    return Ok(());
                }
            }
        }
    });
    (given, ended)
}
