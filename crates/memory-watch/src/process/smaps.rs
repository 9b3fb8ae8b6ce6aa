//! `/proc/<pid>/smaps`: the files that a process maps or locks, and how much of them. It costs as
//! much as `smaps_rollup`, and some text.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

use super::maps::{NO_DEVICE, file_range};
use super::{FileId, Proc};
use machine_memory::ReadError;
use machine_memory::text::kib_to_bytes;

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
    /// name of the size, and bytes.
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
