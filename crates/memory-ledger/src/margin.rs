//! How much must be left free for a kill to come in time.

use crate::limit::SOFT_LIMIT_PERCENT;

/// No soft limit that follows from a margin is below this share of the hard one: a daemon that is
/// on alert all the time protects nobody better.
const LEAST_SOFT_PERCENT: u64 = 50;

/// What a machine can do, as measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margin {
    /// The fastest that all its CPUs together take memory, bytes a second.
    pub allocation_bytes_per_s: u64,
    /// The slowest that a killed process's memory comes back, bytes a second.
    pub reclaim_bytes_per_s: u64,
    /// The longest from the signal until the first memory is back, nanoseconds.
    pub reaction_ns: u64,
}

impl Margin {
    /// The memory that must be free when a victim of so many bytes is killed, so that it does not
    /// run out before the victim's is back: what is taken before anything comes back, and, where
    /// memory is taken faster than it comes back, the difference over the time that takes.
    pub fn bytes(&self, victim_bytes: u64) -> u64 {
        let Self { allocation_bytes_per_s, reclaim_bytes_per_s, reaction_ns } = *self;
        let [taken, back] = [allocation_bytes_per_s, reclaim_bytes_per_s.max(1)].map(u128::from);
        let before = taken * u128::from(reaction_ns) / 1_000_000_000;
        let during = u128::from(victim_bytes) * taken.saturating_sub(back) / back;
        u64::try_from(before + during).unwrap_or(u64::MAX)
    }

    /// The soft limit for a hard one: what leaves the margin for the largest victim that there can
    /// be, within half of the hard limit and the share that holds where nothing was measured.
    pub fn soft_bytes(&self, hard_bytes: u64) -> u64 {
        let percent = |percent| hard_bytes / 100 * percent;
        let soft = hard_bytes.saturating_sub(self.bytes(hard_bytes));
        soft.clamp(percent(LEAST_SOFT_PERCENT), percent(SOFT_LIMIT_PERCENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn margin(allocation: u64, reclaim: u64, reaction_ns: u64) -> Margin {
        Margin { allocation_bytes_per_s: allocation, reclaim_bytes_per_s: reclaim, reaction_ns }
    }

    #[test]
    fn where_memory_comes_back_as_fast_as_it_is_taken_only_the_reaction_counts() {
        assert_eq!(margin(8 * GB, 8 * GB, 1_000_000).bytes(4 * GB), 8_000_000);
        assert_eq!(margin(8 * GB, 16 * GB, 1_000_000).bytes(4 * GB), 8_000_000);
    }

    #[test]
    fn where_it_comes_back_slower_the_difference_counts_for_as_long_as_that_takes() {
        // 2 GB at 4 GB/s: half a second, in which 12 - 4 GB/s are missing.
        assert_eq!(margin(12 * GB, 4 * GB, 0).bytes(2 * GB), 4 * GB);
    }

    #[test]
    fn a_soft_limit_leaves_the_margin_within_reason() {
        assert_eq!(margin(10 * GB, 8 * GB, 0).soft_bytes(GB), GB / 4 * 3);
        assert_eq!(margin(8 * GB, 8 * GB, 0).soft_bytes(GB), GB / 10 * 9, "nine tenths are enough");
        assert_eq!(margin(99 * GB, GB, 0).soft_bytes(GB), GB / 2, "and half is the least");
        assert_eq!(margin(GB, 0, 0).bytes(u64::MAX), u64::MAX, "nothing overflows");
        assert_eq!(margin(u64::MAX, 1, u64::MAX).soft_bytes(GB), GB / 2);
    }
}
