//! Identity of a process, independent of reuse of its pid.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::BorrowedFd;

use headroom_linux::pidfd;
use owners::Uid;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

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
pub(crate) struct Found {
    pub(crate) uid: Uid,
    pub(crate) start_number: u64,
    pub(crate) kernel_thread: bool,
    pub(crate) handles_term: bool,
}

impl Found {
    /// Whether it has the start number. A start time is read with the resolution of a clock tick.
    pub(crate) fn has_started_as(&self, start_number: u64, pidfd: BorrowedFd<'_>) -> bool {
        match pidfd::number(pidfd) {
            Some(number) => number == start_number,
            None => self.start_number / NS_PER_TICK == start_number / NS_PER_TICK,
        }
    }
}

/// A process's relations and state, from `/proc/<pid>/status`: `stat` waits for the process's
/// `execve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status {
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
pub(crate) fn find(pid: u32, pidfd: BorrowedFd<'_>) -> Result<Option<Found>, Errno> {
    let mut buffer = [0; PROC_FILE];
    let status = parse_status(read_proc(pid, "status", &mut buffer)?);
    let Some(Status { uid, handles_term, kernel_thread, .. }) = status else { return Ok(None) };
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
pub(crate) fn status(pid: u32) -> Option<Status> {
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
fn parse_status(status: &[u8]) -> Option<Status> {
    let value = |key: &[u8]| {
        let mut lines = status.split(|b| *b == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(b":\t"))?;
        // The first of several values.
        std::str::from_utf8(value.split(|b| *b == b'\t' || *b == b' ').next()?).ok()
    };
    let caught = value(b"SigCgt").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    Some(Status {
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
    use std::os::fd::AsFd;

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
