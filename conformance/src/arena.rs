//! Memory that the stage shares with one thread of an actor: mapped before the fork, so that an
//! address refers to the same bytes in both processes. Data that a script stores here is read by
//! the driver in the actor.

use std::cell::Cell;
use std::io;
use std::ptr;

/// Bytes of one arena. Only accessed pages use memory.
const LEN: usize = 8 << 20;
/// Size of the read buffer at the arena's start, bytes.
const RETURNS: usize = 64 << 10;
const PAGE: usize = 4096;

/// One thread's shared memory: a read buffer, then space for commands and data, then a page that
/// faults.
pub struct Arena {
    base: *mut u8,
    next: Cell<usize>,
}

impl Arena {
    /// Maps an arena. It is never unmapped while a script runs, since an actor may still write
    /// there.
    pub fn new() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), LEN + PAGE, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base.cast::<u8>();
        // SAFETY: the last page of the mapping just made.
        if unsafe { libc::mprotect(base.add(LEN).cast(), PAGE, libc::PROT_NONE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base, next: Cell::new(RETURNS) })
    }

    /// Address of the read buffer, of [`Self::returns_len`] bytes.
    pub fn returns(&self) -> u64 {
        self.base as u64
    }

    /// Maximum size of a read, bytes.
    pub const fn returns_len() -> usize {
        RETURNS
    }

    /// The address of a page that faults; the bytes before it do not.
    pub fn guard(&self) -> u64 {
        self.base as u64 + LEN as u64
    }

    /// Copies `bytes` to unused memory, 8-aligned, and returns its address.
    pub fn place(&self, bytes: &[u8]) -> u64 {
        let at = self.next.get();
        let end = at + bytes.len().next_multiple_of(8);
        assert!(end <= LEN, "a case places more than {LEN} bytes");
        self.next.set(end);
        // SAFETY: inside the arena (checked above), and the stage is the only writer there.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) };
        self.base as u64 + at as u64
    }

    /// Copies `bytes` so that they end where the faulting page starts.
    pub fn place_before_guard(&self, bytes: &[u8]) -> u64 {
        // SAFETY: the last bytes of the arena, far behind the memory that `place` uses.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(LEN - bytes.len()), bytes.len())
        };
        self.guard() - bytes.len() as u64
    }

    /// The bytes at an address of the arena; `None` when some are outside of it.
    pub fn get(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let offset = usize::try_from(address.checked_sub(self.base as u64)?).ok()?;
        if offset.checked_add(len)? > LEN {
            return None;
        }
        let mut bytes = vec![0; len];
        // SAFETY: inside the arena (checked above); copied out, since the actor may write any time.
        unsafe { ptr::copy_nonoverlapping(self.base.add(offset), bytes.as_mut_ptr(), len) };
        Some(bytes)
    }

    /// Overwrites bytes of the arena, which must be inside of it.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        let offset = (address - self.base as u64) as usize;
        assert!(offset + bytes.len() <= LEN, "outside the arena");
        // SAFETY: inside the arena (checked above).
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the actor has its own mapping of it.
        unsafe { libc::munmap(self.base.cast(), LEN + PAGE) };
    }
}
