//! Requests that were read and are not served yet.
//!
//! Owners are served round robin, and so are the uids of an owner within its share, so that an
//! owner with a thousand calling threads delays the call of another one by one step of work and not
//! by a thousand. Every item is one step of bounded work: a request, or a slice of a long
//! `BINDER_WRITE_READ` ([`WriteRead::Unfinished`](binder_driver::WriteRead::Unfinished)).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use binder_driver::state::wire_bytes;
use binder_uapi::BinderWriteRead;
use owners::bounds::{REAL_TIME_CALLS, WAITING_REQUESTS};
use owners::{Exhausted, FairQueue, Owner, Quota, TokenBucket, TokenBuckets, Uid};
use serde::{Deserialize, Serialize};

use super::PendingIoctl;
use crate::channel::StoredRequest;
use crate::open::Open;

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
#[derive(Clone, Copy, Debug)]
pub(super) struct Requester {
    pub(super) account: Account,
    pub(super) uid: Uid,
}

impl Requester {
    pub(super) fn of(open: &Open) -> Self {
        Self { account: Account::Owner(open.owner), uid: open.euid }
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

/// An item of the queue.
pub(super) enum Due {
    /// A request that was not started.
    Request(StoredRequest),
    /// The next slice of a `BINDER_WRITE_READ`.
    Slice(Slice),
}

/// The rest of a `BINDER_WRITE_READ`, with what was consumed so far.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Slice {
    pub(super) request: PendingIoctl,
    #[serde(with = "wire_bytes")]
    pub(super) bwr: BinderWriteRead,
    #[serde(default)]
    pub(super) stage: Stage,
}

/// What a slice needs before it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// A slice of its owner's: the one before it was whole.
    Unpaid,
    /// Its memory to be touched, if its owner has little time left for late accesses. What a call
    /// does first costs its owner no slice, however often it is delayed.
    #[default]
    Due,
    /// Nothing.
    Touched,
}

impl Slice {
    /// The first slice of a call, or what is left of a delayed one.
    pub(super) fn new(request: PendingIoctl, bwr: BinderWriteRead) -> Self {
        Self { request, bwr, stage: Stage::Due }
    }
}

enum Item {
    /// A request that a signal does not end.
    Request(Requester, StoredRequest),
    /// A `BINDER_WRITE_READ` of this unique id.
    Call(u64),
}

/// The queue.
pub(super) struct RequestQueue {
    items: FairQueue<Account, Item>,
    /// These are served first.
    real_time: RealTimeCalls,
    /// The `BINDER_WRITE_READ`s in the queue, by unique id, and who made them. A withdrawn one is
    /// missing here, and its item is skipped.
    calls: HashMap<u64, (Requester, Due)>,
    /// Requests that were not started. The uids of an owner have no parts.
    requests: Quota,
}

impl RequestQueue {
    pub(super) fn new() -> Self {
        Self {
            items: FairQueue::new(1),
            real_time: RealTimeCalls::new(),
            calls: HashMap::new(),
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

    /// Adds a `BINDER_WRITE_READ`, or the rest of one.
    pub(super) fn push_call(&mut self, requester: Requester, unique: u64, due: Due) {
        self.items.push(requester.account, requester.uid, 1, Item::Call(unique));
        self.add(requester, unique, due);
    }

    /// Adds a `BINDER_WRITE_READ` of a thread with this real-time priority.
    pub(super) fn push_real_time(
        &mut self,
        level: u8,
        requester: Requester,
        unique: u64,
        request: StoredRequest,
    ) {
        self.real_time.push(level, requester, unique);
        self.add(requester, unique, Due::Request(request));
    }

    fn add(&mut self, requester: Requester, unique: u64, due: Due) {
        if matches!(due, Due::Request(_)) {
            self.requests.insert(requester.owner(), Uid::NONE);
        }
        self.calls.insert(unique, (requester, due));
    }

    /// A call that [`pop`](Self::pop) returned out of turn was served.
    pub(super) fn charge(&mut self, owner: Owner, now_ns: u64, took: Duration) {
        self.real_time.charge(owner, now_ns, took);
    }

    /// Removes and returns a `BINDER_WRITE_READ`, since its caller has a signal. `None`: it is not
    /// in the queue.
    pub(super) fn withdraw(&mut self, unique: u64) -> Option<Due> {
        let (requester, due) = self.calls.remove(&unique)?;
        if matches!(due, Due::Request(_)) {
            self.requests.give_back(requester.owner(), Uid::NONE);
        }
        Some(due)
    }

    /// Who made a `BINDER_WRITE_READ` in the queue.
    pub(super) fn requester(&self, unique: u64) -> Option<Requester> {
        self.calls.get(&unique).map(|&(requester, _)| requester)
    }

    /// Removes and returns the next item, with the owner to charge if it is served out of turn.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<(Due, Option<Owner>)> {
        while let Some(next) = self.real_time.pop(now_ns) {
            match next {
                NextCall::Serve { owner, unique } => {
                    if let Some(due) = self.withdraw(unique) {
                        return Some((due, Some(owner)));
                    }
                }
                NextCall::TakeTurn { account, uid, unique } => {
                    self.items.push(account, uid, 1, Item::Call(unique));
                }
            }
        }
        self.pop_in_turn().map(|due| (due, None))
    }

    /// Removes and returns the next item of the owner whose turn it is.
    pub(super) fn pop_in_turn(&mut self) -> Option<Due> {
        loop {
            match self.items.pop()? {
                Item::Request(requester, request) => {
                    self.requests.give_back(requester.owner(), Uid::NONE);
                    return Some(Due::Request(request));
                }
                Item::Call(unique) => {
                    if let Some(due) = self.withdraw(unique) {
                        return Some(due);
                    }
                }
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len() + self.real_time.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.real_time.is_empty()
    }

    /// The slices, in no order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.calls.values().filter_map(|(_, due)| match due {
            Due::Slice(slice) => Some(slice),
            Due::Request(_) => None,
        })
    }

    /// Whether all items are slices, or were withdrawn.
    pub(super) fn has_only_slices(&self) -> bool {
        self.requests.taken() == 0
    }
}

/// A real-time call that is removed from the queue.
#[derive(Debug, PartialEq, Eq)]
enum NextCall {
    /// To be served now; its time is charged to the owner.
    Serve { owner: Owner, unique: u64 },
    /// The owner's share is used up: to be served in the owner's turn.
    TakeTurn { account: Account, uid: Uid, unique: u64 },
}

/// Calls of real-time threads that wait: served before others, by level, within a share of the
/// loop's time for each owner. Beyond it they wait for the turns of their owners.
#[derive(Debug)]
struct RealTimeCalls {
    /// By level, strongest first, then in the order of arrival.
    waiting: BTreeMap<(Reverse<u8>, u64), (Requester, u64)>,
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
    fn push(&mut self, level: u8, requester: Requester, unique: u64) {
        self.waiting.insert((Reverse(level), self.arrived), (requester, unique));
        self.arrived += 1;
    }

    /// Removes and returns the next call.
    fn pop(&mut self, now_ns: u64) -> Option<NextCall> {
        let (_, (Requester { account, uid }, unique)) = self.waiting.pop_first()?;
        Some(match account {
            Account::Owner(owner)
                if self.of_owners.is_ready(owner, now_ns)
                    && (owner.is_root() || self.of_all.is_ready(now_ns)) =>
            {
                NextCall::Serve { owner, unique }
            }
            account => NextCall::TakeTurn { account, uid, unique },
        })
    }

    /// A call of the owner has been served.
    fn charge(&mut self, owner: Owner, now_ns: u64, took: Duration) {
        let microseconds = (took.as_micros() as u64).max(1);
        self.of_owners.charge(owner, now_ns, microseconds);
        self.of_all.charge(now_ns, microseconds);
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: Uid) -> Requester {
        Requester { account: Account::Owner(Owner::User(uid)), uid }
    }

    fn request(text: &str) -> StoredRequest {
        StoredRequest::new(text.as_bytes())
    }

    fn drain(queue: &mut RequestQueue) -> Vec<String> {
        let text = |due| match due {
            Due::Request(request) => String::from_utf8(request.bytes().to_vec()).unwrap(),
            Due::Slice(slice) => format!("slice of {}", slice.request.unique),
        };
        std::iter::from_fn(|| queue.pop_in_turn()).map(text).collect()
    }

    fn slice(unique: u64) -> Due {
        let request = PendingIoctl {
            key: Default::default(),
            caller: binder_driver::Caller { process: Default::default(), tid: 7, euid: Uid(1) },
            unique,
            argument: 0,
        };
        Due::Slice(Slice::new(request, BinderWriteRead::default()))
    }

    #[test]
    fn an_owner_waits_for_one_item_of_each_other() {
        let mut queue = RequestQueue::new();
        for unique in 0..1000 {
            queue.push_call(of(Uid(1)), unique, Due::Request(request("flood")));
        }
        queue.push(of(Uid(2)), request("innocent"));
        assert_eq!(queue.len(), 1001);
        assert_eq!(drain(&mut queue)[..3], ["flood", "innocent", "flood"]);
    }

    #[test]
    fn an_owner_with_many_waiting_requests_gets_no_more_in_and_others_do() {
        let (mut queue, most) = (RequestQueue::new(), WAITING_REQUESTS.slots().of_an_owner as u64);
        for unique in 0..most {
            assert_eq!(queue.check(of(Uid(1))), Ok(()));
            match unique % 3 {
                0 => queue.push(of(Uid(1)), request("open")),
                1 => queue.push_call(of(Uid(1)), unique, Due::Request(request("call"))),
                _ => queue.push_real_time(9, of(Uid(1)), unique, request("real-time")),
            }
        }
        assert_eq!(queue.check(of(Uid(1))), Err(Exhausted::Owner));
        assert_eq!(queue.check(of(Uid(2))), Ok(()));
        assert_eq!(queue.check(of(Uid(0))), Ok(()));
        queue.push_call(of(Uid(1)), most, slice(most));
        assert!(queue.withdraw(1).is_some());
        assert_eq!(queue.check(of(Uid(1))), Ok(()), "a call that is withdrawn waits no more");
        queue.push(of(Uid(1)), request("close"));
        assert_eq!(queue.check(of(Uid(1))), Err(Exhausted::Owner));
        while queue.pop(0).is_some() {}
        assert!(queue.has_only_slices());
        assert_eq!(queue.requests.held(Owner::User(Uid(1))), 0);
    }

    #[test]
    fn an_interrupt_takes_the_turn_of_the_call_that_it_ends() {
        let mut queue = RequestQueue::new();
        queue.push_call(of(Uid(1)), 5, Due::Request(request("call")));
        queue.push(of(Uid(1)), request("call of another thread"));
        queue.push(queue.requester(5).unwrap(), request("interrupt"));
        queue.push(of(Uid(2)), request("innocent"));
        assert!(queue.requester(6).is_none());
        assert_eq!(drain(&mut queue)[..3], ["call", "innocent", "call of another thread"]);
    }

    #[test]
    fn the_next_slice_of_a_call_waits_behind_other_owners() {
        let mut queue = RequestQueue::new();
        queue.push_call(of(Uid(1)), 5, slice(5));
        queue.push(of(Uid(2)), request("first"));
        queue.push(of(Uid(2)), request("second"));
        let Some(Due::Slice(Slice { request, .. })) = queue.pop_in_turn() else {
            panic!("not its turn")
        };
        queue.push_call(of(Uid(1)), request.unique, slice(5));
        assert_eq!(drain(&mut queue), ["first", "slice of 5", "second"]);
    }

    #[test]
    fn a_real_time_call_is_served_before_those_of_all_owners() {
        let mut queue = RequestQueue::new();
        for unique in 0..100 {
            queue.push_call(of(Uid(1)), unique, Due::Request(request("ordinary")));
        }
        queue.push_real_time(50, of(Uid(2)), 1000, request("real-time"));
        queue.push_real_time(51, of(Uid(2)), 1001, request("withdrawn"));
        assert!(queue.withdraw(1001).is_some());
        assert_eq!(queue.len(), 102);
        let Some((Due::Request(first), Some(owner))) = queue.pop(0) else { panic!("no call") };
        assert_eq!((first.bytes(), owner), (&b"real-time"[..], Owner::User(Uid(2))));
        let burst = REAL_TIME_CALLS.of_an_owner().burst;
        queue.charge(owner, 0, Duration::from_micros(burst));
        queue.push_real_time(99, of(Uid(2)), 1002, request("beyond the share"));
        assert_eq!(drain(&mut queue)[..1], ["ordinary"]);
        let Some((Due::Request(_), None)) = queue.pop(0) else { panic!("no item") };
        assert!(queue.has_only_slices());
    }

    #[test]
    fn a_signal_ends_a_call_that_waits_and_nothing_else() {
        let mut queue = RequestQueue::new();
        queue.push_call(of(Uid(1)), 1, Due::Request(request("call")));
        queue.push_call(of(Uid(1)), 2, slice(2));
        queue.push(of(Uid(1)), request("open"));
        assert!(matches!(queue.withdraw(1), Some(Due::Request(_))));
        assert!(queue.withdraw(1).is_none(), "once");
        assert!(matches!(queue.withdraw(2), Some(Due::Slice(_))));
        assert!(queue.withdraw(3).is_none());
        assert_eq!(drain(&mut queue), ["open"]);
        assert!(queue.is_empty());
    }

    fn served(uid: u32, unique: u64) -> Option<NextCall> {
        Some(NextCall::Serve { owner: Owner::User(Uid(uid)), unique })
    }

    #[test]
    fn the_highest_level_is_first_and_equal_ones_are_in_order() {
        let mut calls = RealTimeCalls::new();
        for (level, unique) in [(1, 1), (99, 2), (50, 3), (99, 4)] {
            calls.push(level, of(Uid(7)), unique);
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
        calls.push(99, of(Uid(7)), 1);
        calls.push(1, of(Uid(8)), 2);
        let Requester { account, uid } = of(Uid(7));
        assert_eq!(calls.pop(0), Some(NextCall::TakeTurn { account, uid, unique: 1 }));
        assert_eq!(calls.pop(0), served(8, 2));
        calls.push(99, of(Uid(7)), 3);
        assert_eq!(calls.pop(1_000_000_000), served(7, 3), "the share comes back");
    }
}
