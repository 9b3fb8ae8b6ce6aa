//! Which calls the listener's threads have in hand, in memory that outlives them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Threads that may listen at a time.
pub const PLACES: usize = 32;

/// The kernel hands out the newest call first, so one of a moment ago can have a number far below
/// the latest: by as many as all others made while it waited. Some seconds of them are looked
/// through in a fraction of one.
const MOST_BEHIND: u64 = 1 << 17;

const BYTES: usize = PLACES * size_of::<AtomicU64>();

/// One number a thread: the call that it took last.
#[derive(Debug)]
pub struct InHand {
    memory: OwnedFd,
    places: NonNull<[AtomicU64; PLACES]>,
}

// SAFETY: the memory holds atomic numbers alone, and stays mapped as long as this lives.
unsafe impl Send for InHand {}
// SAFETY: as above.
unsafe impl Sync for InHand {}

impl InHand {
    /// With nothing in it.
    pub fn new() -> io::Result<Self> {
        let memory =
            memfd_create("trapped-calls", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, BYTES as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(memory)
    }

    /// One that another process made and passed.
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
        // SAFETY: mapped and aligned to a page as long as this lives; any bytes are such numbers.
        unsafe { self.places.as_ref() }
    }

    /// The thread with this place took a call.
    pub fn note(&self, place: usize, id: u64) {
        if let Some(number) = self.places().get(place) {
            number.store(id, Ordering::Relaxed);
        }
    }

    /// Calls that dead threads may have had in hand, whether they noted them or not, and very many
    /// others. None where nothing was ever noted.
    pub(crate) fn suspects(&self) -> impl Iterator<Item = u64> {
        let latest = self.places().iter().map(|number| number.load(Ordering::Relaxed)).max();
        let latest = latest.filter(|&id| id != 0);
        let around = |id: u64| id.saturating_sub(MOST_BEHIND)..=id.saturating_add(PLACES as u64);
        latest.into_iter().flat_map(around)
    }
}

impl AsFd for InHand {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        let _ = unsafe { munmap(self.places.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_around_the_latest_are_suspected_whoever_noted_it() {
        let in_hand = InHand::new().unwrap();
        assert_eq!(in_hand.suspects().count(), 0);
        let latest = 1 << 60;
        in_hand.note(3, latest);
        in_hand.note(0, latest - 40_000);
        let suspected = |id| in_hand.suspects().any(|suspect| suspect == id);
        assert!(suspected(latest) && suspected(latest + 2), "the next ones");
        assert!(suspected(latest - 90_000), "and one that waited");
        in_hand.note(1, u64::MAX);
        assert!(suspected(u64::MAX));
    }
}
