//! Bounds that hold for every order of requests.

use std::collections::{BTreeMap, VecDeque};

use owners::{Exhausted, FairQueue, Owner, Quota, QuotaSize, Rate, TokenBucket, Uid};
use proptest::prelude::*;

fn user(number: u32) -> Owner {
    Owner::User(Uid(number))
}

/// Cost that was served, by owner.
#[derive(Default)]
struct Served(BTreeMap<u32, u64>);

impl Served {
    fn spread(&self, owners: u32) -> u64 {
        let of = |owner: u32| self.0.get(&owner).copied().unwrap_or(0);
        (0..owners).map(of).max().unwrap_or(0) - (0..owners).map(of).min().unwrap_or(0)
    }
}

proptest! {
    #[test]
    fn owners_with_waiting_items_are_served_equally_up_to_a_quantum_and_an_item(
        // For each owner: the number of its uids, and the costs of its items.
        owners in prop::collection::vec((1u32..40, prop::collection::vec(1u64..=100, 1..20)), 2..6),
        quantum in 100u64..300,
    ) {
        let mut queue = FairQueue::new(quantum);
        // Enough items that no queue becomes empty during the test.
        for (owner, (uids, costs)) in (0u32..).zip(&owners) {
            for item in 0..300usize {
                let cost = costs[item % costs.len()];
                let uid = Uid(owner * 65_536 + item as u32 % uids);
                queue.push(user(owner), uid, cost, (owner, cost));
            }
        }
        let count = owners.len() as u32;
        let mut served = Served::default();
        let mut popped = vec![0; owners.len()];
        while popped.iter().all(|popped| *popped < 299) {
            let (owner, cost) = queue.pop().unwrap();
            *served.0.entry(owner).or_default() += cost;
            popped[owner as usize] += 1;
            prop_assert!(served.spread(count) < quantum + 100, "{:?}", served.0);
        }
    }

    #[test]
    fn the_uids_of_an_owner_are_served_equally_as_well(
        uids in 2u32..20,
        others in 0u32..5,
        quantum in 1u64..10,
    ) {
        let mut queue = FairQueue::new(quantum);
        for _ in 0..100 {
            for uid in 0..uids {
                queue.push(user(1), Uid(uid), 1, Some(uid));
            }
            for other in 0..others {
                queue.push(user(2 + other), Uid(2 + other), 1, None);
            }
        }
        let mut served = Served::default();
        let mut left = uids * 50;
        while left > 0 {
            if let Some(uid) = queue.pop().unwrap() {
                *served.0.entry(uid).or_default() += 1;
                left -= 1;
                prop_assert!(served.spread(uids) <= quantum, "{:?}", served.0);
            }
        }
    }

    #[test]
    fn every_item_comes_out_once_and_those_of_a_uid_in_order(
        pushes in prop::collection::vec((0u32..4, 0u32..4, 0u64..20, any::<bool>()), 0..200),
    ) {
        let mut queue = FairQueue::new(10);
        let mut waiting: BTreeMap<(u32, u32), VecDeque<usize>> = BTreeMap::new();
        let mut len = 0;
        for (item, (owner, uid, cost, pop)) in pushes.into_iter().enumerate() {
            queue.push(user(owner), Uid(uid), cost, (owner, uid, item));
            waiting.entry((owner, uid)).or_default().push_back(item);
            len += 1;
            if pop {
                let (owner, uid, item) = queue.pop().unwrap();
                let first = waiting.get_mut(&(owner, uid)).unwrap().pop_front();
                prop_assert_eq!(first, Some(item));
                len -= 1;
            }
            prop_assert_eq!(queue.len(), len);
        }
        while let Some((owner, uid, item)) = queue.pop() {
            prop_assert_eq!(waiting.get_mut(&(owner, uid)).unwrap().pop_front(), Some(item));
        }
        prop_assert!(waiting.values().all(VecDeque::is_empty));
    }

    #[test]
    fn a_bucket_lets_no_more_through_than_its_rate_and_burst(
        per_second in 1u64..10_000,
        burst in 1u64..100,
        steps in prop::collection::vec((0u64..50_000_000, 1u64..20), 1..300),
    ) {
        let mut bucket = TokenBucket::new(Rate { per_second, burst }, 0);
        let (mut now_ns, mut taken) = (0u64, 0u64);
        for (pause_ns, tokens) in steps {
            now_ns += pause_ns;
            match bucket.take(now_ns, tokens) {
                Ok(()) => taken += tokens,
                Err(at_ns) if tokens <= burst => {
                    // The reported time is exact: the call fails one nanosecond earlier and
                    // succeeds then.
                    prop_assert!(at_ns > now_ns);
                    let mut early = bucket;
                    prop_assert!(early.take(at_ns - 1, tokens).is_err());
                    now_ns = at_ns;
                    prop_assert_eq!(bucket.take(now_ns, tokens), Ok(()));
                    taken += tokens;
                }
                Err(_) => {}
            }
            let came = u128::from(now_ns) * u128::from(per_second) / 1_000_000_000;
            prop_assert!(u128::from(taken) <= u128::from(burst) + came);
        }
    }

    #[test]
    fn a_quota_holds_its_guarantees(
        size in (1usize..40, 0usize..20, 1usize..20).prop_map(|(slots, reserved, of_an_owner)| {
            QuotaSize { slots, reserved: reserved.min(slots), of_an_owner }
        }),
        steps in prop::collection::vec((0u32..5, 0u32..4, any::<bool>()), 0..300),
    ) {
        let mut quota = Quota::new(size);
        let mut held: Vec<(u32, u32)> = Vec::new();
        for (owner, uid, take) in steps {
            // Owner 0 is root, whose only uid is 0.
            let uid = if owner == 0 { 0 } else { owner * 65_536 + uid };
            let of =
                |held: &[(u32, u32)], owner: u32| held.iter().filter(|it| it.0 == owner).count();
            if !take {
                if let Some(at) = held.iter().position(|it| *it == (owner, uid)) {
                    held.swap_remove(at);
                }
                quota.give_back(user(owner), Uid(uid));
            } else {
                let before = of(&held, owner);
                match quota.take(user(owner), Uid(uid)) {
                    Ok(()) => held.push((owner, uid)),
                    // Root is refused only when there is no slot at all.
                    Err(why) if owner == 0 => {
                        prop_assert_eq!((why, held.len()), (Exhausted::All, size.slots));
                    }
                    // An owner without a slot is refused only when all that is open to owners is
                    // taken.
                    Err(why) if before == 0 => {
                        let open = size.slots - size.reserved.max(of(&held, 0)).min(size.slots);
                        prop_assert_eq!(why, Exhausted::All);
                        prop_assert_eq!(held.len() - of(&held, 0), open);
                    }
                    Err(_) => {}
                }
            }
            prop_assert_eq!(quota.taken(), held.len());
            prop_assert!(held.len() <= size.slots);
            prop_assert!(held.len() - of(&held, 0) <= size.slots - size.reserved);
            for owner in 1..5 {
                prop_assert_eq!(quota.held(user(owner)), of(&held, owner));
                prop_assert!(of(&held, owner) <= size.of_an_owner);
            }
        }
    }
}
