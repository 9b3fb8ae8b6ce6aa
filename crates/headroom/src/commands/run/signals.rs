//! Signals, taken one by one instead of handled.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

/// What we pass on, besides the end of children. The others keep their meaning: a terminal stops and continues us
/// together with the command.
const PASSED_ON: [libc::c_int; 7] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
];

/// The signals, blocked here and in the processes that are forked from us.
#[derive(Clone, Copy)]
pub struct Signals {
    taken: libc::sigset_t,
    /// The mask that our caller gave us.
    before: libc::sigset_t,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A child has ended, or several.
    Child,
    /// Somebody wants something.
    Signal {
        /// Which signal.
        signal: Signal,
        /// A process sent it, not the terminal, which sends to a whole process group.
        by_process: bool,
    },
}

impl Signals {
    /// Blocks them.
    pub fn block() -> io::Result<Self> {
        // SAFETY: all-zero is a valid sigset_t, which sigemptyset then makes a defined one.
        let (mut taken, mut before): (libc::sigset_t, libc::sigset_t) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: both sets are ours; the signal numbers are valid.
        let errno = unsafe {
            libc::sigemptyset(&mut taken);
            libc::sigaddset(&mut taken, libc::SIGCHLD);
            for signal in PASSED_ON {
                libc::sigaddset(&mut taken, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &taken, &mut before)
        };
        if errno == 0 {
            Ok(Self { taken, before })
        } else {
            Err(io::Error::from_raw_os_error(errno))
        }
    }

    /// The next one; `None` when `limit` is over (or for one that nobody asked for).
    pub fn wait(&mut self, limit: Option<Duration>) -> Option<Taken> {
        let timeout = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: all-zero is a valid siginfo_t; set, siginfo and timeout live across the call.
        let (number, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::sigtimedwait(&self.taken, &mut info, timeout), info)
        };
        match number {
            libc::SIGCHLD => Some(Taken::Child),
            _ => {
                let signal = Signal::from_named_raw(number)?;
                // SI_USER, SI_QUEUE, SI_TKILL: all that processes send is 0 or less.
                Some(Taken::Signal { signal, by_process: info.si_code <= 0 })
            }
        }
    }

    /// Has the command start with the mask that our caller gave us.
    pub fn as_before(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: one async-signal-safe call on a set that the closure owns.
        unsafe {
            command.pre_exec(move || {
                match libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) {
                    0 => Ok(()),
                    errno => Err(io::Error::from_raw_os_error(errno)),
                }
            });
        }
    }
}
