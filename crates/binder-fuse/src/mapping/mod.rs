//! How receive buffers reach their client's mapping: two ways behind one trait.
//!
//! Both are write-only for the driver: a client can make its mapping writable, so bytes that are
//! read back from it are never trusted.

mod notify_store;
mod passthrough;

use std::io;

use binder_driver::PageSize;
use headroom_linux::kept_fd::KeptFd;
use serde::{Deserialize, Serialize};

pub(crate) use notify_store::{CacheBypass, NotifyStore, SavedTruth, Truth};
pub(crate) use passthrough::Passthrough;

/// Size of this machine's pages, the unit of [`Backing::punch`].
pub(crate) fn machine_page_size() -> PageSize {
    // No architecture of Linux has other sizes in use.
    PageSize::new(rustix::param::page_size()).unwrap_or_default()
}

/// Backing store of one open's mapping. Offsets and lengths outside of
/// [`DEVICE_SIZE`](crate::tree::DEVICE_SIZE) are errors.
pub(crate) trait Backing {
    /// Writes `bytes` at `offset`.
    fn store(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes a range read as zeros.
    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// Releases whole pages.
    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// `FOPEN_*` flags and backing id of the OPEN reply.
    fn open_reply(&self) -> (u32, i32);
    /// The backing store for a state.
    fn save(&self) -> SavedBacking;
}

/// A [`Backing`] in a state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum SavedBacking {
    Passthrough { memfd: KeptFd, backing_id: i32 },
    NotifyStore(SavedTruth),
}

impl SavedBacking {
    pub(crate) fn descriptor(&self) -> Option<KeptFd> {
        match self {
            Self::Passthrough { memfd, .. } => Some(*memfd),
            Self::NotifyStore(_) => None,
        }
    }
}

/// How mappings are backed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MappingKind {
    /// The client maps a memfd of ours: a store is a plain copy.
    Passthrough,
    /// We push bytes into the page cache of the device file, and keep a copy for when the cache
    /// drops them.
    NotifyStore,
}

impl MappingKind {
    /// Name of the option on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::NotifyStore => "notify-store",
        }
    }
}

/// Which mapping to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MappingChoice {
    /// Passthrough if it works, else notify-store with one warning.
    #[default]
    Auto,
    /// Only this kind; fails if it is not available.
    Only(MappingKind),
}

impl std::str::FromStr for MappingChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "passthrough" => Ok(Self::Only(MappingKind::Passthrough)),
            "notify-store" => Ok(Self::Only(MappingKind::NotifyStore)),
            _ => Err(format!("{text:?} is none of auto, passthrough, notify-store")),
        }
    }
}

/// The range as `usize`, if it lies within the device file.
fn checked_range(offset: u64, len: u64) -> io::Result<std::ops::Range<usize>> {
    let end = offset.checked_add(len).filter(|&end| end <= crate::tree::DEVICE_SIZE);
    let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    Ok(offset as usize..end as usize)
}
