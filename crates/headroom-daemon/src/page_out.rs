//! Drops memory that only the start needed, so that it is not locked with the rest.

use std::ffi::c_void;

use rustix::mm::{Advice, madvise};

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
