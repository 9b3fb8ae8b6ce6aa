//! Warnings that are not repeated within an interval.

use std::collections::BTreeMap;

use control::oomd::LimitLevel;
use memory_ledger::{AccountId, Uid};
use owners::{Owner, Quota, bounds};

use super::queue::Slot;

/// A level of an account's limit.
type Level = (AccountId, LimitLevel);

/// The warnings of the last interval.
pub(super) struct Warned {
    /// When, nanoseconds, and for whom.
    at: BTreeMap<Level, (u64, Owner, Uid)>,
    slots: Quota,
}

impl Default for Warned {
    fn default() -> Self {
        let slots = Quota::new(bounds::REMEMBERED_WARNINGS.slots());
        Self { at: BTreeMap::new(), slots }
    }
}

impl Warned {
    /// Whether there was no such warning within the interval, and the owner may have one.
    pub(super) fn is_news(
        &mut self,
        level: Level,
        slot: &Slot,
        pause_ns: u64,
        now_ns: u64,
    ) -> bool {
        self.at.retain(|_, (at_ns, owner, uid)| {
            let is_over = now_ns.saturating_sub(*at_ns) >= pause_ns;
            if is_over {
                self.slots.give_back(*owner, *uid);
            }
            !is_over
        });
        if self.at.contains_key(&level) || self.slots.take(slot.owner, slot.uid).is_err() {
            return false;
        }
        self.at.insert(level, (now_ns, slot.owner, slot.uid));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_repeated_after_the_interval_and_an_owner_has_a_part() {
        let mut warned = Warned::default();
        let slot = |uid| Slot::of_nobody(Owner::User(Uid(uid)));
        let level = |uid| (AccountId::User(Uid(uid)), LimitLevel::Soft);
        assert!(warned.is_news(level(1), &slot(1), 10, 0));
        assert!(!warned.is_news(level(1), &slot(1), 10, 9));
        assert!(warned.is_news(level(1), &slot(1), 10, 10));
        let part = bounds::REMEMBERED_WARNINGS.slots().of_an_owner as u32;
        let granted = (0..2 * part).filter(|uid| warned.is_news(level(*uid), &slot(7), 10, 11));
        assert_eq!(granted.count() as u32, part);
        assert!(warned.is_news(level(9_999), &slot(8), 10, 12), "another owner");
        assert!(warned.is_news(level(9_998), &slot(7), 10, 21), "the interval is over");
    }
}
