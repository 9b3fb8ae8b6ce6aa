//! An upper bound of the shared memory of several processes: the ranges of files that they map.

use memory_watch::process::{FileRange, Storage};

/// The files that the processes of an account map.
#[derive(Default)]
pub(super) struct MappedFiles {
    /// Ranges of files that inode numbers identify.
    ranges: Vec<FileRange>,
    /// Memory that may belong to several processes and counts once for each, bytes.
    other_bytes: u64,
}

impl MappedFiles {
    /// Adds a process with its mapped files; `shmem_bytes` is its resident shared memory.
    pub(super) fn add(
        &mut self,
        shmem_bytes: u64,
        files: impl IntoIterator<Item = (FileRange, Storage)>,
    ) {
        let mut unknown_bytes = 0;
        for (range, storage) in files {
            match storage {
                Storage::Memory => self.ranges.push(range),
                Storage::Unknown => unknown_bytes += range.end - range.begin,
                // Its pages are no shared memory.
                Storage::Unreclaimable | Storage::Other => {}
            }
        }
        self.other_bytes += shmem_bytes.min(unknown_bytes);
    }

    /// Adds a process whose mappings are unknown.
    pub(super) fn add_unknown(&mut self, shmem_bytes: u64) {
        self.other_bytes += shmem_bytes;
    }

    /// The size of the mapped parts of all files, each part counted once, bytes.
    pub(super) fn bytes(mut self) -> u64 {
        self.ranges.sort_unstable();
        let mut bytes = self.other_bytes;
        let mut last: Option<FileRange> = None;
        for range in self.ranges {
            let counted = last.filter(|last| last.file == range.file).map_or(0, |last| last.end);
            bytes += range.end.saturating_sub(range.begin.max(counted));
            last = Some(FileRange { end: range.end.max(counted), ..range });
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use memory_watch::process::FileId;

    use super::*;

    fn range(inode: u64, begin: u64, end: u64) -> (FileRange, Storage) {
        (FileRange { file: FileId { device: 1, inode }, begin, end }, Storage::Memory)
    }

    fn of(range: (FileRange, Storage), storage: Storage) -> (FileRange, Storage) {
        (range.0, storage)
    }

    #[test]
    fn a_part_of_a_file_counts_once_however_many_processes_map_it() {
        let mut files = MappedFiles::default();
        files.add(500, [range(1, 100, 300), range(2, 0, 50)]);
        files.add(500, [range(1, 0, 150), range(1, 250, 260), range(1, 400, 410)]);
        assert_eq!(files.bytes(), 300 + 10 + 50);
    }

    #[test]
    fn files_that_cannot_be_identified_count_for_each_process() {
        let mut files = MappedFiles::default();
        files.add(500, [of(range(1, 0, 90), Storage::Unknown), range(1, 0, 7)]);
        files.add(20, [of(range(1, 0, 90), Storage::Unknown)]);
        files.add(500, [of(range(1, 0, 1000), Storage::Other)]);
        files.add_unknown(3);
        assert_eq!(files.bytes(), 90 + 20 + 7 + 3);
    }
}
