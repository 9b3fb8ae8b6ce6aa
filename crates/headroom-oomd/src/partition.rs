//! The latest decisions, partitioned by account: no user can evict all decisions of the others.

use std::collections::{BTreeMap, VecDeque};

use control::oomd::{AccountRef, Why};

/// At most `most` decisions by id. If there is no room, the oldest decision of the account (user,
/// group, cgroup) with the most decisions is evicted: a user whose processes are killed again and
/// again evicts its own decisions.
#[derive(Clone, Debug)]
pub struct Partitioned {
    most: usize,
    by_id: BTreeMap<u64, Why>,
    /// Ids of each account's decisions, oldest first.
    by_account: BTreeMap<AccountRef, VecDeque<u64>>,
}

impl Partitioned {
    /// Empty, with room for `most`.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), by_id: BTreeMap::new(), by_account: BTreeMap::new() }
    }

    /// Adds a decision, or replaces a kept one by its new state.
    pub fn insert(&mut self, why: Why) {
        let (id, account) = (why.id, why.account);
        if let Some(kept) = self.by_id.get_mut(&id) {
            if kept.account == account {
                *kept = why;
            }
            return;
        }
        if self.by_id.len() >= self.most {
            self.evict();
        }
        self.by_id.insert(id, why);
        let ids = self.by_account.entry(account).or_default();
        // The id is nearly always the highest, so the insertion is at the end.
        let at = ids.partition_point(|kept| *kept < id);
        ids.insert(at, id);
    }

    fn evict(&mut self) {
        // Among accounts with equally many decisions, the one with the oldest decision.
        let largest = self
            .by_account
            .iter()
            .max_by_key(|(_, ids)| (ids.len(), std::cmp::Reverse(ids.front().copied())));
        let Some(account) = largest.map(|(account, _)| *account) else { return };
        let Some(ids) = self.by_account.get_mut(&account) else { return };
        if let Some(id) = ids.pop_front() {
            self.by_id.remove(&id);
        }
        if ids.is_empty() {
            self.by_account.remove(&account);
        }
    }

    /// The decision with this id.
    pub fn get(&self, id: u64) -> Option<&Why> {
        self.by_id.get(&id)
    }

    /// Mutable access to a decision. The caller must not change its account, which is the key of
    /// the partition.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Why> {
        self.by_id.get_mut(&id)
    }

    /// All decisions, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Why> {
        self.by_id.values()
    }

    /// Mutable access to all decisions, oldest first. The caller must not change their accounts.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Why> {
        self.by_id.values_mut()
    }

    /// The highest id; 0: there are no decisions.
    pub fn last_id(&self) -> u64 {
        self.by_id.last_key_value().map_or(0, |(id, _)| *id)
    }

    /// Number of decisions.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are no decisions.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use control::Uid;
    use control::oomd::Outcome;
    use test_support::decision;

    use super::*;

    const ALICE: Uid = Uid(7);
    const BOB: Uid = Uid(8);
    const CAROL: Uid = Uid(9);

    fn why(id: u64, uid: Uid) -> Why {
        Why { account: AccountRef::user(uid), ..decision(id) }
    }

    fn ids(kept: &Partitioned, uid: Uid) -> Vec<u64> {
        kept.iter().filter(|why| why.account == AccountRef::user(uid)).map(|why| why.id).collect()
    }

    #[test]
    fn a_user_with_many_kills_forgets_its_own() {
        let mut kept = Partitioned::new(10);
        for id in 1..=3 {
            kept.insert(why(id, ALICE));
        }
        for id in 4..=1000 {
            kept.insert(why(id, BOB));
        }
        assert_eq!(ids(&kept, ALICE), [1, 2, 3]);
        assert_eq!(ids(&kept, BOB), (994..=1000).collect::<Vec<u64>>());
        assert_eq!((kept.len(), kept.last_id()), (10, 1000));
        // The next user's decision is kept at once.
        kept.insert(why(1001, CAROL));
        assert_eq!((ids(&kept, CAROL), ids(&kept, ALICE)), (vec![1001], vec![1, 2, 3]));
    }

    #[test]
    fn with_equal_parts_the_oldest_goes() {
        let mut kept = Partitioned::new(4);
        for id in 1..=8 {
            kept.insert(why(id, if id % 2 == 0 { ALICE } else { BOB }));
        }
        assert_eq!(kept.iter().map(|why| why.id).collect::<Vec<_>>(), [5, 6, 7, 8]);
    }

    #[test]
    fn a_later_entry_replaces_the_decision() {
        let mut kept = Partitioned::new(2);
        kept.insert(why(1, ALICE));
        let end = Outcome::Stuck { reason: "x".to_owned() };
        kept.insert(Why { outcome: end.clone(), ..why(1, ALICE) });
        assert_eq!((kept.len(), &kept.get(1).unwrap().outcome), (1, &end));
        // A damaged file does not move a decision to another account.
        kept.insert(why(1, BOB));
        assert_eq!(kept.get(1).unwrap().account, AccountRef::user(ALICE));
        assert!(kept.get(2).is_none() && !kept.is_empty());
    }
}
