//! An mmapped BPF array: its elements are read and written without a system call.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::NonNull;

use libbpf_rs::MapCore;
use rustix::mm::{MapFlags, ProtFlags};

use super::wire::{Scan, Slot};
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

/// Size of one mapping: the pages of a mapped array are in memory, used or not.
const CHUNK_BYTES: usize = 16 * 1024;

/// The elements of a `BPF_F_MMAPABLE` array, as far as they were [reached](SharedMap::reach).
pub struct SharedMap<T: SharedElement> {
    chunks: Vec<NonNull<c_void>>,
    /// Number of elements in each chunk; the last one may have fewer.
    elements: usize,
    len: usize,
    element: PhantomData<T>,
}

// SAFETY: the mappings belong to this value alone and their elements are atomics.
unsafe impl<T: SharedElement> Send for SharedMap<T> {}

impl<T: SharedElement> SharedMap<T> {
    /// Maps the beginning of `map`, which must have elements of type `T`.
    pub fn new(map: &impl MapCore) -> Result<Self, NotifierError> {
        let name = map.name().to_string_lossy().into_owned();
        let fits = size_of::<T>().is_multiple_of(8) && CHUNK_BYTES.is_multiple_of(size_of::<T>())
            || map.max_entries() == 1;
        if map.value_size() as usize != size_of::<T>() || !fits {
            return Err(NotifierError::Unsupported(format!(
                "map {name} has elements of {} bytes, expected {}",
                map.value_size(),
                size_of::<T>()
            )));
        }
        let (len, elements) = (map.max_entries() as usize, CHUNK_BYTES / size_of::<T>());
        let mut shared = Self { chunks: Vec::new(), elements, len, element: PhantomData };
        shared.reach(map, 0)?;
        Ok(shared)
    }

    /// Maps `map`, which must be the one that was passed to `new`, up to the element at `index`.
    pub fn reach(&mut self, map: &impl MapCore, index: usize) -> Result<(), NotifierError> {
        while self.chunks.len() <= index.min(self.len - 1) / self.elements {
            let at = self.chunks.len();
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            let base = unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    self.bytes(at),
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    map.as_fd(),
                    (at * CHUNK_BYTES) as u64,
                )
            };
            let name = || format!("map BPF array {}", map.name().to_string_lossy());
            let base = base.map_err(|e| NotifierError::os(name(), e))?;
            self.chunks
                .push(NonNull::new(base).expect("mmap never returns page 0 unless asked to"));
        }
        Ok(())
    }

    /// Size of a chunk, bytes.
    fn bytes(&self, chunk: usize) -> usize {
        (self.len - chunk * self.elements).min(self.elements) * size_of::<T>()
    }

    /// The element at `index`; `None` beyond the end, and beyond the reached part.
    pub fn get(&self, index: usize) -> Option<&T> {
        if index >= self.len {
            return None;
        }
        let chunk = self.chunks.get(index / self.elements)?;
        // SAFETY: inside the mapping, which lives as long as `self`; `T: SharedElement`.
        Some(unsafe { &*chunk.as_ptr().cast::<T>().add(index % self.elements) })
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
        for (at, chunk) in self.chunks.iter().enumerate() {
            // SAFETY: our own mapping, and no reference outlives `self`.
            // A failure would leave an unused mapping behind, which has no other effect.
            let _ = unsafe { rustix::mm::munmap(chunk.as_ptr(), self.bytes(at)) };
        }
    }
}
