//! A bounded number of slots, of which one owner cannot take all.

use std::collections::BTreeMap;

use crate::{Owner, Uid};

/// How many slots there are, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaSize {
    /// All slots.
    pub slots: usize,
    /// Of these, only for root.
    pub reserved: usize,
    /// Slots of one owner at the most.
    pub of_an_owner: usize,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// The owner, or this uid of it, has as many as it may have.
    Owner,
    /// All slots are taken, or too few are left for an owner that has some.
    All,
}

/// Slots in use, by owner and uid.
///
/// An owner gets a slot if it holds less than its bound, and less than what is left for everybody.
/// So `n` owners that take what they can get leave one part in `n + 1` to the next one. A uid gets
/// a slot if it holds less than an equal part of its owner's bound.
#[derive(Clone, Debug)]
pub struct Quota {
    size: QuotaSize,
    taken: usize,
    /// Of `taken`, root's.
    roots: usize,
    held: BTreeMap<Owner, BTreeMap<Uid, usize>>,
}

impl Quota {
    /// Nothing is taken.
    pub fn new(size: QuotaSize) -> Self {
        Self { size, taken: 0, roots: 0, held: BTreeMap::new() }
    }

    /// Takes a slot, which [`give_back`](Self::give_back) returns.
    pub fn take(&mut self, owner: Owner, uid: Uid) -> Result<(), Exhausted> {
        if self.taken >= self.size.slots {
            return Err(Exhausted::All);
        }
        if !owner.is_root() {
            self.allows(owner, uid)?;
        }
        self.insert(owner, uid);
        Ok(())
    }

    fn allows(&self, owner: Owner, uid: Uid) -> Result<(), Exhausted> {
        // What root holds counts against the reserved part first.
        let open = self.size.slots - self.size.reserved.max(self.roots).min(self.size.slots);
        let left = open.saturating_sub(self.taken - self.roots);
        let uids = self.held.get(&owner);
        let held: usize = uids.map_or(0, |uids| uids.values().sum());
        if held >= self.size.of_an_owner {
            return Err(Exhausted::Owner);
        }
        if held >= left {
            return Err(Exhausted::All);
        }
        let of_uid = uids.and_then(|uids| uids.get(&uid)).copied().unwrap_or(0);
        let new = usize::from(of_uid == 0);
        let sharing = uids.map_or(0, BTreeMap::len) + new;
        if of_uid < self.size.of_an_owner.div_ceil(sharing.max(1)) {
            Ok(())
        } else {
            Err(Exhausted::Owner)
        }
    }

    /// Counts a slot that is in use whatever the quota says: one that an earlier daemon has
    /// granted.
    pub fn insert(&mut self, owner: Owner, uid: Uid) {
        self.taken += 1;
        self.roots += usize::from(owner.is_root());
        *self.held.entry(owner).or_default().entry(uid).or_default() += 1;
    }

    /// Returns a slot that this owner and uid have taken.
    pub fn give_back(&mut self, owner: Owner, uid: Uid) {
        let Some(uids) = self.held.get_mut(&owner) else { return };
        let Some(count) = uids.get_mut(&uid) else { return };
        self.taken -= 1;
        self.roots -= usize::from(owner.is_root());
        *count -= 1;
        if *count == 0 {
            uids.remove(&uid);
            if uids.is_empty() {
                self.held.remove(&owner);
            }
        }
    }

    /// Slots in use.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Slots that an owner holds.
    pub fn held(&self, owner: Owner) -> usize {
        self.held.get(&owner).map_or(0, |uids| uids.values().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: QuotaSize = QuotaSize { slots: 64, reserved: 8, of_an_owner: 8 };

    fn user(number: u32) -> Owner {
        Owner::User(Uid(number))
    }

    /// As many as it gets.
    fn take_all(quota: &mut Quota, owner: Owner, uids: impl Iterator<Item = u32>) -> usize {
        uids.filter(|uid| quota.take(owner, Uid(*uid)).is_ok()).count()
    }

    #[test]
    fn an_owner_with_many_uids_gets_what_one_with_a_single_uid_gets() {
        let mut quota = Quota::new(SIZE);
        assert_eq!(take_all(&mut quota, user(1), std::iter::repeat_n(1, 65_536)), 8);
        assert_eq!(take_all(&mut quota, user(2), 100_000..165_536), 8);
        assert_eq!(quota.take(user(1), Uid(1)), Err(Exhausted::Owner));
        assert_eq!(quota.held(user(2)), 8);
    }

    #[test]
    fn root_gets_a_slot_whatever_the_others_do() {
        let mut quota = Quota::new(SIZE);
        for uid in 1..100 {
            take_all(&mut quota, user(uid), std::iter::repeat_n(uid, 100));
        }
        assert_eq!(take_all(&mut quota, user(0), std::iter::repeat_n(0, 100)), 64 - quota_others());
        // With all of them taken there is none for anybody.
        assert_eq!(quota.take(user(0), Uid(0)), Err(Exhausted::All));

        fn quota_others() -> usize {
            56
        }
    }

    #[test]
    fn what_root_holds_counts_against_the_reserved_part_first() {
        let mut quota = Quota::new(SIZE);
        assert_eq!(take_all(&mut quota, user(0), std::iter::repeat_n(0, 8)), 8);
        let others = (1..100).map(|uid| take_all(&mut quota, user(uid), std::iter::once(uid)));
        assert_eq!(others.sum::<usize>(), 56);
    }

    #[test]
    fn greedy_owners_leave_room_for_the_next() {
        let mut quota = Quota::new(QuotaSize { slots: 100, reserved: 0, of_an_owner: 100 });
        assert_eq!(take_all(&mut quota, user(1), std::iter::repeat_n(1, 100)), 50);
        assert_eq!(take_all(&mut quota, user(2), std::iter::repeat_n(2, 100)), 25);
        assert_eq!(quota.take(user(2), Uid(2)), Err(Exhausted::All));
        assert_eq!(quota.take(user(3), Uid(3)), Ok(()));
    }

    #[test]
    fn the_uids_of_an_owner_share_equally() {
        let mut quota = Quota::new(SIZE);
        assert_eq!(quota.take(user(1), Uid(100_001)), Ok(()));
        // Two uids: half of the bound each.
        assert_eq!(take_all(&mut quota, user(1), std::iter::repeat_n(100_000, 100)), 4);
        assert_eq!(take_all(&mut quota, user(1), std::iter::repeat_n(100_001, 100)), 3);
    }

    #[test]
    fn what_comes_back_can_be_taken_again_and_leaves_no_trace() {
        let mut quota = Quota::new(SIZE);
        for _ in 0..1000 {
            assert_eq!(take_all(&mut quota, user(1), std::iter::repeat_n(1, 100)), 8);
            for _ in 0..8 {
                quota.give_back(user(1), Uid(1));
            }
        }
        // More than was taken, or from somebody that has none, changes nothing.
        quota.give_back(user(1), Uid(1));
        quota.give_back(user(9), Uid(9));
        assert_eq!((quota.taken(), quota.held.len()), (0, 0));
    }

    #[test]
    fn slots_of_an_earlier_daemon_count_even_above_the_bound() {
        let mut quota = Quota::new(SIZE);
        (0..70).for_each(|_| quota.insert(user(1), Uid(1)));
        assert_eq!((quota.taken(), quota.held(user(1))), (70, 70));
        assert!(quota.take(user(2), Uid(2)).is_err());
        (0..62).for_each(|_| quota.give_back(user(1), Uid(1)));
        assert_eq!(quota.take(user(1), Uid(1)), Err(Exhausted::Owner));
        assert_eq!(quota.take(user(2), Uid(2)), Ok(()));
    }
}
