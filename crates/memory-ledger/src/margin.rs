//! How much must be left free for a kill to come in time.

use crate::limit::SOFT_LIMIT_PERCENT;

/// Minimum of a soft limit that is derived from a margin, percent of the hard limit: to be on alert
/// all the time does not protect better.
const LEAST_SOFT_PERCENT: u64 = 50;

/// Measured speeds of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margin {
    /// Fastest allocation by all its CPUs together, bytes per second.
    pub allocation_bytes_per_s: u64,
    /// Slowest return of a killed process's memory, bytes per second.
    pub reclaim_bytes_per_s: u64,
    /// Longest time from the signal until the first memory is back, nanoseconds.
    pub reaction_ns: u64,
}

impl Margin {
    /// Memory that must be free when a victim of `victim_bytes` is killed, so that it is not
    /// exhausted before the victim's is back: the memory that is allocated before any is freed,
    /// and, where memory is allocated faster than it is freed, the difference over the time of the
    /// exit.
    pub fn bytes(&self, victim_bytes: u64) -> u64 {
        let Self { allocation_bytes_per_s, reclaim_bytes_per_s, reaction_ns } = *self;
        let [taken, back] = [allocation_bytes_per_s, reclaim_bytes_per_s.max(1)].map(u128::from);
        let before = taken * u128::from(reaction_ns) / 1_000_000_000;
        let during = u128::from(victim_bytes) * taken.saturating_sub(back) / back;
        u64::try_from(before + during).unwrap_or(u64::MAX)
    }

    /// The soft limit for a hard limit: leaves the margin for the largest possible victim, between
    /// half of the hard limit and the default share without a measurement.
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
    fn if_reclaim_is_as_fast_as_growth_only_the_reaction_time_counts() {
        assert_eq!(margin(8 * GB, 8 * GB, 1_000_000).bytes(4 * GB), 8_000_000);
        assert_eq!(margin(8 * GB, 16 * GB, 1_000_000).bytes(4 * GB), 8_000_000);
    }

    #[test]
    fn if_reclaim_is_slower_than_growth_the_difference_counts() {
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
