//! Freed pages that wait in lists of the CPUs that freed them, where `MemAvailable` does not count
//! them and other CPUs cannot have them.
//!
//! Since Linux 6.7 a CPU may keep 1/8 of its share of the memory so, and returns some MiB of it a
//! second. Reading `vm.stat_refresh` runs that step on each CPU at once. A dedicated thread reads,
//! since it waits until each CPU has run it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// The file whose reading returns pages, below `/proc`.
const STAT_REFRESH: &str = "sys/vm/stat_refresh";
/// Readings for one request. Each returns up to 2,016 pages of a CPU (batch of 63, shifted by 5),
/// and at most an eighth of what it may keep.
const READINGS: u32 = 16;

/// Has the lists emptied by a thread. Dropping it ends the thread.
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
            .spawn(move || serve(&requests, &file))?;
        Ok(Self { requests: sender })
    }

    /// Requests that the lists are emptied. Returns at once, and allocates nothing.
    pub fn empty(&self) {
        // If the queue is full, the lists are about to be emptied.
        let _ = self.requests.try_send(());
    }
}

fn serve(requests: &Receiver<()>, file: &PathBuf) {
    while requests.recv().is_ok() {
        // Where the file cannot be read (a container) the kernel returns the pages in its own time.
        let _ = (0..READINGS).try_for_each(|_| fs::read(file).map(drop));
    }
}
