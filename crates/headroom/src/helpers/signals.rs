//! Signals that are received synchronously.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::time::Duration;

use rustix::process::Signal;

/// Requests to end.
pub const TERMINATION: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// Signals that are blocked in this thread, in the threads that it starts and in the processes
/// that it forks. (`Command` unblocks them in the programs that it executes.)
#[derive(Clone, Copy)]
pub struct BlockedSignals {
    set: libc::sigset_t,
    /// The signal mask before.
    before: libc::sigset_t,
}

/// A signal that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenSignal {
    /// Its number.
    pub signal: Signal,
    /// Its origin.
    pub origin: Origin,
}

/// Where a signal came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process sent it to this process.
    Process,
    /// The kernel sent it: for a child's end, or to the terminal's whole process group.
    Kernel,
}

impl BlockedSignals {
    /// Blocks them. Call it before any thread is started.
    pub fn block(signals: &[Signal]) -> io::Result<Self> {
        // SAFETY: all-zero is a valid sigset_t, which sigemptyset then makes a defined one.
        let (mut set, mut before): (libc::sigset_t, libc::sigset_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: both sets are ours; the signal numbers are valid.
        let errno = unsafe {
            libc::sigemptyset(&mut set);
            for signal in signals {
                libc::sigaddset(&mut set, signal.as_raw());
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before)
        };
        match errno {
            0 => Ok(Self { set, before }),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// The next signal; `None` when `limit` is over, or the wait was interrupted.
    pub fn wait(&self, limit: Option<Duration>) -> Option<TakenSignal> {
        let timeout = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i32::MAX.into()),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: all-zero is a valid siginfo_t; set, siginfo and timeout live across the call.
        let (number, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::sigtimedwait(&self.set, &mut info, timeout), info)
        };
        // SI_USER, SI_QUEUE, SI_TKILL: the codes of signals that processes send are 0 or less.
        let origin = if info.si_code <= 0 { Origin::Process } else { Origin::Kernel };
        Some(TakenSignal { signal: Signal::from_named_raw(number)?, origin })
    }

    /// Waits for at most `limit` until a request to end arrives; returns whether one did. SIGCHLD
    /// interrupts the wait.
    pub fn termination_within(&self, limit: Duration) -> bool {
        self.wait(Some(limit)).is_some_and(|taken| TERMINATION.contains(&taken.signal))
    }

    /// Restores in the command the signal mask that this process was started with.
    pub fn restore_in(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: one async-signal-safe call on a set that the closure owns.
        unsafe {
            command.pre_exec(move || {
                match libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                }
            });
        }
    }
}
