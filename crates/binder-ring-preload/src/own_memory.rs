//! Memory of the program that its call names, which may be missing: then the system call fails, and
//! so must we, instead of the program.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::system;

/// Of every architecture, the smallest size.
const PAGE: u64 = 4096;

/// The memory that a thread's last call has used, in whole pages: most threads use the same again.
#[derive(Default)]
pub(crate) struct KnownMemory {
    start: AtomicU64,
    end: AtomicU64,
}

impl KnownMemory {
    fn note(&self, address: u64, len: usize) {
        self.start.store(address & !(PAGE - 1), Relaxed);
        let end = address.saturating_add(len as u64);
        self.end.store(end.checked_next_multiple_of(PAGE).unwrap_or(end), Relaxed);
    }

    fn contains(&self, address: u64, len: usize) -> bool {
        let end = address.checked_add(len as u64);
        self.start.load(Relaxed) <= address && end.is_some_and(|end| end <= self.end.load(Relaxed))
    }

    /// The bytes at an address. `None`: a part of them cannot be read.
    pub(crate) fn readable(&self, address: u64, len: usize) -> Option<&'static [u8]> {
        if !self.contains(address, len) {
            readable(address, len)?;
            self.note(address, len);
        }
        // SAFETY: it can be read. A program that removes or changes the memory of its own call
        // during the call harms itself.
        Some(unsafe { slice(address, len) })
    }

    /// Whether the bytes at an address can be read and written.
    pub(crate) fn is_writable(&self, address: u64, len: usize) -> bool {
        if len == 0 || self.contains(address, len) {
            return true;
        }
        let bytes = readable(address, len);
        let is_writable = bytes.is_some_and(|bytes| system::write_own_memory(address, bytes));
        if is_writable {
            self.note(address, len);
        }
        is_writable
    }

    /// Writes to an address. False: a part of it cannot be written.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        if self.contains(address, bytes.len()) {
            // SAFETY: it can be written.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
            }
            return true;
        }
        let is_written = system::write_own_memory(address, bytes);
        if is_written {
            self.note(address, bytes.len());
        }
        is_written
    }
}

/// The bytes at an address. `None`: a part of them cannot be read.
pub(crate) fn readable(address: u64, len: usize) -> Option<&'static [u8]> {
    if len == 0 {
        return Some(&[]);
    }
    // The first page is never mapped, and a null pointer is no signal set.
    if address < PAGE {
        return None;
    }
    let last = address.checked_add(len as u64 - 1)?;
    for page in address / PAGE..=last / PAGE {
        // Eight bytes are read at once, from within the page.
        if !system::is_readable((page * PAGE).max(address) & !7) {
            return None;
        }
    }
    // SAFETY: all its pages can be read.
    Some(unsafe { slice(address, len) })
}

/// # Safety
///
/// The memory can be read.
unsafe fn slice(address: u64, len: usize) -> &'static [u8] {
    match len {
        0 => &[],
        // SAFETY: the caller's.
        _ => unsafe { std::slice::from_raw_parts(address as *const u8, len) },
    }
}
