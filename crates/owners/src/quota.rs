//! A bounded number of slots, of which one owner cannot take all.

use std::collections::BTreeMap;

use crate::{Owner, Uid};

/// Number of slots, and the bounds on how they are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaSize {
    /// Number of slots, including the reserved ones.
    pub slots: usize,
    /// Slots that only root may use.
    pub reserved: usize,
    /// Maximum number of slots of one owner.
    pub of_an_owner: usize,
}

impl QuotaSize {
    /// Whether an owner that holds `held` of the `taken` slots, none of them reserved, gets another
    /// one: it holds fewer than its bound and fewer than are left.
    pub const fn has_room(self, held: usize, taken: usize) -> bool {
        let left = self.slots.saturating_sub(self.reserved).saturating_sub(taken);
        held < self.of_an_owner && held < left
    }
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// The owner, or this uid of the owner, has reached its bound.
    Owner,
    /// All slots are taken, or too few are left for an owner that has some.
    All,
}

/// Slots in use, by owner and uid.
///
/// An owner gets a slot if it holds fewer than its bound, and fewer than are left for all owners
/// except root. So `n` owners that take all slots that they can get leave one part in `n + 1` to
/// the next owner. A uid gets a slot if it holds less than an equal part of its owner's bound.
#[derive(Clone, Debug)]
pub struct Quota {
    size: QuotaSize,
    taken: usize,
    /// Slots out of `taken` that root holds.
    roots: usize,
    held: BTreeMap<Owner, BTreeMap<Uid, usize>>,
}

impl Quota {
    /// Creates a quota of which no slot is in use.
    pub fn new(size: QuotaSize) -> Self {
        Self { size, taken: 0, roots: 0, held: BTreeMap::new() }
    }

    /// Takes a slot, which [`give_back`](Self::give_back) returns.
    pub fn take(&mut self, owner: Owner, uid: Uid) -> Result<(), Exhausted> {
        self.check(owner, uid)?;
        self.insert(owner, uid);
        Ok(())
    }

    /// Whether [`take`](Self::take) would succeed.
    pub fn check(&self, owner: Owner, uid: Uid) -> Result<(), Exhausted> {
        if self.taken >= self.size.slots {
            return Err(Exhausted::All);
        }
        if owner.is_root() { Ok(()) } else { self.allows(owner, uid) }
    }

    /// As [`check`](Self::check), with the bound of an owner for root, too.
    pub fn check_also_root(&self, owner: Owner, uid: Uid) -> Result<(), Exhausted> {
        if self.held(owner) >= self.size.of_an_owner {
            return Err(Exhausted::Owner);
        }
        self.check(owner, uid)
    }

    fn allows(&self, owner: Owner, uid: Uid) -> Result<(), Exhausted> {
        // Slots that root holds are counted as part of the reserved slots first.
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

    /// Counts a slot even if it exceeds the quota: it was granted by an earlier daemon and is in
    /// use.
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

    /// The size it was created with.
    pub fn size(&self) -> QuotaSize {
        self.size
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

    /// Takes a slot for each of `uids`; returns how many were granted.
    fn take_all(quota: &mut Quota, owner: Owner, uids: impl Iterator<Item = u32>) -> usize {
        uids.filter(|uid| quota.take(owner, Uid(*uid)).is_ok()).count()
    }

    #[test]
    fn owners_with_many_uids_and_with_one_get_equal_shares() {
        let mut quota = Quota::new(SIZE);
        assert_eq!(take_all(&mut quota, user(1), std::iter::repeat_n(1, 65_536)), 8);
        assert_eq!(take_all(&mut quota, user(2), 100_000..165_536), 8);
        assert_eq!(quota.check(user(1), Uid(1)), Err(Exhausted::Owner));
        assert_eq!(quota.take(user(1), Uid(1)), Err(Exhausted::Owner));
        assert_eq!(quota.held(user(2)), 8);
    }

    #[test]
    fn owners_of_rings_that_take_what_they_can_leave_some_to_the_next() {
        for size in [crate::bounds::RINGS, crate::bounds::WATCHED_RINGS].map(|it| it.slots()) {
            let mut taken = 0;
            for owner in 0..5 {
                let free = size.slots - taken;
                let held = (0..size.slots).take_while(|&held| size.has_room(held, taken + held));
                let held = held.count();
                assert!(held > 0 && held <= size.of_an_owner, "owner {owner} has {held} of {free}");
                taken += held;
            }
            assert!(taken < size.slots);
        }
    }

    #[test]
    fn root_gets_a_slot_whatever_the_others_do() {
        let mut quota = Quota::new(SIZE);
        for uid in 1..100 {
            take_all(&mut quota, user(uid), std::iter::repeat_n(uid, 100));
        }
        assert_eq!(take_all(&mut quota, user(0), std::iter::repeat_n(0, 100)), 64 - quota_others());
        // When all slots are taken, even root gets none.
        assert_eq!(quota.take(user(0), Uid(0)), Err(Exhausted::All));

        fn quota_others() -> usize {
            56
        }
    }

    #[test]
    fn root_has_the_bound_of_an_owner_where_it_is_asked_for() {
        let mut quota = Quota::new(SIZE);
        take_all(&mut quota, user(0), std::iter::repeat_n(0, 8));
        assert_eq!(quota.check(user(0), Uid(0)), Ok(()));
        assert_eq!(quota.check_also_root(user(0), Uid(0)), Err(Exhausted::Owner));
        assert_eq!(quota.check_also_root(user(1), Uid(1)), Ok(()));
    }

    #[test]
    fn slots_of_root_count_against_the_reserved_part_first() {
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
    fn released_slots_can_be_taken_again() {
        let mut quota = Quota::new(SIZE);
        for _ in 0..1000 {
            assert_eq!(take_all(&mut quota, user(1), std::iter::repeat_n(1, 100)), 8);
            for _ in 0..8 {
                quota.give_back(user(1), Uid(1));
            }
        }
        // Returning a slot that the owner or uid does not hold changes nothing.
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
