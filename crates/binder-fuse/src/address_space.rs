//! Detects that the address space which a receive buffer is mapped in no longer exists.
//!
//! `execve(2)` and the exit of the opener end it, while the open can remain. No event reports an
//! `execve`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use headroom_linux::kept_fd::KeptFd;
use serde::{Deserialize, Serialize};

/// While a reader waits, the address space is checked once in this time: a waiting reader is most
/// likely a thread of it.
const INTERVAL: Duration = Duration::from_millis(1);

/// Whether a thread waits in a read of the open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    Waiting,
    NoneWaiting,
}

/// The address space that a receive buffer is mapped in.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    /// Refers to the address space without keeping it alive. `None`: it no longer exists, or cannot
    /// be checked.
    pagemap: Option<File>,
    exists: bool,
    checked: Option<Instant>,
}

/// An [`AddressSpace`] in a state.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SavedAddressSpace {
    pagemap: Option<KeptFd>,
    exists: bool,
}

impl SavedAddressSpace {
    pub(crate) fn descriptor(&self) -> Option<KeptFd> {
        self.pagemap
    }

    /// # Safety
    ///
    /// As for [`KeptFd::take`].
    pub(crate) unsafe fn restore(self) -> io::Result<AddressSpace> {
        // SAFETY: as guaranteed by the caller.
        let pagemap = self.pagemap.map(|fd| unsafe { fd.take() }).transpose()?;
        Ok(AddressSpace { pagemap: pagemap.map(File::from), exists: self.exists, checked: None })
    }
}

impl AddressSpace {
    pub(crate) fn save(&self) -> SavedAddressSpace {
        SavedAddressSpace { pagemap: self.pagemap.as_ref().map(KeptFd::of), exists: self.exists }
    }

    /// The current one of a process or thread, whose folder in `/proc` is `task`. Waits while it is
    /// in execve.
    pub(crate) fn of(task: &Path) -> Self {
        // A kernel without CONFIG_PROC_PAGE_MONITOR has no such file.
        let pagemap = File::open(task.join("pagemap")).ok();
        Self { pagemap, exists: true, checked: None }
    }

    pub(crate) fn exists(&mut self, readers: Readers) -> bool {
        let Some(pagemap) = &self.pagemap else { return self.exists };
        let now = Instant::now();
        let is_recent = self.checked.is_some_and(|checked| now - checked < INTERVAL);
        if readers == Readers::Waiting && is_recent {
            return true;
        }
        self.checked = Some(now);
        // A read that is not aligned fails with EINVAL without touching the address space; that of
        // one that no longer exists returns nothing.
        if let Ok(0) = pagemap.read_at(&mut [0; 1], 0) {
            self.exists = false;
            self.pagemap = None;
        }
        self.exists
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn execve_and_exit_end_an_address_space() {
        let mut own = AddressSpace::of(Path::new("/proc/self"));
        assert!(own.pagemap.is_some() && own.exists(Readers::NoneWaiting));
        let mut child = Command::new("sh")
            .args(["-c", "echo begun; read line; exec sh -c 'echo replaced; read line'"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut input = child.stdin.take().unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let task = PathBuf::from(format!("/proc/{}", child.id()));
        let mut first = AddressSpace::of(&task);
        assert!(first.exists(Readers::NoneWaiting));
        std::io::Write::write_all(&mut input, b"go\n").unwrap();
        output.read_line(&mut line).unwrap();
        let mut second = AddressSpace::of(&task);
        std::thread::sleep(INTERVAL);
        assert!(!first.exists(Readers::Waiting) && second.exists(Readers::NoneWaiting));
        drop(input);
        child.wait().unwrap();
        assert!(!second.exists(Readers::NoneWaiting));
    }
}
