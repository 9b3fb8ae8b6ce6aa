//! An mmapped BPF array: its elements are read and written without a system call.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use libbpf_rs::MapCore;
use rustix::mm::{MapFlags, ProtFlags};

use super::wire::{Scan, Slot, UidFilter};
use crate::error::NotifierError;

/// A type for memory that a BPF program may change at any time.
///
/// # Safety
/// All fields that the program writes are atomics, any bit pattern is valid, and size and alignment
/// are multiples of 8 (as the kernel spaces array elements).
pub unsafe trait SharedElement {}

// SAFETY: atomics, plus padding that is never written; integers only.
unsafe impl SharedElement for Slot {}
// SAFETY: as above.
unsafe impl SharedElement for Scan {}
// SAFETY: as above.
unsafe impl SharedElement for UidFilter {}

/// The elements of a `BPF_F_MMAPABLE` array.
pub struct SharedMap<T: SharedElement> {
    base: NonNull<c_void>,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone and its elements are atomics.
unsafe impl<T: SharedElement> Send for SharedMap<T> {}

impl<T: SharedElement> SharedMap<T> {
    /// Maps `map`, which must have elements of type `T`.
    pub fn new(map: &impl MapCore) -> Result<Self, NotifierError> {
        let name = || map.name().to_string_lossy().into_owned();
        if map.value_size() as usize != size_of::<T>() || !size_of::<T>().is_multiple_of(8) {
            return Err(NotifierError::Unsupported(format!(
                "map {} has elements of {} bytes, expected {}",
                name(),
                map.value_size(),
                size_of::<T>()
            )));
        }
        let len = map.max_entries() as usize;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len * size_of::<T>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map.as_fd(),
                0,
            )
        };
        let base = base.map_err(|e| NotifierError::os(format!("map BPF array {}", name()), e))?;
        let base = NonNull::new(base).expect("mmap never returns page 0 unless requested");
        Ok(Self { base, len, element: PhantomData })
    }

    /// The element at `index`; `None` beyond the end.
    pub fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: inside the mapping, which lives as long as `self`; `T: SharedElement`.
        (index < self.len).then(|| unsafe { &*self.base.as_ptr().cast::<T>().add(index) })
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
        // A failure would leave an unused mapping behind, which has no other effect.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.len * size_of::<T>()) };
    }
}
