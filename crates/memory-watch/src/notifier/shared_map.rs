//! An mmapped BPF array: its elements are read and written without a system call.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use libbpf_rs::MapCore;
use rustix::mm::MapFlags;
use rustix::mm::ProtFlags;

use super::wire::Scan;
use super::wire::Slot;
use crate::error::NotifierError;

/// A type that may live in memory which a BPF program changes at any time.
///
/// # Safety
/// All fields that the program writes are atomics, any bit pattern is valid, and size and alignment
/// are multiples of 8 (as the kernel spaces array elements).
pub unsafe trait SharedElement {}

// SAFETY: atomics, plus padding that nobody writes; integers only.
unsafe impl SharedElement for Slot {}
// SAFETY: as above.
unsafe impl SharedElement for Scan {}

/// The elements of a `BPF_F_MMAPABLE` array.
pub struct SharedMap<T: SharedElement> {
    base: NonNull<c_void>,
    bytes: usize,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone and its elements are atomics.
unsafe impl<T: SharedElement> Send for SharedMap<T> {}

impl<T: SharedElement> SharedMap<T> {
    /// Maps all of `map`, whose elements must be `T`s.
    pub fn new(map: &impl MapCore) -> Result<Self, NotifierError> {
        let name = map.name().to_string_lossy().into_owned();
        if map.value_size() as usize != size_of::<T>() || !size_of::<T>().is_multiple_of(8) {
            return Err(NotifierError::Unsupported(format!(
                "map {name} has elements of {} bytes, expected {}",
                map.value_size(),
                size_of::<T>()
            )));
        }
        let len = map.max_entries() as usize;
        let bytes = len * size_of::<T>();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.as_fd(),
                0,
            )
        }
        .map_err(|e| NotifierError::os(format!("map BPF array {name}"), e))?;
        let base = NonNull::new(base).expect("mmap never returns page 0 unless asked to");
        Ok(Self { base, bytes, len, element: PhantomData })
    }

    /// The element at `index`; `None` beyond the end.
    pub fn get(&self, index: usize) -> Option<&T> {
        if index >= self.len {
            return None;
        }
        // SAFETY: inside the mapping, which lives as long as `self`; `T: SharedElement`.
        Some(unsafe { &*self.base.as_ptr().cast::<T>().add(index) })
    }

    /// Overwrites an element with zeros, for its next user.
    pub fn clear(&self, index: usize) {
        let Some(element) = self.get(index) else { return };
        let words = std::ptr::from_ref(element).cast::<std::sync::atomic::AtomicU64>();
        for word in 0..size_of::<T>() / 8 {
            // SAFETY: whole words inside the element, aligned by `SharedElement`'s contract.
            let word = unsafe { &*words.add(word) };
            word.store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

impl<T: SharedElement> Drop for SharedMap<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no reference outlives `self`.
        // A failure would leave an unused mapping behind; there is nothing to do about it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.bytes) };
    }
}
