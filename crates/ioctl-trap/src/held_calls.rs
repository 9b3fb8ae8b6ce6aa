//! Records which calls the listener's threads hold, in memory that outlives the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Maximum number of listener threads.
pub const PLACES: usize = 32;

/// How far the id of a held call can be below the latest one. The kernel delivers the newest call
/// first, so a call that has waited has an id that is lower by the number of all calls made
/// meanwhile. This covers the calls of some seconds; iterating over them takes a fraction of one.
const MOST_BEHIND: u64 = 1 << 17;

const BYTES: usize = PLACES * size_of::<AtomicU64>();

/// One id per listener thread: the call that it received last.
#[derive(Debug)]
pub struct HeldCalls {
    memory: OwnedFd,
    places: NonNull<[AtomicU64; PLACES]>,
}

// SAFETY: the memory holds only atomic integers, and stays mapped for the life of this value.
unsafe impl Send for HeldCalls {}
// SAFETY: as above.
unsafe impl Sync for HeldCalls {}

impl HeldCalls {
    /// Creates a record without any call.
    pub fn new() -> io::Result<Self> {
        let memory =
            memfd_create("trapped-calls", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, BYTES as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(memory)
    }

    /// Maps a record that another process has created and passed.
    pub fn map(memory: OwnedFd) -> io::Result<Self> {
        if rustix::fs::fstat(&memory)?.st_size < BYTES as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a new shared mapping, of a file that is long enough.
        let at = unsafe {
            mmap(
                null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &memory,
                0,
            )?
        };
        let places = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, places })
    }

    fn places(&self) -> &[AtomicU64; PLACES] {
        // SAFETY: mapped and page-aligned for the life of this value; any bytes are valid integers.
        unsafe { self.places.as_ref() }
    }

    /// Records that the thread with this place has received a call.
    pub fn note(&self, place: usize, id: u64) {
        if let Some(number) = self.places().get(place) {
            number.store(id, Ordering::Relaxed);
        }
    }

    /// Ids of all calls that exited threads may have held, whether they recorded them or not; most
    /// of the ids were never held. Empty if no call was ever recorded.
    pub(crate) fn suspects(&self) -> impl Iterator<Item = u64> {
        let latest = self.places().iter().map(|number| number.load(Ordering::Relaxed)).max();
        let latest = latest.filter(|&id| id != 0);
        let around = |id: u64| id.saturating_sub(MOST_BEHIND)..=id.saturating_add(PLACES as u64);
        latest.into_iter().flat_map(around)
    }
}

impl AsFd for HeldCalls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for HeldCalls {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        let _ = unsafe { munmap(self.places.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_around_the_latest_are_suspected_from_any_thread() {
        let held_calls = HeldCalls::new().unwrap();
        assert_eq!(held_calls.suspects().count(), 0);
        let latest = 1 << 60;
        held_calls.note(3, latest);
        held_calls.note(0, latest - 40_000);
        let suspected = |id| held_calls.suspects().any(|suspect| suspect == id);
        assert!(suspected(latest) && suspected(latest + 2), "the next ones");
        assert!(suspected(latest - 90_000), "and one that waited");
        held_calls.note(1, u64::MAX);
        assert!(suspected(u64::MAX));
    }
}
