//! The memory of a [`Doorbell`], which the daemon shares with the clients of an owner.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use binder_ring::DOORBELL_BYTES;
use binder_ring::turn::Doorbell;
use headroom_linux::sealed_memfd::sealed_memfd;
use rustix::mm::MapFlags;

use crate::shared_mapping::SharedMapping;

/// A memfd and our mapping of it.
pub(crate) struct DoorbellMemory {
    memfd: OwnedFd,
    mapping: SharedMapping,
}

impl DoorbellMemory {
    /// New memory, sealed against resizing.
    pub(crate) fn new() -> io::Result<Self> {
        let memfd = sealed_memfd("binder-doorbell", DOORBELL_BYTES as u64)?;
        let mapping = SharedMapping::new(&memfd, DOORBELL_BYTES, MapFlags::POPULATE)?;
        Ok(Self { memfd, mapping })
    }

    pub(crate) fn doorbell(&self) -> &Doorbell {
        // SAFETY: the mapping is larger and lives as long as `self`. The doorbell is an atomic
        // word, which clients may change at any time.
        unsafe { self.mapping.start().cast().as_ref() }
    }
}

impl AsFd for DoorbellMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}
