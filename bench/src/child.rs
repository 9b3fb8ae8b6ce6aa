//! A child process that another process may kill at any time.

use std::ops::Deref;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use control::Uid;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};

/// The child; killed and reaped on drop. Its pid is not reused before that.
pub struct Child {
    pid: libc::pid_t,
}

impl Child {
    /// Starts a program.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = command.spawn();
        let child = child.with_context(|| format!("cannot start {:?}", command.get_program()))?;
        Ok(Self { pid: child.id() as libc::pid_t })
    }

    /// Forks a process of this user, which is killed when this process exits. Returns `None` in the
    /// child, which must not return to its caller's code: it ends with `_exit`, or is killed.
    ///
    /// # Safety
    /// If this process has other threads, the child may only call functions that are safe after
    /// such a fork.
    pub unsafe fn fork(uid: Uid) -> Result<Option<Self>> {
        let parent = std::process::id();
        // SAFETY: the caller's contract.
        let pid = unsafe { libc::fork() };
        anyhow::ensure!(pid >= 0, "cannot fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: a fresh fork.
            unsafe { become_user(uid, parent) };
            return Ok(None);
        }
        Ok(Some(Self { pid }))
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// Its exit status, if it has exited. It stays a zombie, so its pid is not reused.
    fn end(&self) -> Option<WaitIdStatus> {
        let pid = Pid::from_raw(self.pid)?;
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), look).ok().flatten()
    }

    /// It has exited or was killed.
    pub fn has_ended(&self) -> bool {
        self.end().is_some()
    }

    /// It exited with code 0.
    pub fn ended_well(&self) -> bool {
        self.end().is_some_and(|status| status.exit_status() == Some(0))
    }

    /// It was killed by SIGKILL.
    pub fn was_killed(&self) -> bool {
        self.end().is_some_and(|status| status.terminating_signal() == Some(libc::SIGKILL))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child of this process that is not reaped yet, so the pid is not reused.
        unsafe { libc::kill(self.pid, signal) };
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this process that is not reaped yet, so the pid is not reused.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// First steps of a forked child: changes to `uid`, sets the parent-death signal, uses small pages
/// only. Exits when a step is refused.
///
/// # Safety
/// The process must be a fresh fork.
unsafe fn become_user(uid: Uid, parent: u32) {
    // SAFETY: plain system calls with integers.
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
        if libc::setresuid(uid.0, uid.0, uid.0) != 0 {
            libc::_exit(3);
        }
        // After the change of user, which resets it.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::_exit(5);
        }
    }
}

/// Words that a process shares with the children that it forks.
pub struct SharedWords(&'static [AtomicU64]);

impl SharedWords {
    /// Maps this number of zeros.
    pub fn new(count: usize) -> Result<Self> {
        // If possible a file on disk instead of shared anonymous memory: its pages are not charged
        // to the children's user.
        let file = tempfile::tempfile_in("/var/tmp").or_else(|_| tempfile::tempfile());
        let file = file.context("a temporary file")?;
        rustix::fs::ftruncate(&file, (count * 8) as u64).context("a temporary file")?;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping of the file's length, unmapped on drop only; atomics may be shared
        // with the children.
        let words = unsafe {
            let at = mmap(std::ptr::null_mut(), count * 8, prot, flags, &file, 0);
            std::slice::from_raw_parts(at.context("shared words")?.cast::<AtomicU64>(), count)
        };
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(Self(words))
    }
}

impl Deref for SharedWords {
    type Target = &'static [AtomicU64];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        let at = self.0.as_ptr().cast_mut().cast();
        // SAFETY: the mapping made in `new`; nothing refers to it after this.
        let _ = unsafe { munmap(at, size_of_val(self.0)) };
    }
}

/// A uid that no account has, a different one in each running program.
pub fn unused_uid() -> Uid {
    /// Above the uids that systems assign, below most systems' ranges for user namespaces.
    const FROM: u32 = 62_000_000;
    Uid(FROM + std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_child_is_distinguished_from_one_that_exits() {
        let start = |script| Child::start(Command::new("sh").args(["-c", script])).unwrap();
        let ends = |child: &Child| {
            let start = std::time::Instant::now();
            while !child.has_ended() && start.elapsed().as_secs() < 60 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            (child.has_ended(), child.was_killed())
        };
        assert_eq!(ends(&start("exit 3")), (true, false));
        assert_eq!(ends(&start("kill -9 $$")), (true, true));
        let alive = start("sleep 60");
        assert_eq!((alive.has_ended(), alive.was_killed()), (false, false));
    }
}
