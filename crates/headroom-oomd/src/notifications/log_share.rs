//! The part of each owner in the lines of the log.

use std::collections::BTreeMap;

use owners::{Owner, TokenBuckets, bounds};

/// Lines that owners have left, and how many were left out.
pub(super) struct LogShare {
    buckets: TokenBuckets<Owner>,
    left_out: BTreeMap<Owner, u64>,
}

impl Default for LogShare {
    fn default() -> Self {
        Self {
            buckets: TokenBuckets::new(bounds::LOG_LINES.of_an_owner()),
            left_out: BTreeMap::new(),
        }
    }
}

impl LogShare {
    /// Whether a line of this owner is logged; otherwise it is counted.
    pub(super) fn take(&mut self, owner: Owner, now_ns: u64) -> bool {
        let is_logged = owner.is_root() || self.buckets.take(owner, now_ns);
        if !is_logged {
            *self.left_out.entry(owner).or_default() += 1;
        }
        is_logged
    }

    /// No line was left out that [`left_out`](Self::left_out) has not returned.
    pub(super) fn has_reported(&self) -> bool {
        self.left_out.is_empty()
    }

    /// Owners and the number of their lines that were left out, for those that have one line again.
    pub(super) fn left_out(&mut self, now_ns: u64) -> Vec<(Owner, u64)> {
        let mut reported = Vec::new();
        self.left_out.retain(|owner, count| {
            let is_due = self.buckets.take(*owner, now_ns);
            if is_due {
                reported.push((*owner, *count));
            }
            !is_due
        });
        reported
    }
}

#[cfg(test)]
mod tests {
    use owners::Uid;

    use super::*;

    #[test]
    fn a_flood_is_counted_and_leaves_lines_to_others() {
        const SECOND: u64 = 1_000_000_000;
        let rate = bounds::LOG_LINES.of_an_owner();
        let [loud, quiet] = [1, 2].map(|uid| Owner::User(Uid(uid)));
        let mut log = LogShare::default();
        let logged = (0..rate.burst + 500).filter(|_| log.take(loud, 0)).count() as u64;
        assert_eq!(logged, rate.burst);
        assert!(log.take(quiet, 0) && !log.has_reported());
        assert_eq!(log.left_out(0), [], "it has no line for that");
        assert_eq!(log.left_out(SECOND), [(loud, 500)]);
        assert!(log.has_reported());
        let more = (0..100).filter(|_| log.take(loud, SECOND)).count() as u64;
        assert_eq!(more, rate.per_second - 1, "one was for the number");
        assert!((0..1000).all(|_| log.take(Owner::User(Uid::ROOT), SECOND)));
    }
}
