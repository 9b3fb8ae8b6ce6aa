//! Our mappings of files that we share with clients.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared, readable and writable mapping.
pub(crate) struct SharedMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the value alone, and is reached through it only.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    /// Maps the first bytes of a file. An access faults unless the file has that length and is
    /// sealed against shrinking.
    pub(crate) fn new(file: impl AsFd, len: usize, flags: MapFlags) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | flags);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap(null_mut(), len, protection, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// The first byte, which is at the start of a page.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and no reference to it is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
