//! The first step of the escalation: memory that can be released before any process is killed.
//!
//! A dedicated thread requests other daemons to release memory that they can do without, so neither
//! a slow nor a dead daemon delays a kill.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use control::binderd::{PAGE_BYTES, Reclaimed, Reply, Request};
use control::{Client, ControlError};
use memory_ledger::AccountId;

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
                Reply::Reclaimed(Reclaimed { pages, idle_pages }) => {
                    given += pages * PAGE_BYTES;
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

/// Requests to daemons and clients that hold such memory.
#[derive(Default)]
pub(crate) struct Relief {
    /// Requests idle memory from other daemons.
    shrinker: Option<Shrinker>,
    /// Returns freed pages to where they count.
    per_cpu_lists: Option<PerCpuLists>,
    /// Accounts whose unused leases are to be taken back.
    pressed: BTreeSet<AccountId>,
}

impl Relief {
    pub(crate) fn new(shrinker: Option<Shrinker>, per_cpu_lists: Option<PerCpuLists>) -> Self {
        Self { shrinker, per_cpu_lists, pressed: BTreeSet::new() }
    }

    /// Requests idle memory from other daemons. Returns at once, and allocates nothing.
    pub(crate) fn shrink(&self) {
        if let Some(shrinker) = &self.shrinker {
            shrinker.shrink();
        }
    }

    /// Makes memory available that a victim has freed. Returns at once, and allocates nothing.
    pub(crate) fn collect_freed(&self) {
        if let Some(lists) = &self.per_cpu_lists {
            lists.empty();
        }
    }

    /// Marks accounts whose unused leases are to be taken back.
    pub(crate) fn press(&mut self, accounts: impl IntoIterator<Item = AccountId>) {
        self.pressed.extend(accounts);
    }

    pub(crate) fn take_pressed(&mut self) -> BTreeSet<AccountId> {
        std::mem::take(&mut self.pressed)
    }

    /// Memory released by other daemons since the start, bytes.
    pub(crate) fn given_bytes(&self) -> u64 {
        self.shrinker.as_ref().map_or(0, Shrinker::given_bytes)
    }
}

/// The file whose reading returns pages, below `/proc`.
const STAT_REFRESH: &str = "sys/vm/stat_refresh";
/// Readings for one request. Each returns up to 2,016 pages of a CPU (batch of 63, shifted by 5),
/// and at most an eighth of what it may keep.
const READINGS: u32 = 16;

/// Has the lists emptied by a thread in which freed pages wait on the CPUs that freed them, where
/// `MemAvailable` does not count them and other CPUs cannot have them. Dropping it ends the thread.
///
/// Since Linux 6.7 a CPU may keep 1/8 of its share of the memory so, and returns some MiB of it a
/// second. Reading `vm.stat_refresh` runs that step on each CPU at once. A dedicated thread reads,
/// since it waits until each CPU has run it.
pub struct PerCpuLists {
    requests: SyncSender<()>,
}

impl PerCpuLists {
    /// Starts the thread; `proc` is where procfs is mounted.
    pub fn start(proc: &Path) -> io::Result<Self> {
        // A capacity of one: a second request while one is queued has no further effect.
        let (sender, requests) = sync_channel(1);
        let file = proc.join(STAT_REFRESH);
        std::thread::Builder::new()
            .name("per-cpu-lists".into())
            .spawn(move || read_for_each(&requests, &file))?;
        Ok(Self { requests: sender })
    }

    /// Requests that the lists are emptied. Returns at once, and allocates nothing.
    pub fn empty(&self) {
        // If the queue is full, the lists are about to be emptied.
        let _ = self.requests.try_send(());
    }
}

fn read_for_each(requests: &Receiver<()>, file: &PathBuf) {
    while requests.recv().is_ok() {
        // Where the file cannot be read (a container) the kernel returns the pages in its own time.
        let _ = (0..READINGS).try_for_each(|_| std::fs::read(file).map(drop));
    }
}
