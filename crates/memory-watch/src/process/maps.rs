//! `maps`, `smaps_rollup` and `smaps` of `/proc/<pid>`: what a process maps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;

use headroom_linux::machine_memory::{ReadError, keys_and_values, kib_to_bytes};

use super::{FileId, Proc};

/// A range of a file that a process has mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileRange {
    /// The file.
    pub file: FileId,
    /// Offset of the first byte.
    pub begin: u64,
    /// Offset after the last byte.
    pub end: u64,
}

impl Proc {
    /// The mapped ranges of all files that are not on a disk; among them are all files in memory.
    /// The kernel does not walk the page tables for it, so its cost does not depend on the size of
    /// the mappings.
    pub fn file_ranges(&self, pid: u32) -> Result<Vec<FileRange>, ReadError> {
        let mut ranges = Vec::new();
        self.each_mapping(pid, |_, range| {
            ranges.extend(range);
            ControlFlow::Continue(())
        })?;
        Ok(ranges)
    }

    /// Passes each line to `visit`, with the range if it is of a file that is not on a disk, until
    /// that breaks.
    pub(super) fn each_mapping(
        &self,
        pid: u32,
        mut visit: impl FnMut(&str, Option<FileRange>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let path = self.root.join(pid.to_string()).join("maps");
        let file = File::open(&path).map_err(|e| ReadError::io(&path, e))?;
        let mut line = Vec::new();
        let mut reader = BufReader::new(file);
        loop {
            line.clear();
            let len = reader.read_until(b'\n', &mut line).map_err(|e| ReadError::io(&path, e))?;
            if len == 0 {
                return Ok(());
            }
            // File names need not be UTF-8; they are at the end of the line.
            let text = String::from_utf8_lossy(&line);
            let in_file = |range: &FileRange| range.file.inode != 0 && !range.file.is_on_disk();
            if visit(&text, file_range(&text).filter(in_file)).is_break() {
                return Ok(());
            }
        }
    }
}

/// Names of SysV segments begin with this. The inode number of a segment is its id, which segments
/// of other namespaces and unrelated files have as well.
const SYSV: &str = "/SYSV";
/// The device of SysV segments in a [`FileId`]; no filesystem has it.
pub(super) const NO_DEVICE: u64 = 0;

/// The mapping of a file: `start-end perms offset major:minor inode path`, with inode 0 for
/// anonymous memory.
fn file_range(line: &str) -> Option<FileRange> {
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let bytes = hexadecimal(end)?.checked_sub(hexadecimal(start)?)?;
    let begin = hexadecimal(fields.nth(1)?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let inode = fields.next()?.parse().ok()?;
    let device = match fields.next() {
        Some(path) if path.starts_with(SYSV) => NO_DEVICE,
        _ => rustix::fs::makedev(number(major)?, number(minor)?),
    };
    Some(FileRange { file: FileId { device, inode }, begin, end: begin.checked_add(bytes)? })
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmapsRollup {
    /// Resident.
    pub rss_bytes: Option<u64>,
    /// Resident, each shared page divided by the number of processes that map it.
    pub pss_bytes: Option<u64>,
    /// Part of `pss_bytes`: anonymous memory.
    pub pss_anon_bytes: Option<u64>,
    /// Part of `pss_bytes`: shared memory.
    pub pss_shmem_bytes: Option<u64>,
    /// Part of `pss_bytes`: files.
    pub pss_file_bytes: Option<u64>,
    /// Part of `rss_bytes`: anonymous memory.
    pub anon_bytes: Option<u64>,
    /// Swapped out, each page divided by the number of processes that share it.
    pub swap_pss_bytes: Option<u64>,
    /// Lazily freed (`MADV_FREE`) and not written to since, each page in full for each sharer.
    pub lazy_free_bytes: Option<u64>,
    /// Resident pages that other processes map and that were not written to; in full.
    pub shared_clean_bytes: Option<u64>,
}

impl SmapsRollup {
    /// Lazily freed memory that no other process has, at least: the kernel can take it at any time.
    /// It is a part of `pss_anon_bytes`. Shared pages are left out, since each sharer would take
    /// off the whole page.
    pub fn lazily_freed_bytes(&self) -> u64 {
        let all_bytes = self.lazy_free_bytes.unwrap_or(0);
        all_bytes.saturating_sub(self.shared_clean_bytes.unwrap_or(all_bytes))
    }
}

impl Proc {
    /// Reads `/proc/<pid>/smaps_rollup`. Exact, but the kernel walks the page tables (9.6 ms per
    /// GiB was measured), so for a second measurement only. Returns `ESRCH` for a process without
    /// an address space.
    pub fn smaps_rollup(&mut self, pid: u32) -> Result<SmapsRollup, ReadError> {
        let content = self.read(pid, "smaps_rollup")?;
        let mut sizes = SmapsRollup::default();
        for (key, value) in keys_and_values(content.text()?) {
            let field = match key {
                "Rss" => &mut sizes.rss_bytes,
                "Pss" => &mut sizes.pss_bytes,
                "Pss_Anon" => &mut sizes.pss_anon_bytes,
                "Pss_Shmem" => &mut sizes.pss_shmem_bytes,
                "Pss_File" => &mut sizes.pss_file_bytes,
                "Anonymous" => &mut sizes.anon_bytes,
                "SwapPss" => &mut sizes.swap_pss_bytes,
                "LazyFree" => &mut sizes.lazy_free_bytes,
                "Shared_Clean" => &mut sizes.shared_clean_bytes,
                _ => continue,
            };
            *field = kib_to_bytes(value);
        }
        Ok(sizes)
    }
}

impl Proc {
    /// Mapped bytes of each of these files, each page divided by the number of processes that map
    /// it. Files that are not mapped are left out.
    pub fn mapped_of(
        &self,
        pid: u32,
        wanted: &dyn Fn(FileId) -> bool,
    ) -> Result<BTreeMap<FileId, u64>, ReadError> {
        let mut mapped = BTreeMap::new();
        self.each_size(pid, |file, key, bytes| {
            if key == "Pss" && wanted(file) {
                *mapped.entry(file).or_default() += bytes;
            }
        })?;
        Ok(mapped)
    }

    /// Locked bytes of each file that a process maps, each page divided by the number of processes
    /// that map it, without the process's own copies of pages, which are anonymous memory. Files
    /// that are not locked and segments, which are shared memory, are left out.
    pub fn locked_files(&mut self, pid: u32) -> Result<BTreeMap<FileId, u64>, ReadError> {
        if self.status(pid)?.locked_bytes.unwrap_or(0) == 0 {
            return Ok(BTreeMap::new());
        }
        let (mut locked, mut copied_bytes) = (BTreeMap::new(), 0);
        self.each_size(pid, |file, key, bytes| match key {
            // Before `Locked` of the same mapping.
            "Anonymous" => copied_bytes = bytes,
            "Locked" if file.inode != 0 && file.device != NO_DEVICE => {
                *locked.entry(file).or_default() += bytes.saturating_sub(copied_bytes);
            }
            _ => {}
        })?;
        locked.retain(|_, bytes| *bytes > 0);
        Ok(locked)
    }

    /// Passes each size of each mapping to `visit`: the file (inode 0 for anonymous memory), the
    /// name of the size, and bytes. It costs as much as `smaps_rollup`, and some text.
    fn each_size(
        &self,
        pid: u32,
        mut visit: impl FnMut(FileId, &str, u64),
    ) -> Result<(), ReadError> {
        let path = self.root.join(pid.to_string()).join("smaps");
        let file = File::open(&path).map_err(|e| ReadError::io(&path, e))?;
        let mut current = None;
        for line in BufReader::new(file).split(b'\n') {
            let line = line.map_err(|e| ReadError::io(&path, e))?;
            // File names need not be UTF-8; they are at the end of the line.
            let line = String::from_utf8_lossy(&line);
            match line.split_once(':').filter(|(key, _)| !key.contains(' ')) {
                Some((key, value)) => {
                    if let (Some(file), Some(bytes)) = (current, kib_to_bytes(value.trim())) {
                        visit(file, key, bytes);
                    }
                }
                None => current = file_range(&line).map(|range| range.file),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake;
    use super::*;

    #[test]
    fn lists_mappings_of_files_that_are_not_on_a_disk() {
        let text = b"400000-401000 r-xp 00002000 fe:01 7 /bin/x\n\
                     7f0000-7f4000 rw-s 00001000 00:01 12 /dev/zero (deleted)\n\
                     7f4000-7f8000 rw-p 00000000 00:00 0 \n\
                     7f8000-7f9000 r--p 00000000 00:2b 3 /run/\xff\n\
                     7f9000-7fa000 rw-s 00000000 00:01 12 /SYSV00000000 (deleted)\n";
        let (_dir, proc) = fake(5, "maps", text);
        let range = |minor, inode, begin, end| FileRange {
            file: FileId { device: rustix::fs::makedev(0, minor), inode },
            begin,
            end,
        };
        let ranges = proc.file_ranges(5).unwrap();
        let mapped =
            [range(1, 12, 0x1000, 0x5000), range(0x2b, 3, 0, 0x1000), range(0, 12, 0, 0x1000)];
        assert_eq!(ranges, mapped, "a segment and a file with the same number are distinct");
        assert!(proc.file_ranges(6).unwrap_err().is_gone());
    }

    #[test]
    fn shared_pages_count_less_than_resident_ones() {
        let sizes = Proc::default().smaps_rollup(std::process::id()).unwrap();
        assert!(sizes.pss_bytes.unwrap() > 0);
        assert!(sizes.pss_bytes <= sizes.rss_bytes);
        assert!(sizes.pss_anon_bytes <= sizes.pss_bytes);
    }

    #[test]
    fn adds_up_the_mappings_of_a_file() {
        let text =
            b"7f00-7f10 rw-s 00000000 00:01 12 /memfd:x (deleted)\nSize: 64 kB\nPss: 40 kB\n\
                     Pss_Dirty: 1 kB\n\
                     7f10-7f20 rw-p 00000000 00:00 0 \nPss: 9 kB\n\
                     7f20-7f30 rw-s 00000000 00:01 12 /memfd:x (deleted)\nPss: 2 kB\n";
        let (_dir, proc) = fake(5, "smaps", text);
        let file = FileId { device: rustix::fs::makedev(0, 1), inode: 12 };
        let mapped = proc.mapped_of(5, &|it| it == file).unwrap();
        assert_eq!(mapped, BTreeMap::from([(file, 42 << 10)]));
        assert_eq!(proc.mapped_of(5, &|_| false).unwrap(), BTreeMap::new());
        assert!(proc.mapped_of(6, &|_| true).unwrap_err().is_gone());
    }

    #[test]
    fn locked_pages_of_files_count_without_copies_and_segments() {
        let text = b"7f00-7f10 r--p 00000000 fe:01 12 /bin/x\nAnonymous: 8 kB\nLocked: 32 kB\n\
                     7f10-7f20 rw-p 00000000 00:00 0 \nAnonymous: 9 kB\nLocked: 9 kB\n\
                     7f20-7f30 r--p 00000000 fe:01 12 /bin/x\nAnonymous: 0 kB\nLocked: 2 kB\n\
                     7f30-7f40 rw-s 00000000 00:01 5 /SYSV00000000 (deleted)\n\
                     Anonymous: 0 kB\nLocked: 64 kB\n\
                     7f40-7f50 r--p 00000000 fe:01 13 /bin/y\nAnonymous: 4 kB\nLocked: 4 kB\n";
        let (dir, mut proc) = fake(5, "smaps", text);
        let status = dir.path().join("5/status");
        std::fs::write(&status, "Name:\tx\nVmLck:\t 200 kB\nRssAnon:\t 1 kB\n").unwrap();
        let file = FileId { device: rustix::fs::makedev(0xfe, 1), inode: 12 };
        assert_eq!(proc.locked_files(5).unwrap(), BTreeMap::from([(file, 26 << 10)]));
        std::fs::write(&status, "Name:\tx\nVmLck:\t 0 kB\nRssAnon:\t 1 kB\n").unwrap();
        assert_eq!(proc.locked_files(5).unwrap(), BTreeMap::new());
    }
}
