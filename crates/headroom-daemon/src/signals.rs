//! Signals as a file descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};

pub use nix::sys::signal::Signal;

/// Blocked signals, readable for an event loop. Dropping it leaves them blocked.
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals in the calling thread and in the threads that it starts. Call it before
    /// any thread exists, or a thread that does not block them receives them.
    pub fn block(signals: &[Signal]) -> io::Result<Self> {
        let set: SigSet = signals.iter().copied().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// The next signal that is pending, if any.
    pub fn next(&self) -> Option<Signal> {
        let info = self.0.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo as i32).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_read_once() {
        std::thread::spawn(|| {
            let signals = Signals::block(&[Signal::SIGUSR1, Signal::SIGUSR2]).unwrap();
            assert_eq!(signals.next(), None);
            // SAFETY: a signal to the calling thread, which has it blocked.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            assert_eq!(signals.next(), Some(Signal::SIGUSR2));
            assert_eq!(signals.next(), None);
        })
        .join()
        .unwrap();
    }
}
