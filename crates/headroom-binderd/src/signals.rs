//! SIGINT and SIGTERM as a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// The two signals, blocked and readable. Dropping it leaves them blocked: it lives as long as the daemon.
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks the signals in this thread and in those that it will start.
    pub fn block() -> io::Result<Self> {
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        // SAFETY: the set is initialised by sigemptyset before anything reads it; the descriptor that
        // signalfd returns is new and nobody else's.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::sigaddset(&mut set, libc::SIGTERM);
            let errno = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if errno != 0 {
                return Err(io::Error::from_raw_os_error(errno));
            }
            let fd = libc::signalfd(-1, &set, flags);
            if fd < 0 {
                Err(io::Error::last_os_error())
            } else {
                Ok(Self(OwnedFd::from_raw_fd(fd)))
            }
        }
    }

    /// The name of a signal that has come.
    pub fn take(&self) -> Option<&'static str> {
        let mut info = [0_u8; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(&self.0, &mut info).ok()?;
        let number = info.first_chunk().map(|number| i32::from_ne_bytes(*number))?;
        Some(if number == libc::SIGINT { "SIGINT" } else { "SIGTERM" })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
