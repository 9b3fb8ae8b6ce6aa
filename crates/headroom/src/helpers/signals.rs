//! Waiting for signals without handlers.

use std::io;
use std::time::Duration;

/// SIGINT, SIGTERM, SIGHUP and SIGCHLD, blocked in this thread and those it starts. (`Command`
/// unblocks them in children.)
pub struct Signals(libc::sigset_t);

/// Why a wait ended.
pub enum Wake {
    /// Somebody wants us to stop.
    Stop,
    /// A child ended, or the time is over.
    Other,
}

impl Signals {
    /// Call it before any thread is started.
    pub fn block() -> io::Result<Self> {
        // SAFETY: all-zero is a valid sigset_t, which sigemptyset then makes a defined one.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is ours; the signal numbers are valid.
        let rc = unsafe {
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut())
        };
        if rc == 0 { Ok(Self(set)) } else { Err(io::Error::from_raw_os_error(rc)) }
    }

    /// Waits for one of the signals, for `limit` at the most.
    pub fn wait(&mut self, limit: Duration) -> Wake {
        let timeout = libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: set and timeout are ours; no siginfo is asked for.
        match unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &timeout) } {
            libc::SIGINT | libc::SIGTERM | libc::SIGHUP => Wake::Stop,
            _ => Wake::Other,
        }
    }
}
