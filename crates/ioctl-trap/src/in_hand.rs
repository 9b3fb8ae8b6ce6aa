//! Which calls the listener's threads have in hand, in memory that outlives them.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Calls that others may take while one thread, which has just taken one, does not get a CPU: seconds of them.
const MOST_BEHIND: u64 = 1 << 20;

/// Threads that may listen at a time.
pub const PLACES: usize = 32;

const BYTES: usize = size_of::<Places>();

/// What each thread says of itself.
#[repr(C)]
struct Places {
    /// The latest call that anybody had noted when the thread went to take its next one; 0: it takes none.
    after: [AtomicU64; PLACES],
    /// The call that it took last.
    taken: [AtomicU64; PLACES],
}

/// Calls are taken in the order of their numbers. So one that was taken, and not noted before the thread was killed, is
/// behind what had been noted when the thread went for it, however many others took and noted meanwhile.
#[derive(Debug)]
pub struct InHand {
    memory: OwnedFd,
    places: NonNull<Places>,
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

    fn places(&self) -> &Places {
        // SAFETY: mapped and aligned to a page as long as this lives; any bytes are such numbers.
        unsafe { self.places.as_ref() }
    }

    fn latest(&self) -> u64 {
        let taken = self.places().taken.iter().map(|id| id.load(Ordering::Relaxed));
        taken.max().unwrap_or_default()
    }

    /// The thread with this place goes to take a call.
    pub fn go_for_one(&self, place: usize) {
        if let Some(after) = self.places().after.get(place) {
            after.store(self.latest().max(1), Ordering::Relaxed);
        }
    }

    /// It took this one.
    pub fn note(&self, place: usize, id: u64) {
        if let Some(taken) = self.places().taken.get(place) {
            taken.store(id, Ordering::Relaxed);
        }
    }

    /// It takes no more.
    pub fn leave(&self, place: usize) {
        if let Some(after) = self.places().after.get(place) {
            after.store(0, Ordering::Relaxed);
        }
    }

    /// Calls that dead threads may have had in hand, and others. Nobody knows of the very first ones.
    pub(crate) fn suspects(&self) -> RangeInclusive<u64> {
        let latest = self.latest();
        let after = self.places().after.iter().map(|id| id.load(Ordering::Relaxed));
        let oldest = after.filter(|&id| id != 0).min().unwrap_or(latest);
        oldest.max(latest.saturating_sub(MOST_BEHIND))..=latest.saturating_add(PLACES as u64)
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
    fn a_call_that_was_taken_and_not_noted_is_suspected_however_many_others_were_since() {
        let in_hand = InHand::new().unwrap();
        in_hand.go_for_one(0);
        in_hand.note(0, 1000);
        // This one takes 1001, and is not heard of again.
        in_hand.go_for_one(1);
        for id in 1002..5000 {
            in_hand.go_for_one(0);
            in_hand.note(0, id);
        }
        let suspects = in_hand.suspects();
        assert!(suspects.contains(&1001) && suspects.contains(&5003), "{suspects:?}");
        in_hand.leave(1);
        in_hand.go_for_one(0);
        assert!(in_hand.suspects().count() < 50, "those who are not at it are none");
    }

    #[test]
    fn the_first_calls_of_all_are_suspected_when_later_ones_are_known() {
        let in_hand = InHand::new().unwrap();
        in_hand.go_for_one(0);
        in_hand.go_for_one(1);
        let first = 1 << 60;
        in_hand.note(1, first + 1);
        assert!(in_hand.suspects().contains(&first));
    }
}
