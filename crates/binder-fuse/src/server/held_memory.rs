//! The memory of receive buffers: the processes and owners that it is charged to, and the reclaim
//! of what is idle, in batches between requests.

use binder_driver::{AreaMemory, OwnerMemory, PageCounts};
use headroom_linux::mountinfo::Device;
use owners::{Owner, Uid};

use super::Server;
use crate::mapping::MappingKind;
use crate::open::OpenerState;

/// Memory that the server holds for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldMemory {
    /// The owner that it is charged to.
    pub owner: Owner,
    /// Bytes.
    pub bytes: u64,
    /// The process that it is held for; `None`: messages of the owner's processes that no thread
    /// has received yet.
    pub holder: Option<BufferHolder>,
}

/// A process that has a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferHolder {
    /// The opener of the device; `None`: it has exited.
    pub pid: Option<u32>,
    /// Its effective uid.
    pub euid: Uid,
    /// Device and inode number of the file by which it maps the buffer.
    pub file: (Device, u64),
}

/// Pages reclaimed before requests are served again: a page costs some microseconds at most, so no
/// caller waits longer than a fraction of a millisecond.
const PAGES_PER_TURN: u32 = 32;

impl Server {
    /// The memory of all messages, in entries of at least `smallest_bytes`. Without passthrough it
    /// is in the page cache, and not held.
    pub fn held_memory(&self, smallest_bytes: u64) -> impl Iterator<Item = HeldMemory> {
        let is_held = self.agreement.mapping == MappingKind::Passthrough;
        let is_entry = move |bytes| is_held && bytes >= smallest_bytes;
        let queued = self.driver.owner_memory().filter(move |memory| is_entry(memory.queued_bytes));
        let queued = queued.map(|memory| HeldMemory {
            owner: memory.owner,
            bytes: memory.queued_bytes,
            holder: None,
        });
        let areas = self.driver.area_memory().filter(move |area| is_entry(area.bytes));
        queued.chain(areas.filter_map(|area| self.held_for_open(area)))
    }

    fn held_for_open(&self, AreaMemory { process, bytes }: AreaMemory) -> Option<HeldMemory> {
        let open = self.host.opens.get(self.host.key_of(process)?)?;
        let pid = (open.info.opener == OpenerState::Alive).then_some(open.info.pid);
        let file = (self.host.device(), open.info.node);
        let holder = BufferHolder { pid, euid: open.info.euid, file };
        Some(HeldMemory { owner: open.info.owner, bytes, holder: Some(holder) })
    }

    /// Starts to reclaim the pages of all buffers that are idle now, in batches while
    /// [`next_event`](Self::next_event) serves clients.
    pub fn reclaim_idle(&mut self) {
        self.pages_to_reclaim = self.page_counts().idle;
    }

    /// Reclaims one batch of at most `most` pages at once; returns the number of pages.
    pub fn reclaim_batch(&mut self, most: u64) -> u32 {
        let most = u32::try_from(most).unwrap_or(u32::MAX).min(PAGES_PER_TURN);
        self.driver.reclaim(&mut self.host, most)
    }

    /// Memory of receive buffers.
    pub fn page_counts(&self) -> PageCounts {
        self.driver.page_counts()
    }

    /// Maximum bytes of messages of one owner other than root.
    pub fn owner_quota_bytes(&self) -> u64 {
        self.owner_quota_bytes
    }

    /// Bytes of messages of the owner that has most.
    pub fn largest_owner_bytes(&self) -> u64 {
        self.driver.owner_memory().map(OwnerMemory::total_bytes).max().unwrap_or(0)
    }

    /// Whether pages remain to be reclaimed.
    pub(super) fn is_reclaiming(&self) -> bool {
        self.pages_to_reclaim > 0
    }

    /// Reclaims the next batch of [`reclaim_idle`](Self::reclaim_idle).
    pub(super) fn continue_reclaim(&mut self) {
        let reclaimed = u64::from(self.reclaim_batch(self.pages_to_reclaim));
        // Less than a batch: the remaining pages are in use.
        self.pages_to_reclaim = match reclaimed {
            0 => 0,
            _ => self.pages_to_reclaim.saturating_sub(reclaimed),
        };
        if !self.is_reclaiming() {
            let counts = self.page_counts();
            tracing::debug!("reclaimed idle buffer memory: {counts:?}");
        }
    }
}
