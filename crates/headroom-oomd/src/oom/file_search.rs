//! When memory files that processes hold open are searched: while the system is near its soft level
//! and has much shared memory.

use crate::clock::NS_PER_MS;

/// Pause between two searches, milliseconds. A search takes 4 µs for each open file.
const RENEW_MS: u64 = 500;
/// Maximum time that a kill waits for the first search, milliseconds.
const PATIENCE_MS: u64 = 100;

/// The searches since the system came near its soft level. Times are nanoseconds, CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(super) struct FileSearch {
    begun_ns: Option<u64>,
    ended_ns: Option<u64>,
}

impl FileSearch {
    /// Whether a search should begin.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        match (self.begun_ns, self.ended_ns) {
            (None, _) => true,
            (Some(begun_ns), Some(ended_ns)) if ended_ns >= begun_ns => {
                now_ns.saturating_sub(ended_ns) >= RENEW_MS * NS_PER_MS
            }
            // One is running.
            (Some(_), _) => false,
        }
    }

    pub(super) fn begin(&mut self, now_ns: u64) {
        self.begun_ns = Some(now_ns);
    }

    pub(super) fn end(&mut self, now_ns: u64) {
        self.ended_ns = Some(now_ns);
    }

    /// Whether a process may be killed: the result of a search is known, or late.
    pub(super) fn allows_kill(&self, now_ns: u64) -> bool {
        let is_late = |begun_ns| now_ns.saturating_sub(begun_ns) >= PATIENCE_MS * NS_PER_MS;
        self.ended_ns.is_some() || self.begun_ns.is_some_and(is_late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = NS_PER_MS;

    #[test]
    fn a_kill_waits_for_the_first_search_only_and_not_for_long() {
        let mut search = FileSearch::default();
        assert!(search.is_due(0) && !search.allows_kill(0));
        search.begin(0);
        assert!(!search.is_due(99 * MS) && !search.allows_kill(99 * MS));
        assert!(search.allows_kill(100 * MS));
        search.end(120 * MS);
        assert!(search.allows_kill(120 * MS) && !search.is_due(600 * MS));
        assert!(search.is_due(620 * MS));
        search.begin(620 * MS);
        assert!(search.allows_kill(620 * MS) && !search.is_due(2000 * MS));
    }
}
