//! The page that the daemon shares with one client. The client can write anything to it at any
//! time: the daemon trusts its contents only as far as they cannot affect other clients.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use control::lease::page;
use headroom_linux::descriptors::sealed_memfd;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Attempts of a compare-and-swap, in case the client changes the same word all the time.
const TRIES: u32 = 64;

/// The daemon's mapping of one client's page.
pub struct SharedPage(NonNull<u8>);

// SAFETY: the mapping belongs to this value alone here, and is only used through atomics.
unsafe impl Send for SharedPage {}

impl SharedPage {
    /// Creates a page of zeros, and the fd to send to the client. The file is sealed against
    /// resizing.
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
        let file = sealed_memfd("headroom-lease", page::BYTES as u64)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of a file that cannot shrink, at an address of the kernel's
        // choice.
        let at = unsafe {
            mmap(std::ptr::null_mut(), page::BYTES, prot, MapFlags::SHARED, file.as_fd(), 0)?
        };
        Ok((Self(NonNull::new(at.cast()).ok_or(Errno::NOMEM)?), file))
    }

    fn balance(&self) -> &AtomicU64 {
        // SAFETY: aligned, inside the mapping, which lives as long as `self`; atomics only.
        unsafe { &*self.0.as_ptr().add(page::BALANCE).cast() }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.0.as_ptr().add(offset).cast() }
    }

    /// The balance that the client has not taken, bytes; at most `granted`.
    pub fn unspent(&self, granted: u64) -> u64 {
        self.balance().load(Acquire).min(granted)
    }

    /// Increases the client's balance.
    pub fn add(&self, bytes: u64) {
        self.balance().fetch_add(bytes, AcqRel);
    }

    /// Lowers the balance to `keep`. Returns the bytes taken back, at most `granted`; 0 if no
    /// attempt succeeds.
    pub fn take_back(&self, keep: u64, granted: u64) -> u64 {
        let mut there = self.balance().load(Acquire);
        for _ in 0..TRIES {
            let keep = keep.min(there);
            match self.balance().compare_exchange_weak(there, keep, AcqRel, Acquire) {
                Ok(_) => return (there - keep).min(granted),
                Err(now) => there = now,
            }
        }
        0
    }

    /// Marks the client's account as limited.
    pub fn set_limited(&self) {
        self.word(page::LIMITED).store(1, Release);
    }

    /// Marks the client's account as unlimited.
    pub fn set_unlimited(&self) {
        self.word(page::LIMITED).store(0, Release);
    }

    /// Requests the client's allocator to return unused memory.
    pub fn recall(&self) {
        self.word(page::RECALL).store(1, Relaxed);
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no reference outlives `self`. A failure would leave a page
        // mapped; there is nothing to do about it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), page::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;

    use super::*;

    #[test]
    fn at_most_the_grant_is_taken_back() {
        let (page, _file) = SharedPage::create().unwrap();
        page.add(100);
        assert_eq!((page.unspent(1000), page.take_back(30, 1000)), (100, 70));
        assert_eq!(page.unspent(1000), 30);
        // A client that writes a larger balance than it was granted.
        page.balance().store(u64::MAX, Relaxed);
        assert_eq!((page.unspent(50), page.take_back(0, 50)), (50, 50));
    }

    #[test]
    fn the_clients_file_cannot_be_cut_under_our_mapping() {
        let (_page, file) = SharedPage::create().unwrap();
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
    }
}
