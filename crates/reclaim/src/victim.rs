//! A process pinned by its identity, and its signals.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use owners::Uid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::identity::{self, Found, Identity};

/// Reason why a process cannot be a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No process has this pid any more.
    #[error("pid {0} does not exist")]
    Gone(u32),
    /// The pid belongs to a later process.
    #[error("pid {pid} is another process now (start number {found}, not {expected})")]
    AnotherProcess {
        /// The pid that was opened.
        pid: u32,
        /// Start number found.
        found: u64,
        /// Start number expected.
        expected: u64,
    },
    /// The process has changed its user.
    #[error("pid {pid} belongs to uid {found} now, not {expected}")]
    AnotherUser {
        /// The pid that was opened.
        pid: u32,
        /// Real uid found.
        found: Uid,
        /// Real uid expected.
        expected: Uid,
    },
    /// Pid 1, a kernel thread, or this process itself.
    #[error("pid {0} cannot be killed: it is init, a kernel thread or this program")]
    Untouchable(u32),
    /// `/proc` or `pidfd_open` failed.
    #[error("pid {pid}: {doing}: {errno}")]
    Io {
        /// The pid that was opened.
        pid: u32,
        /// The operation that failed.
        doing: &'static str,
        /// Its error.
        errno: Errno,
    },
}

/// Reason why the signal was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KillError {
    /// The process had exited before.
    #[error("pid {0} is gone already")]
    Gone(u32),
    /// It belongs to another user, and the caller is not root.
    #[error("pid {0} cannot be killed: not permitted; its owner and root may")]
    NotPermitted(u32),
    /// The system call failed.
    #[error("pid {pid} cannot be signalled: {errno}")]
    Io {
        /// Pid of the process.
        pid: u32,
        /// Error of the system call.
        errno: Errno,
    },
}

/// A process that will be killed, or has been. The pidfd pins it: even if the pid is reused, the
/// signal reaches this process or none.
#[derive(Clone, Debug)]
pub struct Victim {
    identity: Identity,
    handles_term: bool,
    pidfd: Arc<OwnedFd>,
}

impl Victim {
    /// Opens the process that has this pid now.
    pub fn open(pid: u32) -> Result<Self, OpenError> {
        let (pidfd, found) = pin(pid)?;
        let identity = Identity { pid, uid: found.uid, start_number: found.start_number };
        Ok(Self::of(identity, &found, pidfd))
    }

    /// Opens the process with this identity, and no other process that has got its pid since.
    pub fn open_as(identity: Identity) -> Result<Self, OpenError> {
        let Identity { pid, uid, start_number } = identity;
        let (pidfd, found) = pin(pid)?;
        if !found.has_started_as(start_number, pidfd.as_fd()) {
            let (found, expected) = (found.start_number, start_number);
            return Err(OpenError::AnotherProcess { pid, found, expected });
        }
        if found.uid != uid {
            return Err(OpenError::AnotherUser { pid, found: found.uid, expected: uid });
        }
        Ok(Self::of(identity, &found, pidfd))
    }

    fn of(identity: Identity, found: &Found, pidfd: OwnedFd) -> Self {
        Self { identity, handles_term: found.handles_term, pidfd: Arc::new(pidfd) }
    }

    /// Pid, uid and start number.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// Only sends SIGKILL; the memory is freed as the victim exits. One system call: no allocation,
    /// no lock, no log.
    pub fn send_kill(&self) -> Result<(), KillError> {
        self.signal(Signal::KILL)
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), KillError> {
        let pid = self.identity.pid;
        match pidfd_send_signal(&*self.pidfd, signal) {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => Err(KillError::Gone(pid)),
            Err(Errno::PERM) => Err(KillError::NotPermitted(pid)),
            Err(errno) => Err(KillError::Io { pid, errno }),
        }
    }

    /// Sends SIGSTOP: the process does not allocate or fork any more, and can still be killed.
    pub fn stop(&self) -> Result<(), KillError> {
        self.signal(Signal::STOP)
    }

    /// Continues a process that was [stopped](Victim::stop).
    pub fn go_on(&self) {
        // The signal also fails if the process has exited.
        let _ = self.signal(Signal::CONT);
    }

    /// The process has a handler for SIGTERM. For all others SIGTERM either kills like SIGKILL, or
    /// is ignored.
    pub fn handles_sigterm(&self) -> bool {
        self.handles_term
    }

    /// Sends SIGTERM, which the process may handle, or ignore.
    pub fn send_sigterm(&self) -> Result<(), KillError> {
        self.signal(Signal::TERM)
    }

    /// All its threads have exited, and their memory is freed (unless other processes share it).
    pub fn has_exited(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&*self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&now)), Ok(1..))
    }

    /// The pid still belongs to this process: it is running, or a zombie that was not waited for.
    pub(crate) fn has_its_pid(&self) -> bool {
        // A permission error shows that the process exists.
        !matches!(pidfd_send_nothing(self.as_fd()), Err(Errno::SRCH))
    }
}

/// Becomes readable when the victim has exited.
impl AsFd for Victim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Opens the process that has the pid, if it may be a victim.
fn pin(pid: u32) -> Result<(OwnedFd, Found), OpenError> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(OpenError::Gone(pid))?;
    if pid == 1 || raw == rustix::process::getpid() {
        return Err(OpenError::Untouchable(pid));
    }
    let fail = |doing| {
        move |errno| match errno {
            Errno::SRCH | Errno::NOENT => OpenError::Gone(pid),
            errno => OpenError::Io { pid, doing, errno },
        }
    };
    let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
        // The kernel's errors for the tid of a thread that does not lead its process.
        Err(Errno::INVAL | Errno::NOENT) => {
            let doing = "it is a thread of a process, not a process";
            return Err(OpenError::Io { pid, doing, errno: Errno::INVAL });
        }
        opened => opened.map_err(fail("pidfd_open"))?,
    };
    let found = identity::find(pid, pidfd.as_fd()).map_err(fail("cannot read /proc"))?;
    let found = found.ok_or(OpenError::Io {
        pid,
        doing: "/proc/<pid>/stat or status is not as expected",
        errno: Errno::INVAL,
    })?;
    // The process exists (maybe as a zombie) after its files were read: they were its own.
    match pidfd_send_nothing(pidfd.as_fd()) {
        Err(Errno::PERM) | Ok(()) => {}
        Err(errno) => return Err(fail("pidfd_send_signal")(errno)),
    }
    if found.kernel_thread {
        return Err(OpenError::Untouchable(pid));
    }
    Ok((pidfd, found))
}

fn pidfd_send_nothing(pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
    let null = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: pidfd_send_signal with signal 0 and no siginfo reads no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, null, 0) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
