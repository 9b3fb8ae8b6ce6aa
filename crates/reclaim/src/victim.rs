//! A process pinned by its identity, and the signal.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// `PF_KTHREAD` of the kernel: the flag of its own threads in `/proc/<pid>/stat`.
const PF_KTHREAD: u64 = 0x0020_0000;
/// Room for `/proc/<pid>/stat` and for `status` up to its `Uid:` line; both are far shorter.
const PROC_FILE: usize = 2048;

/// Who the victim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Real uid.
    pub uid: u32,
    /// Start time in clock ticks since boot: field 22 of `/proc/<pid>/stat`.
    pub start_ticks: u64,
}

/// Why a process cannot be a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No such process any more.
    #[error("pid {0} is gone")]
    Gone(u32),
    /// The pid belongs to a later process.
    #[error("pid {pid} is another process now (started at tick {found}, not {expected})")]
    AnotherProcess {
        /// The pid.
        pid: u32,
        /// Start time found, clock ticks.
        found: u64,
        /// Start time expected, clock ticks.
        expected: u64,
    },
    /// The process has changed its user.
    #[error("pid {pid} belongs to uid {found} now, not {expected}")]
    AnotherUser {
        /// The pid.
        pid: u32,
        /// Real uid found.
        found: u32,
        /// Real uid expected.
        expected: u32,
    },
    /// Pid 1, a kernel thread, or this process itself.
    #[error("pid {0} must not be killed: it is init, a kernel thread or the killer itself")]
    Untouchable(u32),
    /// `/proc` or `pidfd_open` failed.
    #[error("pid {pid}: {doing}: {errno}")]
    Io {
        /// The pid.
        pid: u32,
        /// What was tried.
        doing: &'static str,
        /// How it failed.
        errno: Errno,
    },
}

/// Why the signal was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KillError {
    /// It was gone before.
    #[error("pid {0} is gone already")]
    Gone(u32),
    /// The system refused.
    #[error("pid {pid} cannot be signalled: {errno}")]
    Io {
        /// The pid.
        pid: u32,
        /// How it failed.
        errno: Errno,
    },
}

/// A process that will be killed, or has been. The pidfd pins it: whatever happens to the pid, the
/// signal reaches this process or nobody.
#[derive(Clone, Debug)]
pub struct Victim {
    identity: Identity,
    handles_term: bool,
    pidfd: Arc<OwnedFd>,
}

impl Victim {
    /// Opens the process with this identity.
    pub fn open(identity: Identity) -> Result<Self, OpenError> {
        let Identity { pid, uid, start_ticks } = identity;
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
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(fail("pidfd_open"))?;
        let found = read_identity(pid).map_err(fail("cannot read /proc"))?;
        let found = found.ok_or(OpenError::Io {
            pid,
            doing: "/proc/<pid>/stat or status is not as expected",
            errno: Errno::INVAL,
        })?;
        // Alive (or a zombie) after its files were read: the files were this process's own.
        pidfd_send_nothing(pidfd.as_fd()).map_err(fail("pidfd_send_signal"))?;
        if found.kernel_thread {
            return Err(OpenError::Untouchable(pid));
        }
        if found.start_ticks != start_ticks {
            let (found, expected) = (found.start_ticks, start_ticks);
            return Err(OpenError::AnotherProcess { pid, found, expected });
        }
        if found.uid != uid {
            return Err(OpenError::AnotherUser { pid, found: found.uid, expected: uid });
        }
        let handles_term = found.handles_term;
        Ok(Self { identity, handles_term, pidfd: Arc::new(pidfd) })
    }

    /// Who it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Sends SIGKILL. One system call: no allocation, no lock, no log.
    pub fn kill(&self) -> Result<(), KillError> {
        self.signal(Signal::KILL)
    }

    fn signal(&self, signal: Signal) -> Result<(), KillError> {
        let pid = self.identity.pid;
        match pidfd_send_signal(&*self.pidfd, signal) {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => Err(KillError::Gone(pid)),
            Err(errno) => Err(KillError::Io { pid, errno }),
        }
    }

    /// It has a handler for SIGTERM. To all others SIGTERM is as good as SIGKILL, or as nothing.
    pub fn can_be_asked(&self) -> bool {
        self.handles_term
    }

    /// Asks it to end: SIGTERM, which it may handle, or ignore.
    pub fn ask_to_end(&self) -> Result<(), KillError> {
        self.signal(Signal::TERM)
    }

    /// All its threads are gone, and with them its memory (unless others share it).
    pub fn has_exited(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&*self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&now)), Ok(1..))
    }

    pub(crate) fn share(&self) -> Arc<OwnedFd> {
        self.pidfd.clone()
    }
}

/// Becomes readable when the victim is gone.
impl AsFd for Victim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn pidfd_send_nothing(pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    let null = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: pidfd_send_signal with signal 0 and no siginfo reads no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, null, 0) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

struct Found {
    uid: u32,
    start_ticks: u64,
    kernel_thread: bool,
    handles_term: bool,
}

fn read_identity(pid: u32) -> Result<Option<Found>, Errno> {
    let mut buffer = [0; PROC_FILE];
    let stat = read_proc(pid, "stat", &mut buffer)?;
    let Some((kernel_thread, start_ticks)) = parse_stat(stat) else { return Ok(None) };
    let status = read_proc(pid, "status", &mut buffer)?;
    let Some(uid) = parse_uid(status) else { return Ok(None) };
    let handles_term = catches(status, libc::SIGTERM);
    Ok(Some(Found { uid, start_ticks, kernel_thread, handles_term }))
}

/// Reads the beginning of a file of `/proc/<pid>` without allocating.
fn read_proc<'a>(pid: u32, name: &str, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
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

/// Kernel thread or not, and the start time, from `/proc/<pid>/stat`. The name in parentheses may
/// itself hold parentheses and spaces.
fn parse_stat(stat: &[u8]) -> Option<(bool, u64)> {
    let after_name = stat.iter().rposition(|b| *b == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    // Field 3 (state) is the first one here; flags are field 9, the start time is field 22.
    let flags: u64 = fields.nth(6)?.parse().ok()?;
    let start_ticks = fields.nth(12)?.parse().ok()?;
    Some((flags & PF_KTHREAD != 0, start_ticks))
}

/// The real uid from `/proc/<pid>/status`.
fn parse_uid(status: &[u8]) -> Option<u32> {
    let line = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"Uid:\t"))?;
    let real = line.split(|b| *b == b'\t').next()?;
    std::str::from_utf8(real).ok()?.parse().ok()
}

/// There is a handler for the signal, as far as `/proc/<pid>/status` was read (a process of hundreds
/// of groups has a longer one).
fn catches(status: &[u8], signal: i32) -> bool {
    let line = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"SigCgt:\t"));
    let mask = line.and_then(|mask| std::str::from_utf8(mask).ok());
    let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_parentheses_does_not_confuse_the_reader() {
        let stat = b"7 (a) R 1 (b) S 1 7 7 0 -1 2097152 1 0 0 0 5 6 0 0 20 0 1 0 4242 0 0\n";
        assert_eq!(parse_stat(stat), Some((true, 4242)));
        assert_eq!(parse_stat(b"7 (cat) R 1 7"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn the_real_uid_is_read_not_the_effective_one() {
        let status = b"Name:\tUid:\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n";
        assert_eq!(parse_uid(status), Some(1000));
        assert_eq!(parse_uid(b"Name:\tx\n"), None);
    }

    #[test]
    fn a_handler_is_told_from_the_lack_of_one() {
        assert!(catches(b"SigIgn:\t0000000000000000\nSigCgt:\t0000000000004002\n", libc::SIGTERM));
        assert!(!catches(b"SigCgt:\t0000000000000002\n", libc::SIGTERM));
        assert!(!catches(b"SigCgt:\t00000", libc::SIGTERM) && !catches(b"", libc::SIGTERM));
    }
}
