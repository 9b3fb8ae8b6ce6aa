//! What only the start needed leaves memory.

use std::ffi::c_void;

use rustix::mm::{Advice, madvise};

/// Gives back what was used and freed since the start, and lets go of code and constants: what of these is
/// needed again is read anew, from the page cache most likely. To be called before memory is locked,
/// and followed by the use of all that must not be waited for later.
///
/// Loading BPF programs, reading the configuration and parsing arguments leave 2 MiB of code behind
/// that is never run again.
pub fn forget_the_start() {
    give_back_freed();
    // Where it cannot be read, nothing is let go of: more memory is used, nothing else.
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    for (start, end) in only_read(&maps) {
        let at = start as *mut c_void;
        // SAFETY: a private mapping of a file that was never written (no anonymous page in it) and
        // cannot be: every page reads the same when it comes back from the file.
        // A refusal leaves it where it is.
        let _ = unsafe { madvise(at, end - start, Advice::LinuxDontNeed) };
        bring_back_little(start, end);
    }
}

/// The kernel brings a page back with its neighbours, 64 KiB in all, as far as they are of the same mapping, and they
/// would be locked with it: three quarters of all code. Mappings of so many bytes save most of what nobody needs.
const PIECE: usize = 16 * 1024;

/// Makes small mappings of a large one: every other piece is marked, with something that means nothing for it.
fn bring_back_little(start: usize, end: usize) {
    // Where they are depends on their addresses alone, so doing it again changes nothing.
    for piece in (start - start % (2 * PIECE)..end).step_by(2 * PIECE) {
        let (from, to) = (piece.max(start), end.min(piece + PIECE));
        let length = to.saturating_sub(from);
        // SAFETY: changes what a core dump has of a mapping of a file, next to nothing by default.
        // A refusal (too many mappings) leaves the mapping in larger pieces.
        let _ = unsafe { madvise(from as *mut c_void, length, Advice::LinuxDontDump) };
    }
}

/// Large blocks stay apart from small ones, so that their memory goes back when they are freed, and is taken only as far
/// as it is used. glibc would begin to mix them after the first large block that is freed. To be called first.
pub fn keep_large_blocks_apart() {
    /// From here on a block is large, bytes.
    #[cfg(target_env = "gnu")]
    const LARGE: libc::c_int = 64 * 1024;
    // SAFETY: takes integers. Refused: more memory is used, nothing else.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Gives back what the allocator holds for nobody.
pub fn give_back_freed() {
    // SAFETY: takes an integer.
    unsafe { libc::malloc_trim(0) };
}

/// Private mappings of files that hold nothing but what is in the file.
fn only_read(smaps: &str) -> Vec<(usize, usize)> {
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

/// `None`: no line about a mapping. `Some(None)`: about one that is not for us.
fn mapping(line: &str) -> Option<Option<(usize, usize)>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    let permissions = words.next()?;
    let path = words.nth(3).unwrap_or_default();
    let for_us = matches!(permissions, "r-xp" | "r--p") && path.starts_with('/');
    Some(for_us.then_some((start, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unwritten_private_mappings_of_files_are_let_go() {
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
        assert_eq!(only_read(smaps), [(0x1000, 0x3000), (0x9000, 0xa000)]);
        assert_eq!(only_read(""), []);
    }

    #[test]
    fn code_comes_back_in_small_pieces() {
        forget_the_start();
        let code = forget_the_start as *const () as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = maps.lines().filter_map(mapping).flatten();
        let (start, end) =
            own.into_iter().find(|(start, end)| (*start..*end).contains(&code)).unwrap();
        assert!(end - start <= PIECE, "{start:x}-{end:x}");
    }

    #[test]
    fn a_program_goes_on_after_it_has_forgotten_its_start() {
        static CONSTANT: [u8; 8192] = [7; 8192];
        let heap: Vec<u8> = vec![9; 1 << 20];
        forget_the_start();
        assert!(CONSTANT.iter().all(|byte| *byte == 7) && heap.iter().all(|byte| *byte == 9));
    }
}
