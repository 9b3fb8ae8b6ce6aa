//! A process pinned by its identity, which does not depend on reuse of its pid, and its signals.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use headroom_linux::pidfd;
use owners::Uid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

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
    let found = find(pid, pidfd.as_fd()).map_err(fail("cannot read /proc"))?;
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

/// `PF_KTHREAD` of the kernel: the flag of kernel threads in `/proc/<pid>/stat`.
const PF_KTHREAD: u64 = 0x0020_0000;
/// Clock ticks of `/proc/<pid>/stat`: `USER_HZ` is 100 on every architecture that Linux supports.
const NS_PER_TICK: u64 = 10_000_000;
/// Size of the buffer for `/proc/<pid>/stat` and `status`, which is longer only with hundreds of
/// groups.
const PROC_FILE: usize = 2048;

/// Identity of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Real uid.
    pub uid: Uid,
    /// Distinguishes it from other processes with this pid: [`pidfd::number`], or the start time in
    /// nanoseconds since boot before Linux 6.9.
    pub start_number: u64,
}

/// The process that has a pid now.
struct Found {
    uid: Uid,
    start_number: u64,
    kernel_thread: bool,
    handles_term: bool,
}

impl Found {
    /// Whether it has the start number. A start time is read with the resolution of a clock tick.
    fn has_started_as(&self, start_number: u64, pidfd: BorrowedFd<'_>) -> bool {
        match pidfd::number(pidfd) {
            Some(number) => number == start_number,
            None => self.start_number / NS_PER_TICK == start_number / NS_PER_TICK,
        }
    }
}

/// A process's relations and state, from `/proc/<pid>/status`: `stat` waits for the process's
/// `execve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcStatus {
    /// State, one letter as in `ps`.
    pub(crate) state: u8,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    /// `None`: the kernel is older than 6.8.
    kernel_thread: Option<bool>,
    uid: Uid,
    handles_term: bool,
}

/// Reads the process that has this pid now, which is that of the pidfd. `None`: the files do not
/// have the expected form.
fn find(pid: u32, pidfd: BorrowedFd<'_>) -> Result<Option<Found>, Errno> {
    let mut buffer = [0; PROC_FILE];
    let status = parse_status(read_proc(pid, "status", &mut buffer)?);
    let Some(ProcStatus { uid, handles_term, kernel_thread, .. }) = status else { return Ok(None) };
    let (start_number, kernel_thread) = match (pidfd::number(pidfd), kernel_thread) {
        (Some(number), Some(kernel_thread)) => (number, kernel_thread),
        _ => match parse_stat(read_proc(pid, "stat", &mut buffer)?) {
            Some(Stat { start_ticks, kernel_thread }) => (start_ticks * NS_PER_TICK, kernel_thread),
            None => return Ok(None),
        },
    };
    Ok(Some(Found { uid, start_number, kernel_thread, handles_term }))
}

/// Reads a process's `status`. `None`: it has exited, or the file does not have the expected form.
pub(crate) fn status(pid: u32) -> Option<ProcStatus> {
    let mut buffer = [0; PROC_FILE];
    parse_status(read_proc(pid, "status", &mut buffer).ok()?)
}

/// Reads the beginning of a file of `/proc/<pid>` without allocating.
pub(crate) fn read_proc<'a>(pid: u32, name: &str, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let mut path = [0; 32];
    write!(&mut path[..], "/proc/{pid}/{name}\0").map_err(|_| Errno::NAMETOOLONG)?;
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut len = 0;
    while len < buffer.len() {
        match rustix::io::read(&file, &mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(&buffer[..len])
}

/// The fields of `/proc/<pid>/stat` that are used.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    kernel_thread: bool,
    start_ticks: u64,
}

/// Parses `/proc/<pid>/stat`. The name in parentheses may itself contain parentheses and spaces.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let after_name = stat.iter().rposition(|b| *b == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    // The fields after the name are counted from 3: the flags are field 9, the start time is 22.
    let flags: u64 = fields.nth(6)?.parse().ok()?;
    let start_ticks = fields.nth(12)?.parse().ok()?;
    Some(Stat { kernel_thread: flags & PF_KTHREAD != 0, start_ticks })
}

/// Parses `/proc/<pid>/status`, of which the end may be missing: with hundreds of groups the file
/// is longer than the buffer.
fn parse_status(status: &[u8]) -> Option<ProcStatus> {
    let value = |key: &[u8]| {
        let mut lines = status.split(|b| *b == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(b":\t"))?;
        // The first of several values.
        std::str::from_utf8(value.split(|b| *b == b'\t' || *b == b' ').next()?).ok()
    };
    let caught = value(b"SigCgt").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    Some(ProcStatus {
        state: *value(b"State")?.as_bytes().first()?,
        parent: value(b"PPid")?.parse().ok()?,
        group: value(b"NSpgid").and_then(|group| group.parse().ok()).unwrap_or(0),
        kernel_thread: value(b"Kthread").map(|word| word == "1"),
        uid: Uid(value(b"Uid")?.parse().ok()?),
        handles_term: caught.is_some_and(|mask| mask >> (libc::SIGTERM - 1) & 1 == 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_parentheses_does_not_confuse_the_reader() {
        let stat = b"7 (a) R 1 (b) S 1 9 7 0 -1 2097152 1 0 0 0 5 6 0 0 20 0 3 0 4242 0 0\n";
        let expected = Stat { kernel_thread: true, start_ticks: 4242 };
        assert_eq!(parse_stat(stat), Some(expected));
        assert_eq!(parse_stat(b"7 (cat) R 1 7"), None);
        assert_eq!(parse_stat(b""), None);
    }

    const STATUS: &str = "Name:\tUid:\nState:\tS (sleeping)\nPPid:\t3\nUid:\t1000\t0\t0\t0\n\
        NSpgid:\t9\t1\nKthread:\t1\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000004002\n";

    #[test]
    fn relations_are_those_in_the_namespace_of_proc_and_the_uid_is_the_real_one() {
        let status = parse_status(STATUS.as_bytes()).unwrap();
        assert_eq!((status.state, status.parent, status.group), (b'S', 3, 9));
        assert_eq!((status.uid, status.kernel_thread), (Uid(1000), Some(true)));
        assert_eq!(parse_status(b"Name:\tx\n"), None);
        let old = STATUS.replace("Kthread:\t1\n", "");
        assert_eq!(parse_status(old.as_bytes()).unwrap().kernel_thread, None);
    }

    #[test]
    fn sigterm_handlers_are_detected() {
        let handles = |text: &str| parse_status(text.as_bytes()).unwrap().handles_term;
        assert!(handles(STATUS) && !handles(&STATUS.replace("4002", "0002")));
        assert!(!handles(&STATUS[..STATUS.len() - 8]) && !handles(&STATUS[..STATUS.len() - 25]));
    }

    #[test]
    fn the_start_number_is_that_of_the_pidfd() {
        let pid = std::process::id();
        let pidfd = pidfd::open(pid).unwrap();
        let found = find(pid, pidfd.as_fd()).unwrap().unwrap();
        assert!(found.has_started_as(found.start_number, pidfd.as_fd()));
        let later = found.start_number + NS_PER_TICK;
        assert!(!found.has_started_as(later, pidfd.as_fd()) && !found.kernel_thread);
    }
}
