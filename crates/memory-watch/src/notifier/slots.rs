//! The slots of limited users: allocated one by one, in memory that grows in chunks.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use libbpf_rs::{Map, MapCore, MapFlags, MapHandle, MapType};

use super::pins::{CHUNK, Pins};
use super::shared_map::SharedMap;
use super::wire::{CHUNK_SLOTS, Slot};
use crate::error::NotifierError;

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
