//! Calls of real-time threads that wait: served before others, by level, within a share of the
//! loop's time for each owner. Beyond it they wait for the turns of their owners.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use owners::bounds::REAL_TIME_CALLS;
use owners::{Owner, TokenBucket, TokenBuckets};

use super::request_queue::{Account, Requester};

/// A call that is removed from the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// To be served now; its time is charged to the owner.
    Serve { owner: Owner, unique: u64 },
    /// The owner's share is used up: to be served in the owner's turn.
    TakeTurn { account: Account, uid: owners::Uid, unique: u64 },
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct RealTimeCalls {
    /// By level, strongest first, then in the order of arrival.
    waiting: BTreeMap<(Reverse<u8>, u64), (Requester, u64)>,
    arrived: u64,
    of_owners: TokenBuckets<Owner>,
    of_all: TokenBucket,
}

impl RealTimeCalls {
    pub(super) fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            arrived: 0,
            of_owners: TokenBuckets::new(REAL_TIME_CALLS.of_an_owner()),
            of_all: TokenBucket::new(REAL_TIME_CALLS.of_all(), 0),
        }
    }

    /// Adds a call of a thread with this real-time priority.
    pub(super) fn push(&mut self, level: u8, requester: Requester, unique: u64) {
        self.waiting.insert((Reverse(level), self.arrived), (requester, unique));
        self.arrived += 1;
    }

    /// Removes and returns the next call.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<Next> {
        let (_, (Requester { account, uid }, unique)) = self.waiting.pop_first()?;
        Some(match account {
            Account::Owner(owner)
                if self.of_owners.is_ready(owner, now_ns)
                    && (owner.is_root() || self.of_all.is_ready(now_ns)) =>
            {
                Next::Serve { owner, unique }
            }
            account => Next::TakeTurn { account, uid, unique },
        })
    }

    /// A call of the owner has been served.
    pub(super) fn charge(&mut self, owner: Owner, now_ns: u64, took: Duration) {
        let microseconds = (took.as_micros() as u64).max(1);
        self.of_owners.charge(owner, now_ns, microseconds);
        self.of_all.charge(now_ns, microseconds);
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use owners::Uid;

    use super::*;

    fn of(uid: u32) -> Requester {
        Requester { account: Account::Owner(Owner::User(Uid(uid))), uid: Uid(uid) }
    }

    fn served(uid: u32, unique: u64) -> Option<Next> {
        Some(Next::Serve { owner: Owner::User(Uid(uid)), unique })
    }

    #[test]
    fn the_highest_level_is_first_and_equal_ones_are_in_order() {
        let mut calls = RealTimeCalls::new();
        for (level, unique) in [(1, 1), (99, 2), (50, 3), (99, 4)] {
            calls.push(level, of(7), unique);
        }
        let order: Vec<_> = std::iter::from_fn(|| calls.pop(0)).collect();
        let expected = [2, 4, 3, 1].map(|unique| served(7, unique).unwrap());
        assert_eq!(order, expected);
    }

    #[test]
    fn an_owner_that_has_used_its_share_takes_turns_and_others_do_not() {
        let mut calls = RealTimeCalls::new();
        let burst = REAL_TIME_CALLS.of_an_owner().burst;
        calls.charge(Owner::User(Uid(7)), 0, Duration::from_micros(burst));
        calls.push(99, of(7), 1);
        calls.push(1, of(8), 2);
        let Requester { account, uid } = of(7);
        assert_eq!(calls.pop(0), Some(Next::TakeTurn { account, uid, unique: 1 }));
        assert_eq!(calls.pop(0), served(8, 2));
        calls.push(99, of(7), 3);
        assert_eq!(calls.pop(1_000_000_000), served(7, 3), "the share comes back");
    }
}
