//! The journal of leases: a file with one record per client, written through a shared mapping, so
//! that all grants survive a daemon that is killed at any moment.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use anyhow::Context;
use memory_ledger::Uid;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Maximum number of clients, of all users together.
pub const MAX_CLIENTS: usize = owners::bounds::LEASE_CLIENTS.slots().slots;
/// First word of a record in use: a magic number and the version of the layout.
const IN_USE: u64 = 0x6c65_6173_6501;
const WORDS: usize = 8;
const BYTES: usize = MAX_CLIENTS * WORDS * 8;

/// The record of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Thread group of the process.
    pub pid: u32,
    /// Start time of the process as reported by the watch, nanoseconds.
    pub start_number: u64,
    /// User of the process.
    pub uid: Uid,
    /// Identifier of the address space; 0: unknown.
    pub mm_id: u64,
    /// Memory that the process held besides its grants, bytes.
    pub base: i64,
    /// Granted, bytes.
    pub granted: u64,
}

/// The journal, mapped.
pub struct Journal {
    path: PathBuf,
    words: NonNull<AtomicU64>,
    free: Vec<usize>,
}

// SAFETY: the mapping belongs to this value alone, and is only used through atomics.
unsafe impl Send for Journal {}

impl Journal {
    /// Opens or creates the file, with mode 0600. Returns its records by slot.
    pub fn open(path: &Path) -> anyhow::Result<(Self, Vec<(usize, Record)>)> {
        let name = || path.display().to_string();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .with_context(name)?;
        file.set_len(BYTES as u64).with_context(name)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice, of a file only we write.
        let at = unsafe { mmap(std::ptr::null_mut(), BYTES, prot, MapFlags::SHARED, &file, 0) };
        let words = NonNull::new(at.with_context(name)?.cast()).context("mapped at 0")?;
        let mut journal =
            Self { path: path.to_owned(), words, free: Vec::with_capacity(MAX_CLIENTS) };
        let mut found = Vec::new();
        // Read without the mapping: a page of the mapping becomes resident when it is first used.
        let mut before = vec![0; BYTES];
        file.read_exact_at(&mut before, 0).with_context(name)?;
        for slot in (0..MAX_CLIENTS).rev() {
            let at = slot * WORDS * 8;
            let in_use = before[at..at + 8] == IN_USE.to_ne_bytes();
            match in_use.then(|| journal.read(slot)).flatten() {
                Some(record) => found.push((slot, record)),
                None => journal.free.push(slot),
            }
        }
        Ok((journal, found))
    }

    fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        debug_assert!(slot < MAX_CLIENTS && word < WORDS);
        // SAFETY: inside the mapping, which lives as long as `self`; atomics only.
        unsafe { &*self.words.as_ptr().add(slot * WORDS + word) }
    }

    fn read(&self, slot: usize) -> Option<Record> {
        let word = |n| self.word(slot, n).load(Relaxed);
        (self.word(slot, 0).load(Acquire) == IN_USE).then(|| Record {
            pid: word(1) as u32,
            uid: Uid((word(1) >> 32) as u32),
            start_number: word(2),
            mm_id: word(3),
            base: word(4) as i64,
            granted: word(5),
        })
    }

    /// Allocates a slot for a new client; `None`: all slots are in use.
    pub fn take_slot(&mut self) -> Option<usize> {
        self.free.pop()
    }

    /// Writes a record. The word that marks it as in use is written last.
    pub fn write(&self, slot: usize, record: &Record) {
        let put = |n, value| self.word(slot, n).store(value, Relaxed);
        put(1, u64::from(record.uid.0) << 32 | u64::from(record.pid));
        put(2, record.start_number);
        put(3, record.mm_id);
        put(4, record.base as u64);
        put(5, record.granted);
        self.word(slot, 0).store(IN_USE, Release);
    }

    /// Releases the slot of a client.
    pub fn free(&mut self, slot: usize) {
        self.word(slot, 0).store(0, Release);
        self.free.push(slot);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.free.len() == MAX_CLIENTS {
            // No leases are left: the next daemon has nothing to take over.
            let _ = std::fs::remove_file(&self.path);
        }
        // SAFETY: our own mapping, and no reference outlives `self`. A failure would leave it
        // mapped.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_read_by_the_next_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leases");
        let record =
            Record { pid: 7, start_number: 8, uid: Uid(9), mm_id: 10, base: -11, granted: 12 };
        let (mut journal, found) = Journal::open(&path).unwrap();
        assert!(found.is_empty());
        let (kept, dropped) = (journal.take_slot().unwrap(), journal.take_slot().unwrap());
        journal.write(kept, &record);
        journal.write(dropped, &Record { pid: 70, ..record });
        journal.free(dropped);
        drop(journal);
        let (mut journal, found) = Journal::open(&path).unwrap();
        assert_eq!(found, [(kept, record)]);
        let mut slots = 0;
        while let Some(slot) = journal.take_slot() {
            assert_ne!(slot, kept);
            slots += 1;
        }
        assert_eq!(slots, MAX_CLIENTS - 1);
    }
}
