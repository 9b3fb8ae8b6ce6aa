//! Privileges that let a daemon act when memory and CPU time are short.
//!
//! Each may be refused. The daemon then works without it, and reports what was refused together
//! with the consequence, which is different for each daemon.
//!
//! Memory that only the start needed is dropped before the rest is locked.

use std::ffi::c_void;
use std::io;

use headroom_linux::descriptors;
use headroom_linux::sched::SchedAttr;
use rustix::io::Errno;
use rustix::mm::{Advice, MlockAllFlags, madvise, mlockall};
use thiserror::Error;

/// A privilege that was refused.
#[derive(Debug, Error)]
pub enum PrivilegeError {
    /// [`set_realtime`].
    #[error("no real-time priority ({0})")]
    Realtime(Errno),
    /// [`lock_memory`], [`lock_resident_memory`].
    #[error("cannot lock the daemon's memory ({0})")]
    LockedMemory(Errno),
    /// [`prepare_descriptors`].
    #[error("no room for many file descriptors ({0})")]
    Descriptors(Errno),
    /// [`exempt_from_oom_killer`].
    #[error("cannot lower oom_score_adj ({0})")]
    OomScore(io::Error),
}

impl PrivilegeError {
    /// The message for the daemon's status: what was refused, and what follows from it.
    pub fn with_consequence(&self, consequence: &str) -> String {
        format!("{self}: {consequence}")
    }
}

/// Sets `SCHED_FIFO` for the calling thread and for the threads that it starts. Priority 1 precedes
/// all ordinary threads, and is preceded by the real-time threads that an administrator has set up.
pub fn set_realtime(priority: u32) -> Result<(), PrivilegeError> {
    SchedAttr::fifo(priority).apply(None).map_err(PrivilegeError::Realtime)
}

/// Locks all memory, present and future. Present pages are read in; later ones (stacks, mostly)
/// only when they are first touched.
pub fn lock_memory() -> Result<(), PrivilegeError> {
    mlockall(MlockAllFlags::CURRENT)
        .and_then(|()| mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT))
        .map_err(PrivilegeError::LockedMemory)
}

/// Locks the pages that are resident now, and later ones from their first use. For programs that
/// have [paged out their startup](page_out_startup).
pub fn lock_resident_memory() -> Result<(), PrivilegeError> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        .map_err(PrivilegeError::LockedMemory)
}

/// Makes room for so many file descriptors, before other threads are started; see
/// [`descriptors::prepare`].
pub fn prepare_descriptors(count: u32) -> Result<(), PrivilegeError> {
    descriptors::prepare(count).map_err(PrivilegeError::Descriptors)
}

/// Exempts the process from the kernel's OOM killer.
pub fn exempt_from_oom_killer() -> Result<(), PrivilegeError> {
    std::fs::write("/proc/self/oom_score_adj", "-1000").map_err(PrivilegeError::OomScore)
}

/// Returns freed heap to the system, and unmaps code and constants from memory: pages that are
/// needed again are read from the page cache. Call it before memory is locked, and afterwards
/// execute once all code that must never wait for the disk.
///
/// Loading BPF programs, reading the configuration and parsing arguments leave 2 MiB of code behind
/// that is never run again.
pub fn page_out_startup() {
    trim_heap();
    // If it cannot be read, nothing is dropped: more memory stays in use, nothing else.
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    for (start, end) in unwritten_mappings(&maps) {
        let at = start as *mut c_void;
        // SAFETY: a private mapping of a file that was never written (it has no anonymous page) and
        // cannot be: every page is the same when it is read from the file again.
        // If it is refused, the pages stay.
        let _ = unsafe { madvise(at, end - start, Advice::LinuxDontNeed) };
        split_mapping(start, end);
    }
}

/// Bytes of a mapping after [`split_mapping`]. The kernel maps a page together with its neighbours
/// in the same mapping, 64 KiB in all, and they would be locked too: three quarters of all code.
/// Smaller mappings avoid most of that.
const PIECE: usize = 16 * 1024;

/// Splits a mapping by giving every other piece a flag that has no effect on it.
fn split_mapping(start: usize, end: usize) {
    // The pieces depend on addresses alone, so a second call changes nothing.
    for piece in (start - start % (2 * PIECE)..end).step_by(2 * PIECE) {
        let (from, to) = (piece.max(start), end.min(piece + PIECE));
        let length = to.saturating_sub(from);
        // SAFETY: only changes whether core dumps contain the mapping, which by default they do
        // not. If it is refused (too many mappings), the pieces are larger.
        let _ = unsafe { madvise(from as *mut c_void, length, Advice::LinuxDontDump) };
    }
}

/// Fixes the size from which glibc gives a block a separate mapping, whose memory returns to the
/// system when it is freed. glibc raises it after the first large block that is freed, so call this
/// first.
pub fn set_mmap_threshold() {
    /// Bytes.
    #[cfg(target_env = "gnu")]
    const THRESHOLD: libc::c_int = 64 * 1024;
    // SAFETY: takes integers. If it is refused, more memory stays in use, nothing else.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, THRESHOLD);
    }
}

/// Returns free memory at the end of the heap to the system; musl does so without a request.
pub fn trim_heap() {
    // SAFETY: takes an integer.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Private mappings of files without pages of their own.
fn unwritten_mappings(smaps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        if let Some(mapping) = mapping(line) {
            candidate = mapping;
        } else if let Some(rest) = line.strip_prefix("Anonymous:")
            && rest.trim() == "0 kB"
        {
            found.extend(candidate.take());
        }
    }
    found
}

/// `None`: the line begins no mapping. `Some(None)`: it begins one that must stay.
fn mapping(line: &str) -> Option<Option<(usize, usize)>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    let path = words.nth(3).unwrap_or_default();
    let droppable = matches!(permissions, "r-xp" | "r--p") && path.starts_with('/');
    Some(droppable.then_some((start, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_real_time_or_the_refusal_is_reported() {
        let after = std::thread::spawn(|| (set_realtime(1), SchedAttr::of(None).unwrap()));
        match after.join().unwrap() {
            (Ok(()), attr) => assert!(attr.is_realtime()),
            (Err(PrivilegeError::Realtime(Errno::PERM)), attr) => assert!(!attr.is_realtime()),
            (Err(other), _) => panic!("{other}"),
        }
    }

    #[test]
    fn only_unwritten_private_mappings_of_files_are_dropped() {
        let smaps = "\
1000-3000 r-xp 00000000 fe:00 42                 /usr/bin/x
Rss:                   8 kB
Anonymous:             0 kB
3000-4000 r--p 00002000 fe:00 42                 /usr/bin/x
Anonymous:             4 kB
4000-5000 rw-p 00003000 fe:00 42                 /usr/bin/x
Anonymous:             0 kB
5000-6000 r--s 00000000 00:10 7                  anon_inode:bpf-map
Anonymous:             0 kB
6000-7000 r--s 00000000 fe:00 9                  /var/shared
Anonymous:             0 kB
7000-8000 r-xp 00000000 00:00 0                  [vdso]
Anonymous:             0 kB
8000-9000 r--p 00000000 00:00 0
Anonymous:             0 kB
9000-a000 r--p 00000000 fe:00 43                 /usr/lib/libc.so.6
Anonymous:             0 kB
";
        assert_eq!(unwritten_mappings(smaps), [(0x1000, 0x3000), (0x9000, 0xa000)]);
        assert_eq!(unwritten_mappings(""), []);
    }

    #[test]
    fn code_is_mapped_in_small_pieces() {
        page_out_startup();
        let code = page_out_startup as *const () as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = maps.lines().filter_map(mapping).flatten();
        let (start, end) =
            own.into_iter().find(|(start, end)| (*start..*end).contains(&code)).unwrap();
        assert!(end - start <= PIECE, "{start:x}-{end:x}");
    }

    #[test]
    fn a_program_continues_after_its_startup_is_paged_out() {
        static CONSTANT: [u8; 8192] = [7; 8192];
        let heap: Vec<u8> = vec![9; 1 << 20];
        page_out_startup();
        assert!(CONSTANT.iter().all(|byte| *byte == 7) && heap.iter().all(|byte| *byte == 9));
    }
}
