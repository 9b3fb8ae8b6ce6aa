//! `/proc/<pid>/smaps`: the files that a process maps or locks, and how much of them. It costs as
//! much as `smaps_rollup`, and some text.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

use super::maps::file_range;
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
        self.sizes_of(pid, "Pss:", wanted)
    }

    /// Locked bytes of each file that a process maps, each page divided by the number of processes
    /// that map it. Files that are not locked are left out.
    pub fn locked_files(&mut self, pid: u32) -> Result<BTreeMap<FileId, u64>, ReadError> {
        if self.status(pid)?.locked_bytes.unwrap_or(0) == 0 {
            return Ok(BTreeMap::new());
        }
        let mut locked = self.sizes_of(pid, "Locked:", &|file| file.inode != 0)?;
        locked.retain(|_, bytes| *bytes > 0);
        Ok(locked)
    }

    /// The sum of a field over the mappings of each of these files.
    fn sizes_of(
        &self,
        pid: u32,
        field: &str,
        wanted: &dyn Fn(FileId) -> bool,
    ) -> Result<BTreeMap<FileId, u64>, ReadError> {
        let path = self.root.join(pid.to_string()).join("smaps");
        let file = File::open(&path).map_err(|e| ReadError::io(&path, e))?;
        let mut mapped = BTreeMap::new();
        let mut current = None;
        for line in BufReader::new(file).split(b'\n') {
            let line = line.map_err(|e| ReadError::io(&path, e))?;
            // File names need not be UTF-8; they are at the end of the line.
            let line = String::from_utf8_lossy(&line);
            if let Some(value) = line.strip_prefix(field) {
                if let (Some(file), Some(bytes)) = (current, kib_to_bytes(value.trim())) {
                    *mapped.entry(file).or_default() += bytes;
                }
            } else if let Some(range) = file_range(&line) {
                current = Some(range.file).filter(|file| wanted(*file));
            }
        }
        Ok(mapped)
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
                     Locked: 32 kB\n\
                     Pss_Dirty: 1 kB\n\
                     7f10-7f20 rw-p 00000000 00:00 0 \nPss: 9 kB\n\
                     7f20-7f30 rw-s 00000000 00:01 12 /memfd:x (deleted)\nPss: 2 kB\n";
        let (_dir, proc) = fake(5, "smaps", text);
        let file = FileId { device: rustix::fs::makedev(0, 1), inode: 12 };
        let mapped = proc.mapped_of(5, &|it| it == file).unwrap();
        assert_eq!(mapped, BTreeMap::from([(file, 42 << 10)]));
        assert_eq!(proc.mapped_of(5, &|_| false).unwrap(), BTreeMap::new());
        assert_eq!(
            proc.sizes_of(5, "Locked:", &|_| true).unwrap(),
            BTreeMap::from([(file, 32 << 10)])
        );
        assert!(proc.mapped_of(6, &|_| true).unwrap_err().is_gone());
    }
}
