//! Reclaim of idle buffer memory, in batches between requests.

use binder_driver::{OwnerMemory, PageCounts};

use super::Server;

/// Pages reclaimed before requests are served again: a page costs some microseconds at most, so no
/// caller waits longer than a fraction of a millisecond.
const PAGES_PER_TURN: u32 = 32;

impl Server {
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

    /// Threads of clients that have rings.
    pub fn ring_count(&self) -> usize {
        self.host.rings.count()
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
