//! An upper bound of an account's actual usage. It falls with each source that is read: the files
//! that processes map, the machine's shared memory, and the processes themselves.

use memory_watch::process::{FileRange, Storage};

/// Memory by kind, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryParts {
    /// Shared memory and tmpfs files.
    pub(super) shmem_bytes: u64,
    /// All other memory.
    pub(super) other_bytes: u64,
}

impl MemoryParts {
    pub(super) fn bytes(self) -> u64 {
        self.shmem_bytes + self.other_bytes
    }
}

/// An upper bound of an account's actual usage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    /// Memory of the listed processes, page tables and memory that is held without a mapping; less
    /// what other sharers have of it, as far as processes were read.
    listed: MemoryParts,
    /// Memory of no process: of forks in progress, and of processes that have exited.
    unlisted: MemoryParts,
    /// Maximum of the listed processes' shared memory, bytes.
    files_bytes: u64,
    /// Maximum of all shared memory, bytes.
    machine_bytes: u64,
    /// Part of `listed` that processes have, or may have, which the budget excluded, bytes.
    unread_bytes: u64,
    /// Part of `listed` that belongs to processes which did not answer, bytes.
    unanswered_bytes: u64,
}

impl Bound {
    /// Each page counts once for each process.
    pub(super) fn new(listed: MemoryParts, unlisted: MemoryParts) -> Self {
        let (files_bytes, machine_bytes) = (u64::MAX, u64::MAX);
        let (unread_bytes, unanswered_bytes) = (0, 0);
        Self { listed, unlisted, files_bytes, machine_bytes, unread_bytes, unanswered_bytes }
    }

    /// The bound, bytes.
    pub(super) fn bytes(&self) -> u64 {
        let shmem_bytes = self.listed_shmem_bytes() + self.unlisted.shmem_bytes;
        let other_bytes = self.listed.other_bytes + self.unlisted.other_bytes;
        other_bytes + shmem_bytes.min(self.machine_bytes)
    }

    /// The part of the bound that is not confirmed: memory of no process, and of processes that
    /// were not read.
    pub(super) fn unconfirmed_bytes(&self) -> u64 {
        let listed_bytes = self.listed.other_bytes + self.listed_shmem_bytes();
        self.bytes() - listed_bytes + self.unread_bytes + self.unanswered_bytes
    }

    /// Memory of processes that did not answer, bytes.
    pub(super) fn unanswered_bytes(&self) -> u64 {
        self.unanswered_bytes
    }

    /// Memory of listed processes that were not read, bytes.
    pub(super) fn unread_bytes(&self) -> u64 {
        self.unread_bytes + self.unanswered_bytes
    }

    fn listed_shmem_bytes(&self) -> u64 {
        self.listed.shmem_bytes.min(self.files_bytes).min(self.machine_bytes)
    }

    /// Adds memory of the account that no process has mapped, and page tables.
    pub(super) fn add(&mut self, bytes: u64) {
        self.listed.other_bytes += bytes;
    }

    /// Shared memory of all processes, each page counted once for each, bytes.
    pub(super) fn shmem_bytes(&self) -> u64 {
        self.listed.shmem_bytes + self.unlisted.shmem_bytes
    }

    /// Lowers the bound: the machine has this much shared memory.
    pub(super) fn bound_by_machine(&mut self, shmem_bytes: u64) {
        self.machine_bytes = shmem_bytes;
    }

    /// Lowers the bound: the listed processes map files of this size.
    pub(super) fn bound_by_files(&mut self, bytes: u64) {
        self.files_bytes = bytes;
    }

    /// Takes off what other sharers have of a process's memory. The charge may have changed since
    /// the process was read, so it caps the shared part.
    pub(super) fn take_off(&mut self, of_others: MemoryParts, charged: MemoryParts) {
        self.listed.shmem_bytes -= of_others.shmem_bytes.min(charged.shmem_bytes);
        let shared_bytes = of_others.other_bytes.min(charged.other_bytes);
        self.listed.other_bytes = self.listed.other_bytes.saturating_sub(shared_bytes);
    }

    /// A process has exited since it was listed: its memory is being freed.
    pub(super) fn exit(&mut self, charged: MemoryParts) {
        self.listed.shmem_bytes -= charged.shmem_bytes;
        self.listed.other_bytes = self.listed.other_bytes.saturating_sub(charged.other_bytes);
        self.unlisted.shmem_bytes += charged.shmem_bytes;
        self.unlisted.other_bytes += charged.other_bytes;
    }

    /// A process holds its mmap lock: it forks, for long where many programs are runnable.
    pub(super) fn on_no_answer(&mut self, charged: MemoryParts) {
        self.unanswered_bytes += charged.bytes();
    }

    /// The budget excludes processes: whether the account has these bytes is not known.
    pub(super) fn exclude(&mut self, bytes: u64) {
        self.unread_bytes += bytes;
    }
}

/// The files that the processes of an account map: an upper bound of their shared memory.
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

    const SESSION: MemoryParts = MemoryParts { shmem_bytes: 1000, other_bytes: 10 };

    fn of_sessions(listed: u64, exited: u64) -> Bound {
        let parts = |count| MemoryParts {
            shmem_bytes: count * SESSION.shmem_bytes,
            other_bytes: count * SESSION.other_bytes,
        };
        Bound::new(parts(listed), parts(exited))
    }

    #[test]
    fn shared_memory_of_processes_that_exit_is_bounded_by_that_of_the_machine() {
        let mut bound = of_sessions(3, 2);
        assert_eq!((bound.bytes(), bound.unconfirmed_bytes()), (5050, 2020));
        bound.bound_by_machine(1100);
        assert_eq!((bound.bytes(), bound.unconfirmed_bytes()), (1150, 20));
        bound.bound_by_files(1010);
        assert_eq!((bound.bytes(), bound.unconfirmed_bytes()), (1150, 110));
    }

    #[test]
    fn a_process_that_has_exited_since_is_not_confirmed() {
        let mut bound = of_sessions(3, 0);
        bound.exit(SESSION);
        assert_eq!((bound.bytes(), bound.unconfirmed_bytes()), (3030, 1010));
        bound.bound_by_files(1000);
        assert_eq!((bound.bytes(), bound.unconfirmed_bytes()), (2030, 1010));
    }

    #[test]
    fn the_part_of_other_sharers_is_not_counted_and_processes_that_were_not_read_are_unconfirmed() {
        let mut bound = of_sessions(2, 0);
        bound.take_off(MemoryParts { shmem_bytes: 500, other_bytes: 50 }, SESSION);
        bound.exclude(SESSION.bytes());
        assert_eq!((bound.bytes(), bound.unconfirmed_bytes()), (1510, 1010));
        bound.on_no_answer(MemoryParts { shmem_bytes: 0, other_bytes: 10 });
        assert_eq!((bound.bytes(), bound.unconfirmed_bytes()), (1510, 1020));
    }

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
