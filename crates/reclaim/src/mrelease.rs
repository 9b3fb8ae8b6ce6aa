//! One `process_mrelease` call and what its errors mean.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::victim::last_errno;

/// `PROCESS_MRELEASE_REAP_KILL`, proposed in 2026: the call also kills, and takes a reference to
/// the memory first. It is used only on processes that were sent SIGKILL already, so the signal has
/// no further effect.
const REAP_KILL: u32 = 1;

/// Result of `process_mrelease`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mrelease {
    /// The private memory that could be released was released.
    Freed,
    /// `EAGAIN`: part of it was busy; to be retried.
    Busy,
    /// `ESRCH`: every thread has detached from the memory; its exit frees it, or has freed it.
    LettingGo,
    /// `EINVAL`: the process is not dying, or shares its memory with one that is not.
    NotDying,
    /// `ENOSYS`: kernel before 5.15.
    Unsupported,
    /// Any other error.
    Failed(Errno),
}

/// Releases the memory of a process that was sent SIGKILL. Blocks while it works: about 0.1 µs per
/// page. Needs no privilege.
pub fn mrelease(pidfd: BorrowedFd<'_>) -> Mrelease {
    let flags = if kills_too() { REAP_KILL } else { 0 };
    loop {
        return match call(pidfd.as_raw_fd(), flags) {
            Ok(()) => Mrelease::Freed,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Mrelease::Busy,
            Err(Errno::SRCH) => Mrelease::LettingGo,
            Err(Errno::INVAL) => Mrelease::NotDying,
            Err(Errno::NOSYS) => Mrelease::Unsupported,
            Err(errno) => Mrelease::Failed(errno),
        };
    }
}

/// Whether the kernel has the flag. It checks the flags before the descriptor, so `EBADF` shows
/// that it is known.
fn kills_too() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| call(-1, REAP_KILL) == Err(Errno::BADF))
}

fn call(pidfd: i32, flags: u32) -> Result<(), Errno> {
    // SAFETY: process_mrelease takes a file descriptor and flags, and no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd, flags) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_refuses_a_bad_descriptor_and_unknown_flags_before_anything_else() {
        let without_flags = call(-1, 0);
        if without_flags == Err(Errno::NOSYS) {
            test_support::skip("this kernel has no process_mrelease");
            return;
        }
        assert_eq!(without_flags, Err(Errno::BADF));
        assert_eq!(call(-1, 1 << 31), Err(Errno::INVAL));
        assert!(matches!(call(-1, REAP_KILL), Err(Errno::BADF | Errno::INVAL)));
    }
}
