//! Identity of a process, independent of reuse of its pid.

use std::ffi::CStr;
use std::io::Write;

use owners::Uid;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// `PF_KTHREAD` of the kernel: the flag of kernel threads in `/proc/<pid>/stat`.
const PF_KTHREAD: u64 = 0x0020_0000;
/// Size of the buffer for `/proc/<pid>/stat` and for `status` up to its `Uid:` line; both are far
/// shorter.
const PROC_FILE: usize = 2048;

/// Identity of a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Real uid.
    pub uid: Uid,
    /// Start time in clock ticks since boot: field 22 of `/proc/<pid>/stat`.
    pub start_ticks: u64,
}

/// The process that has a pid now.
pub(crate) struct Found {
    pub(crate) uid: Uid,
    pub(crate) start_ticks: u64,
    pub(crate) kernel_thread: bool,
    pub(crate) handles_term: bool,
}

/// The fields of `/proc/<pid>/stat` that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// State, one letter as in `ps`.
    pub(crate) state: u8,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) kernel_thread: bool,
    pub(crate) start_ticks: u64,
}

/// Reads the process that has this pid now. `None`: the files do not have the expected form.
pub(crate) fn find(pid: u32) -> Result<Option<Found>, Errno> {
    let mut buffer = [0; PROC_FILE];
    let Some(stat) = parse_stat(read_proc(pid, "stat", &mut buffer)?) else { return Ok(None) };
    let status = read_proc(pid, "status", &mut buffer)?;
    let Some(uid) = parse_uid(status) else { return Ok(None) };
    let handles_term = catches(status, libc::SIGTERM);
    let Stat { kernel_thread, start_ticks, .. } = stat;
    Ok(Some(Found { uid, start_ticks, kernel_thread, handles_term }))
}

/// Reads a process's `stat`. `None`: it has exited, or the line does not have the expected form.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    let mut buffer = [0; PROC_FILE];
    parse_stat(read_proc(pid, "stat", &mut buffer).ok()?)
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

/// Parses `/proc/<pid>/stat`. The name in parentheses may itself contain parentheses and spaces.
fn parse_stat(stat: &[u8]) -> Option<Stat> {
    let after_name = stat.iter().rposition(|b| *b == b')')? + 1;
    let mut fields = std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace();
    // Fields 3 to 5; the flags are field 9, the start time is field 22.
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let flags: u64 = fields.nth(3)?.parse().ok()?;
    let start_ticks = fields.nth(12)?.parse().ok()?;
    let kernel_thread = flags & PF_KTHREAD != 0;
    Some(Stat { state, parent, group, kernel_thread, start_ticks })
}

/// The real uid from `/proc/<pid>/status`.
fn parse_uid(status: &[u8]) -> Option<Uid> {
    let line = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"Uid:\t"))?;
    let real = line.split(|b| *b == b'\t').next()?;
    std::str::from_utf8(real).ok()?.parse().ok().map(Uid)
}

/// The process has a handler for the signal, if that line of `/proc/<pid>/status` was read (with
/// hundreds of groups the file is longer than the buffer).
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
        let stat = b"7 (a) R 1 (b) S 1 9 7 0 -1 2097152 1 0 0 0 5 6 0 0 20 0 3 0 4242 0 0\n";
        let expected =
            Stat { state: b'S', parent: 1, group: 9, kernel_thread: true, start_ticks: 4242 };
        assert_eq!(parse_stat(stat), Some(expected));
        assert_eq!(parse_stat(b"7 (cat) R 1 7"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn the_real_uid_is_read_not_the_effective_one() {
        let status = b"Name:\tUid:\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n";
        assert_eq!(parse_uid(status), Some(Uid(1000)));
        assert_eq!(parse_uid(b"Name:\tx\n"), None);
    }

    #[test]
    fn sigterm_handlers_are_detected() {
        assert!(catches(b"SigIgn:\t0000000000000000\nSigCgt:\t0000000000004002\n", libc::SIGTERM));
        assert!(!catches(b"SigCgt:\t0000000000000002\n", libc::SIGTERM));
        assert!(!catches(b"SigCgt:\t00000", libc::SIGTERM) && !catches(b"", libc::SIGTERM));
    }
}
