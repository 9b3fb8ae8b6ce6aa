//! Private memory of small or huge pages, and how fast it is unmapped: the physical limit of
//! reclaim.

use std::ptr;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};
use serde::{Deserialize, Serialize};

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
/// The least size of one of many mappings, and their greatest number: half of what a process may
/// have by default (`vm.max_map_count`).
const LEAST_MAPPING: usize = 16 << 10;
const MOST_MAPPINGS: usize = 32_000;

/// Page size of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pages {
    /// 4 KiB.
    Small,
    /// Transparent huge pages.
    Huge,
}

/// Layout of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Size, MiB.
    pub mib: u64,
    /// Of what pages.
    pub pages: Pages,
    /// In as many mappings as possible, instead of one.
    pub many_mappings: bool,
}

/// Freed memory, and the time it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Back {
    /// Bytes.
    pub bytes: u64,
    /// Since the beginning, seconds.
    pub seconds: f64,
}

impl Back {
    /// Rate, 10^6 bytes per second.
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

/// Private memory; unmapped on drop.
pub struct Memory {
    base: *mut u8,
    room: usize,
    at: *mut u8,
    len: usize,
}

// SAFETY: plain memory without ties to a thread.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps it in one piece, and does not touch it.
    pub fn map(len: usize, pages: Pages) -> Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // Huge pages are aligned; the unaligned ends cost nothing while they are untouched.
        let (margin, align, advice) = match pages {
            Pages::Small => (0, PAGE, Advice::LinuxNoHugepage),
            Pages::Huge => (HUGE_PAGE, HUGE_PAGE, Advice::LinuxHugepage),
        };
        let room = len.max(PAGE) + margin;
        // SAFETY: a new mapping, with room for its aligned middle. The advice changes no content. A
        // kernel without huge pages refuses it and gives small ones anyway.
        unsafe {
            let base = mmap_anonymous(ptr::null_mut(), room, prot, flags).context("no memory")?;
            let _ = madvise(base, room, advice);
            let base: *mut u8 = base.cast();
            Ok(Self { base, room, at: base.add(base.align_offset(align)), len })
        }
    }

    /// Touches part `part` of `of` equal parts.
    pub fn touch(&self, part: usize, of: usize) {
        let pages = self.len / PAGE;
        for page in pages * part / of..pages * (part + 1) / of {
            // SAFETY: inside the mapping; no two threads write to the same part.
            unsafe { self.at.add(page * PAGE).write_volatile(1) };
        }
    }

    /// Splits touched memory into many mappings: every other piece becomes read-only.
    pub fn split(&self, pages: Pages) -> Result<()> {
        let unit = if pages == Pages::Huge { HUGE_PAGE } else { PAGE };
        let piece = (self.len / MOST_MAPPINGS).max(LEAST_MAPPING).next_multiple_of(unit);
        for start in (piece..self.len).step_by(2 * piece) {
            let len = piece.min(self.len - start);
            // SAFETY: inside the mapping, which is not written to any more.
            let split = unsafe { mprotect(self.at.add(start).cast(), len, MprotectFlags::READ) };
            split.context("cannot split the memory into many mappings")?;
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, as long as this, and not used after.
        let _ = unsafe { munmap(self.base.cast(), self.room) };
    }
}

/// The physical limit: how fast this process unmaps such memory itself.
pub fn munmap_back(layout: Layout) -> Result<Back> {
    let memory = Memory::map((layout.mib as usize) << 20, layout.pages)?;
    memory.touch(0, 1);
    if layout.many_mappings {
        memory.split(layout.pages)?;
    }
    let start = Instant::now();
    drop(memory);
    Ok(Back { bytes: layout.mib << 20, seconds: start.elapsed().as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_whole_and_aligned_whatever_its_size() {
        for mib in [1, 3, 8] {
            let memory = Memory::map(mib << 20, Pages::Huge).unwrap();
            assert_eq!((memory.at as usize % HUGE_PAGE, memory.len), (0, mib << 20));
            (0..3).for_each(|part| memory.touch(part, 3));
        }
    }

    #[test]
    fn memory_in_many_mappings_is_that() {
        let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let layout = Layout { mib: 8, pages: Pages::Small, many_mappings: true };
        let memory = Memory::map(8 << 20, Pages::Small).unwrap();
        let before = mappings();
        memory.split(Pages::Small).unwrap();
        assert!(mappings() >= before + 400, "{before} mappings became {}", mappings());
        assert!(munmap_back(layout).unwrap().mb_per_s() > 0.0);
    }
}
