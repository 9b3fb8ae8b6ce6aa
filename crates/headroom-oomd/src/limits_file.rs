//! The limits in force, in a file of the run folder, for a daemon that finds none in the kernel:
//! it has another version of the BPF programs than the one before it, or that one had no pins.
//!
//! A thread writes the file, at most once a second. An orderly end of the limits removes it.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, ensure};
use control::LIMITS_FILE;
use headroom_linux::clock::monotonic_ns;
use headroom_linux::folders::replace_file;
use headroom_linux::sched::leave_realtime;
use memory_ledger::NS_PER_MS;

use crate::clock::end_thread;
use crate::oom::{AfterExit, OomManager, SavedLimit};

/// Bytes: several times what the largest number of accounts takes. A longer file is not ours.
const MAX_BYTES: u64 = 16 << 20;
const INTERVAL_NS: u64 = 1000 * NS_PER_MS;
/// Timeout for writing the limits at exit.
const PATIENCE: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub struct LimitsFile {
    path: PathBuf,
    /// To the thread; `None` ends it.
    queue: SyncSender<Option<Vec<SavedLimit>>>,
    thread: Option<JoinHandle<()>>,
    /// Version of the ledger whose limits were written last.
    written: Option<u64>,
    /// When the next version may be written, nanoseconds.
    next_ns: u64,
}

impl LimitsFile {
    /// The file in this folder, and the limits that the daemon before this one has left in it.
    pub fn open(folder: &Path) -> io::Result<(Self, Vec<SavedLimit>)> {
        let path = folder.join(LIMITS_FILE);
        let left = read(&path).unwrap_or_else(|error| {
            tracing::warn!("{}: {error:#}; it is not read", path.display());
            Vec::new()
        });
        let (queue, limits) = sync_channel(1);
        let target = path.clone();
        let thread = std::thread::Builder::new()
            .name("limits".into())
            .stack_size(128 * 1024)
            .spawn(move || write_all(&target, &limits))?;
        Ok((Self { path, queue, thread: Some(thread), written: None, next_ns: 0 }, left))
    }

    /// Writes the limits if they have changed. Never blocks.
    pub fn follow(&mut self, oom: &OomManager) {
        let version = oom.accounts().ledger().version();
        if self.written == Some(version) || monotonic_ns() < self.next_ns {
            return;
        }
        if self.queue.try_send(Some(oom.save())).is_ok() {
            self.written = Some(version);
        }
        self.next_ns = monotonic_ns() + INTERVAL_NS;
    }

    /// When [`follow`](Self::follow) is due. `None`: once limits change.
    pub fn next_deadline_ns(&self, oom: &OomManager) -> Option<u64> {
        (self.written != Some(oom.accounts().ledger().version())).then_some(self.next_ns)
    }

    /// The daemon ends: writes the limits for the next one, or removes the file.
    pub fn end(&mut self, oom: &OomManager, after_exit: AfterExit) {
        let kept = (after_exit == AfterExit::KeepLimits).then(|| Some(oom.save()));
        end_thread(&self.queue, kept.into_iter().chain([None]), self.thread.take(), PATIENCE);
        if after_exit == AfterExit::EndLimits {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<SavedLimit>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file.context("cannot open it")?,
    };
    let found = file.metadata().context("cannot stat it")?;
    let own = rustix::process::geteuid().as_raw();
    ensure!(found.is_file() && found.uid() == own, "another user has made it");
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).context("cannot read it")?;
    serde_json::from_slice(&bytes).context("these are no limits")
}

fn write_all(path: &Path, limits: &Receiver<Option<Vec<SavedLimit>>>) {
    leave_realtime(0);
    while let Ok(Some(limits)) = limits.recv() {
        let written =
            replace_file(path, 0o600, |file| file.write_all(&serde_json::to_vec(&limits)?));
        if let Err(error) = written {
            let path = path.display();
            tracing::warn!(
                "{path}: {error}; a daemon with other BPF programs will not know the limits"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_list_of_limits_is_refused_and_a_missing_file_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LIMITS_FILE);
        assert_eq!(read(&path).unwrap().len(), 0);
        std::fs::write(&path, b"[{\"account\": 7}]").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("no limits"));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("cannot open it"));
    }
}
