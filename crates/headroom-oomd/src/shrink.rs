//! The first step of the escalation: requests other daemons to release memory that they can do
//! without, before any process is killed.
//!
//! A dedicated thread sends the requests, so neither a slow nor a dead daemon delays a kill.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use control::binderd::{Reply, Request};
use control::{Client, ControlError};

/// Bytes per page, the unit of the replies.
const PAGE: u64 = 4096;
/// Pause after a round: a daemon that has just released memory has nothing new yet.
const PAUSE: Duration = Duration::from_millis(100);

/// Sends reclaim requests. Dropping it ends the thread after the pending reply.
pub struct Shrinker {
    requests: SyncSender<()>,
    given_bytes: Arc<AtomicU64>,
}

impl Shrinker {
    /// Starts the thread. Each reclaimer is the control socket of a `headroom-binderd`, which need
    /// not be running.
    pub fn start(reclaimers: Vec<PathBuf>) -> io::Result<Self> {
        // A capacity of one: a second request while one is queued has no further effect.
        let (sender, requests) = sync_channel(1);
        let given_bytes = Arc::new(AtomicU64::new(0));
        let sum = Arc::clone(&given_bytes);
        std::thread::Builder::new()
            .name("shrinker".into())
            .spawn(move || serve(&requests, &reclaimers, &sum))?;
        Ok(Self { requests: sender, given_bytes })
    }

    /// Requests a round of reclaim. Returns at once, and allocates nothing.
    pub fn shrink(&self) {
        // If the queue is full, a round is about to start.
        let _ = self.requests.try_send(());
    }

    /// Memory released since the start, bytes.
    pub fn given_bytes(&self) -> u64 {
        self.given_bytes.load(Ordering::Relaxed)
    }
}

fn serve(requests: &Receiver<()>, reclaimers: &[PathBuf], sum: &AtomicU64) {
    while requests.recv().is_ok() {
        for socket in reclaimers {
            let (given, ended) = shrink_one(socket);
            sum.fetch_add(given, Ordering::Relaxed);
            if given > 0 {
                tracing::info!(reclaimer = %socket.display(), given, "idle memory given back");
            }
            match ended {
                // A daemon that is not running is not an error.
                Ok(()) | Err(ControlError::NotListening { .. }) => {}
                Err(error) => tracing::warn!("cannot request idle memory: {error}"),
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Requests batches until no idle memory is left. Returns the bytes released, including those
/// before an error.
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
