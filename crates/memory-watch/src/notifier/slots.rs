//! The slots of limited users: allocated one by one, in memory that grows in chunks. A chunk is an
//! mmapped BPF array, whose elements are read and written without a system call.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::ptr::NonNull;

use libbpf_rs::{Map, MapCore, MapFlags, MapHandle, MapType};
use rustix::mm::ProtFlags;

use super::pins::{CHUNK, Pins};
use super::wire::{CHUNK_SLOTS, Scan, Slot, UidFilter};
use crate::NotifierError;

/// The slots, as far as they have been needed so far.
pub struct Slots {
    /// Chunks are pinned here for the next daemon, which may not open a map by its id
    /// (`CAP_SYS_ADMIN`). `None`: accounts end with this daemon.
    pins: Option<PathBuf>,
    chunks: Vec<SharedMap<Slot>>,
    /// One more than the highest index that was allocated so far.
    end: u32,
    /// Indices below `end` that are not allocated.
    free: BTreeSet<u32>,
}

impl Slots {
    pub fn new(pins: Option<&Pins>) -> Self {
        let pins = pins.map(|pins| pins.folder().to_owned());
        Self { pins, chunks: Vec::new(), end: 0, free: BTreeSet::new() }
    }

    /// Allocates an index. `outer` is the array of chunks. `None`: all are allocated.
    pub fn allocate(&mut self, outer: &Map<'_>) -> Result<Option<u32>, NotifierError> {
        if let Some(index) = self.free.pop_first() {
            return Ok(Some(index));
        }
        if self.end >= outer.max_entries() * CHUNK_SLOTS {
            return Ok(None);
        }
        self.map_chunk_of(outer, self.end)?;
        self.end += 1;
        Ok(Some(self.end - 1))
    }

    /// Allocates this index, which a previous daemon had allocated. `false`: it does not exist.
    pub fn adopt(&mut self, outer: &Map<'_>, index: u32) -> Result<bool, NotifierError> {
        if index >= outer.max_entries() * CHUNK_SLOTS {
            return Ok(false);
        }
        self.map_chunk_of(outer, index)?;
        self.free.extend(self.end..=index);
        self.end = self.end.max(index + 1);
        Ok(self.free.remove(&index))
    }

    /// Overwrites a slot with zeros and makes its index available.
    pub fn release(&mut self, index: u32) {
        self.clear(index);
        self.free.insert(index);
    }

    /// Overwrites a slot with zeros.
    pub fn clear(&self, index: u32) {
        if let Some(chunk) = self.chunks.get((index / CHUNK_SLOTS) as usize) {
            chunk.clear((index % CHUNK_SLOTS) as usize);
        }
    }

    /// The slot with this index; `None` if its chunk is not needed yet.
    pub fn get(&self, index: u32) -> Option<&Slot> {
        let chunk = self.chunks.get((index / CHUNK_SLOTS) as usize)?;
        chunk.get((index % CHUNK_SLOTS) as usize)
    }

    /// Maps all chunks up to that of `index`. Missing ones are created.
    fn map_chunk_of(&mut self, outer: &Map<'_>, index: u32) -> Result<(), NotifierError> {
        while self.chunks.len() <= (index / CHUNK_SLOTS) as usize {
            let at = self.chunks.len() as u32;
            let chunk = self.chunk(at)?;
            let fd = chunk.as_fd().as_raw_fd();
            // After the pin: a chunk that programs use must be found by the next daemon.
            outer
                .update(&at.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
                .map_err(|e| NotifierError::bpf("add a chunk to map slots", e))?;
            self.chunks.push(SharedMap::new(&chunk)?);
        }
        Ok(())
    }

    /// Opens a pinned chunk, or creates it.
    fn chunk(&self, at: u32) -> Result<MapHandle, NotifierError> {
        let pin = self.pins.as_ref().map(|folder| folder.join(format!("{CHUNK}{at}")));
        if let Some(pin) = pin.as_ref().filter(|pin| pin.exists()) {
            return MapHandle::from_pinned_path(pin)
                .map_err(|e| NotifierError::bpf("open a pinned chunk of slots", e));
        }
        let mut chunk = create_chunk()?;
        if let Some(pin) = pin {
            chunk.pin(pin).map_err(|e| NotifierError::bpf("pin a chunk of slots", e))?;
        }
        Ok(chunk)
    }
}

fn create_chunk() -> Result<MapHandle, NotifierError> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let (key, value) = (size_of::<u32>() as u32, size_of::<Slot>() as u32);
    MapHandle::create(MapType::Array, Some("slot_chunk"), key, value, CHUNK_SLOTS, &options)
        .map_err(|e| NotifierError::bpf("create a chunk of slots", e))
}

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
                rustix::mm::MapFlags::SHARED,
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
