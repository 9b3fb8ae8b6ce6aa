//! Giving idle buffer memory back, in batches between requests.

use binder_driver::PageCounts;

use super::Server;

/// Pages given back before requests have their turn again: a page costs some microseconds at most,
/// so no caller waits for longer than a fraction of a millisecond.
const PAGES_PER_TURN: u32 = 32;

impl Server {
    /// Begins to give back the memory of all buffers' pages that are idle by now. It happens while
    /// [`next_event`](Self::next_event) serves clients; one that is under way already goes on.
    pub fn give_back_idle(&mut self) {
        self.to_give_back = self.page_counts().idle;
    }

    /// Gives back at most one batch, of `most` pages at most, at once; answers how many it were.
    pub fn give_back_batch(&mut self, most: u64) -> u32 {
        let most = u32::try_from(most).unwrap_or(u32::MAX).min(PAGES_PER_TURN);
        self.driver.reclaim(&mut self.host, most)
    }

    /// Memory of receive buffers.
    pub fn page_counts(&self) -> PageCounts {
        self.driver.page_counts()
    }

    /// There is something left to give back.
    pub(super) fn is_giving_back(&self) -> bool {
        self.to_give_back > 0
    }

    /// The next batch of what [`give_back_idle`](Self::give_back_idle) began.
    pub(super) fn go_on_giving_back(&mut self) {
        let given = u64::from(self.give_back_batch(self.to_give_back));
        // Less than a batch: whatever is left is in use.
        self.to_give_back = match given {
            0 => 0,
            given => self.to_give_back.saturating_sub(given),
        };
        if !self.is_giving_back() {
            let counts = self.page_counts();
            tracing::debug!("gave idle buffer memory back: {counts:?}");
        }
    }
}
