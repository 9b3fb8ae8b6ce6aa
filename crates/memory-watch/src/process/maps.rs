//! `/proc/<pid>/maps`: the ranges of files that a process maps. The kernel does not walk the page
//! tables for it, so its cost does not depend on the size of the mappings.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;

use super::{FileId, Proc};
use machine_memory::ReadError;

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
pub(super) fn file_range(line: &str) -> Option<FileRange> {
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
}
