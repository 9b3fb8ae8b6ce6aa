//! Requests that were read and are not served yet.
//!
//! Owners are served round robin, and so are the uids of an owner within its share, so that an
//! owner with a thousand calling threads delays the call of another one by one step of work and not
//! by a thousand. Every item is one step of bounded work: a request, or a slice of a long
//! `BINDER_WRITE_READ` ([`WriteRead::Unfinished`](binder_driver::WriteRead::Unfinished)).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use owners::bounds::{REAL_TIME_CALLS, WAITING_REQUESTS};
use owners::{Exhausted, FairQueue, Owner, Quota, TokenBucket, TokenBuckets, Uid};

use crate::channel::StoredRequest;
use crate::open::{CallKey, Open};

/// The account that a request is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Account {
    /// The owner of an open.
    Owner(Owner),
    /// Requests that concern no open, of all owners: lookups, opens, folders, logs. Determining the
    /// owner of the process would take longer than most of these requests.
    Filesystem,
}

/// Account and uid of a request's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Requester {
    pub(super) account: Account,
    pub(super) uid: Uid,
}

impl Requester {
    pub(super) fn of(open: &Open) -> Self {
        Self { account: Account::Owner(open.info.owner), uid: open.info.euid }
    }

    /// The owner whose requests are counted; for [`Account::Filesystem`], as if the uid were not
    /// in a namespace of a user.
    pub(super) fn owner(self) -> Owner {
        match self.account {
            Account::Owner(owner) => owner,
            Account::Filesystem => Owner::User(self.uid),
        }
    }
}

/// The next thing to be served.
pub(super) enum Due {
    /// A request that a signal does not end.
    Request(StoredRequest),
    /// A call, unless it waits no more.
    Call(CallKey),
}

enum Item {
    Request(Requester, StoredRequest),
    Call(CallKey),
}

/// The queue. It has keys of calls that have ended meanwhile, too.
pub(super) struct RequestQueue {
    items: FairQueue<Account, Item>,
    /// These are served first.
    real_time: RealTimeCalls,
    /// Requests, and calls that were not started. The uids of an owner have no parts.
    requests: Quota,
}

impl RequestQueue {
    pub(super) fn new() -> Self {
        Self {
            items: FairQueue::new(1),
            real_time: RealTimeCalls::new(),
            requests: Quota::new(WAITING_REQUESTS.slots()),
        }
    }

    /// Whether the requester's owner may have one more request here.
    pub(super) fn check(&self, requester: Requester) -> Result<(), Exhausted> {
        self.requests.check(requester.owner(), Uid::NONE)
    }

    /// Adds a request that a signal does not end.
    pub(super) fn push(&mut self, requester: Requester, request: StoredRequest) {
        self.items.push(requester.account, requester.uid, 1, Item::Request(requester, request));
        self.requests.insert(requester.owner(), Uid::NONE);
    }

    /// Adds the rest of a call.
    pub(super) fn push_call(&mut self, requester: Requester, call: CallKey) {
        self.items.push(requester.account, requester.uid, 1, Item::Call(call));
    }

    /// Adds a call that was not started, of a thread with this real-time priority (0: none).
    pub(super) fn push_arrived(&mut self, level: u8, requester: Requester, call: CallKey) {
        match level {
            0 => self.push_call(requester, call),
            level => self.real_time.push(level, requester, call),
        }
        self.requests.insert(requester.owner(), Uid::NONE);
    }

    /// A call that was not started waits no more.
    pub(super) fn forget_arrived(&mut self, requester: Requester) {
        self.requests.give_back(requester.owner(), Uid::NONE);
    }

    /// A call that [`pop`](Self::pop) returned out of turn was served.
    pub(super) fn charge(&mut self, owner: Owner, now_ns: u64, took: Duration) {
        self.real_time.charge(owner, now_ns, took);
    }

    /// Removes and returns the next item, with the owner to charge if it is served out of turn.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<(Due, Option<Owner>)> {
        while let Some(next) = self.real_time.pop(now_ns) {
            match next {
                NextCall::Serve { owner, call } => return Some((Due::Call(call), Some(owner))),
                NextCall::TakeTurn { account, uid, call } => {
                    self.items.push(account, uid, 1, Item::Call(call));
                }
            }
        }
        self.pop_in_turn().map(|next| (next, None))
    }

    /// Removes and returns the next item of the owner whose turn it is.
    pub(super) fn pop_in_turn(&mut self) -> Option<Due> {
        Some(match self.items.pop()? {
            Item::Request(requester, request) => {
                self.requests.give_back(requester.owner(), Uid::NONE);
                Due::Request(request)
            }
            Item::Call(call) => Due::Call(call),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.real_time.is_empty()
    }

    /// Whether something waits that was not started.
    pub(super) fn has_requests(&self) -> bool {
        self.requests.taken() > 0
    }
}

/// A real-time call that is removed from the queue.
#[derive(Debug, PartialEq, Eq)]
enum NextCall {
    /// To be served now; its time is charged to the owner.
    Serve { owner: Owner, call: CallKey },
    /// The owner's share is used up: to be served in the owner's turn.
    TakeTurn { account: Account, uid: Uid, call: CallKey },
}

/// Calls of real-time threads that wait: served before others, by level, within a share of the
/// loop's time for each owner. Beyond it they wait for the turns of their owners.
#[derive(Debug)]
struct RealTimeCalls {
    /// By level, strongest first, then in the order of arrival.
    waiting: BTreeMap<(Reverse<u8>, u64), (Requester, CallKey)>,
    arrived: u64,
    of_owners: TokenBuckets<Owner>,
    of_all: TokenBucket,
}

impl RealTimeCalls {
    fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            arrived: 0,
            of_owners: TokenBuckets::new(REAL_TIME_CALLS.of_an_owner()),
            of_all: TokenBucket::new(REAL_TIME_CALLS.of_all(), 0),
        }
    }

    /// Adds a call of a thread with this real-time priority.
    fn push(&mut self, level: u8, requester: Requester, call: CallKey) {
        self.waiting.insert((Reverse(level), self.arrived), (requester, call));
        self.arrived += 1;
    }

    /// Removes and returns the next call.
    fn pop(&mut self, now_ns: u64) -> Option<NextCall> {
        let (_, (Requester { account, uid }, call)) = self.waiting.pop_first()?;
        Some(match account {
            Account::Owner(owner)
                if self.of_owners.is_ready(owner, now_ns)
                    && (owner.is_root() || self.of_all.is_ready(now_ns)) =>
            {
                NextCall::Serve { owner, call }
            }
            account => NextCall::TakeTurn { account, uid, call },
        })
    }

    /// A call of the owner has been served.
    fn charge(&mut self, owner: Owner, now_ns: u64, took: Duration) {
        let microseconds = (took.as_micros() as u64).max(1);
        self.of_owners.charge(owner, now_ns, microseconds);
        self.of_all.charge(now_ns, microseconds);
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use binder_driver::slab::Key;

    use super::*;

    fn of(uid: Uid) -> Requester {
        Requester { account: Account::Owner(Owner::User(uid)), uid }
    }

    fn request(text: &str) -> StoredRequest {
        StoredRequest::new(text.as_bytes())
    }

    fn call(number: u64) -> CallKey {
        CallKey::from_number(1 << 32 | number)
    }

    fn text(next: Due) -> String {
        match next {
            Due::Request(request) => String::from_utf8(request.bytes().to_vec()).unwrap(),
            Due::Call(call) => format!("call {}", call.number() as u32),
        }
    }

    fn drain(queue: &mut RequestQueue) -> Vec<String> {
        std::iter::from_fn(|| queue.pop_in_turn()).map(text).collect()
    }

    #[test]
    fn an_owner_waits_for_one_item_of_each_other() {
        let mut queue = RequestQueue::new();
        (0..1000).for_each(|number| queue.push_arrived(0, of(Uid(1)), call(number)));
        queue.push(of(Uid(2)), request("innocent"));
        assert_eq!(drain(&mut queue)[..3], ["call 0", "innocent", "call 1"]);
    }

    #[test]
    fn an_owner_with_many_waiting_requests_gets_no_more_in_and_others_do() {
        let (mut queue, most) = (RequestQueue::new(), WAITING_REQUESTS.slots().of_an_owner as u64);
        for number in 0..most {
            assert_eq!(queue.check(of(Uid(1))), Ok(()));
            match number % 3 {
                0 => queue.push(of(Uid(1)), request("open")),
                1 => queue.push_arrived(0, of(Uid(1)), call(number)),
                _ => queue.push_arrived(9, of(Uid(1)), call(number)),
            }
        }
        assert_eq!(queue.check(of(Uid(1))), Err(Exhausted::Owner));
        assert_eq!(queue.check(of(Uid(2))), Ok(()));
        assert_eq!(queue.check(of(Uid(0))), Ok(()));
        queue.push_call(of(Uid(1)), call(most));
        queue.forget_arrived(of(Uid(1)));
        assert_eq!(queue.check(of(Uid(1))), Ok(()), "a call that has ended waits no more");
        queue.push(of(Uid(1)), request("close"));
        assert_eq!(queue.check(of(Uid(1))), Err(Exhausted::Owner));
        while queue.pop(0).is_some() {}
        let arrived = (0..most).filter(|number| number % 3 > 0).count();
        (1..arrived).for_each(|_| queue.forget_arrived(of(Uid(1))));
        assert!(queue.is_empty() && !queue.has_requests());
        assert_eq!(queue.requests.held(Owner::User(Uid(1))), 0);
    }

    #[test]
    fn an_interrupt_takes_its_turn_behind_the_call_that_it_ends() {
        let mut queue = RequestQueue::new();
        queue.push_arrived(0, of(Uid(1)), call(5));
        queue.push(of(Uid(1)), request("call of another thread"));
        queue.push(of(Uid(1)), request("interrupt"));
        queue.push(of(Uid(2)), request("innocent"));
        assert_eq!(drain(&mut queue)[..3], ["call 5", "innocent", "call of another thread"]);
    }

    #[test]
    fn the_next_slice_of_a_call_waits_behind_other_owners() {
        let mut queue = RequestQueue::new();
        queue.push_call(of(Uid(1)), call(5));
        queue.push(of(Uid(2)), request("first"));
        queue.push(of(Uid(2)), request("second"));
        assert_eq!(queue.pop_in_turn().map(text), Some("call 5".into()));
        queue.push_call(of(Uid(1)), call(6));
        assert_eq!(drain(&mut queue), ["first", "call 6", "second"]);
    }

    #[test]
    fn a_real_time_call_is_served_before_those_of_all_owners() {
        let mut queue = RequestQueue::new();
        (0..100).for_each(|number| queue.push_arrived(0, of(Uid(1)), call(number)));
        queue.push_arrived(50, of(Uid(2)), call(1000));
        let Some((first, Some(owner))) = queue.pop(0) else { panic!("no call") };
        assert_eq!((text(first), owner), ("call 1000".into(), Owner::User(Uid(2))));
        let burst = REAL_TIME_CALLS.of_an_owner().burst;
        queue.charge(owner, 0, Duration::from_micros(burst));
        queue.push_arrived(99, of(Uid(2)), call(1002));
        assert_eq!(queue.pop_in_turn().map(text), Some("call 0".into()));
        let Some((next, None)) = queue.pop(0) else { panic!("no item") };
        assert_eq!(text(next), "call 1002", "beyond its share, in the turn of its owner");
    }

    fn served(uid: u32, number: u64) -> Option<NextCall> {
        Some(NextCall::Serve { owner: Owner::User(Uid(uid)), call: call(number) })
    }

    #[test]
    fn the_highest_level_is_first_and_equal_ones_are_in_order() {
        let mut calls = RealTimeCalls::new();
        for (level, number) in [(1, 1), (99, 2), (50, 3), (99, 4)] {
            calls.push(level, of(Uid(7)), call(number));
        }
        let order: Vec<_> = std::iter::from_fn(|| calls.pop(0)).collect();
        let expected = [2, 4, 3, 1].map(|number| served(7, number).unwrap());
        assert_eq!(order, expected);
    }

    #[test]
    fn an_owner_that_has_used_its_share_takes_turns_and_others_do_not() {
        let mut calls = RealTimeCalls::new();
        let burst = REAL_TIME_CALLS.of_an_owner().burst;
        calls.charge(Owner::User(Uid(7)), 0, Duration::from_micros(burst));
        calls.push(99, of(Uid(7)), call(1));
        calls.push(1, of(Uid(8)), call(2));
        let Requester { account, uid } = of(Uid(7));
        assert_eq!(calls.pop(0), Some(NextCall::TakeTurn { account, uid, call: call(1) }));
        assert_eq!(calls.pop(0), served(8, 2));
        calls.push(99, of(Uid(7)), call(3));
        assert_eq!(calls.pop(1_000_000_000), served(7, 3), "the share comes back");
    }
}
