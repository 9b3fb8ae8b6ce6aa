//! One `process_mrelease` call and what its errors mean.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::victim::last_errno;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mrelease {
    /// The private memory that could be released has been.
    Freed,
    /// `EAGAIN`: part of it was busy; worth another try.
    Busy,
    /// `ESRCH`: every thread has let go of the memory; its exit is freeing it, or has.
    LettingGo,
    /// `EINVAL`: the process is not dying, or shares its memory with one that is not.
    NotDying,
    /// `ENOSYS`: kernel before 5.15.
    Unsupported,
    /// Anything else.
    Failed(Errno),
}

/// Releases the memory of a process that has been sent SIGKILL. Blocks while it works: about 0.1 µs
/// a page. Needs no privilege.
pub fn mrelease(pidfd: BorrowedFd<'_>) -> Mrelease {
    loop {
        // SAFETY: process_mrelease takes a file descriptor and flags (0), and no memory of ours.
        let done = unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd.as_raw_fd(), 0) };
        if done == 0 {
            return Mrelease::Freed;
        }
        return match last_errno() {
            Errno::INTR => continue,
            Errno::AGAIN => Mrelease::Busy,
            Errno::SRCH => Mrelease::LettingGo,
            Errno::INVAL => Mrelease::NotDying,
            Errno::NOSYS => Mrelease::Unsupported,
            errno => Mrelease::Failed(errno),
        };
    }
}
