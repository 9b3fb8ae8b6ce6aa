//! The listener's side: trapped calls.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: the woken thread runs on the CPU of the one that waits.
const SYNC_WAKE_UP: u64 = 1;

/// A trapped call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trapped {
    /// Id of the notification; the call that is trapped next has an id that is larger by one.
    pub id: u64,
    /// Thread id in the listener's pid namespace; 0 if the thread is not visible there.
    pub tid: u32,
}

/// Receives every trapped call of a filter. Several threads may use one listener at the same time.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Takes the descriptor that [`install`](crate::install) returned.
    pub fn new(fd: OwnedFd) -> Self {
        let listener = Self(fd);
        // Since Linux 6.6. Without the flag the listener works as well, with slower wake-ups.
        let _ = listener.ioctl(libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP as usize);
        listener
    }

    /// Waits for the next call. `None`: no process runs under the filter any more. (Before Linux
    /// 6.11 the kernel does not report that, and this never returns.)
    pub fn next(&self) -> io::Result<Option<Trapped>> {
        loop {
            // SAFETY: all-zero is a valid `seccomp_notif`, and what the kernel wants to see.
            let mut found: libc::seccomp_notif = unsafe { zeroed() };
            match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut found as usize) {
                Ok(_) => return Ok(Some(Trapped { id: found.id, tid: found.pid })),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The thread was killed or interrupted meanwhile, or the last one has exited.
                    Some(libc::ENOENT) if !self.is_deserted() => {}
                    Some(libc::ENOENT) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Returns whether no process runs under the filter any more.
    pub(crate) fn is_deserted(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// Lets a call proceed to the kernel. `NotFound`: the call is no longer held, because its
    /// thread was killed or received a signal.
    pub fn proceed(&self, id: u64) -> io::Result<()> {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer as usize).map(drop)
    }

    /// Adds a file to the descriptor table of the trapped thread, close-on-exec, and returns its
    /// number. Waits until the thread has installed the file. `EMFILE`: its table is full;
    /// `NotFound`: as for [`proceed`](Self::proceed), and the file was not installed.
    pub fn add_file(&self, id: u64, file: BorrowedFd<'_>) -> io::Result<u32> {
        let newfd_flags = libc::O_CLOEXEC as u32;
        let srcfd = file.as_raw_fd() as u32;
        let wanted = libc::seccomp_notif_addfd { id, flags: 0, srcfd, newfd: 0, newfd_flags };
        let added = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const wanted as usize);
        match added {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            }
            added => added,
        }
    }

    fn ioctl(&self, request: libc::Ioctl, argument: usize) -> io::Result<u32> {
        // SAFETY: the caller passes a number, or the address of a live structure of the type that
        // the request reads or fills.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as u32) }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
