//! Requests that were read and are not served yet.
//!
//! Owners are served round robin, and so are the uids of an owner within its share, so that an
//! owner with a thousand calling threads delays the call of another one by one step of work and not
//! by a thousand. Every item is one step of bounded work: a request, or a slice of a long
//! `BINDER_WRITE_READ` ([`WriteRead::Unfinished`](binder_driver::WriteRead::Unfinished)).

use std::collections::HashMap;

use binder_driver::state::wire_bytes;
use binder_uapi::BinderWriteRead;
use owners::{FairQueue, Owner, Uid};
use serde::{Deserialize, Serialize};

use super::PendingIoctl;
use crate::channel::StoredRequest;
use crate::host::Open;

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
pub(crate) struct Slice {
    pub(crate) request: PendingIoctl,
    #[serde(with = "wire_bytes")]
    pub(super) bwr: BinderWriteRead,
    /// Its memory has been touched since it was delayed.
    pub(super) is_touched: bool,
}

impl Slice {
    pub(super) fn new(request: PendingIoctl, bwr: BinderWriteRead) -> Self {
        Self { request, bwr, is_touched: false }
    }
}

enum Item {
    /// A request that a signal does not end.
    Request(StoredRequest),
    /// A `BINDER_WRITE_READ` of this unique id.
    Call(u64),
}

/// The queue.
pub(super) struct RequestQueue {
    items: FairQueue<Account, Item>,
    /// The `BINDER_WRITE_READ`s in the queue, by unique id. A withdrawn one is missing here, and
    /// its item is skipped.
    calls: HashMap<u64, Due>,
    /// Number of requests that were not started.
    requests: usize,
}

impl RequestQueue {
    pub(super) fn new() -> Self {
        Self { items: FairQueue::new(1), calls: HashMap::new(), requests: 0 }
    }

    /// Adds a request that a signal does not end.
    pub(super) fn push(&mut self, requester: Requester, request: StoredRequest) {
        self.items.push(requester.account, requester.uid, 1, Item::Request(request));
        self.requests += 1;
    }

    /// Adds a `BINDER_WRITE_READ`, or the rest of one.
    pub(super) fn push_call(&mut self, requester: Requester, unique: u64, due: Due) {
        self.items.push(requester.account, requester.uid, 1, Item::Call(unique));
        self.requests += usize::from(matches!(due, Due::Request(_)));
        self.calls.insert(unique, due);
    }

    /// Removes and returns a `BINDER_WRITE_READ`, since its caller has a signal. `None`: it is not
    /// in the queue.
    pub(super) fn withdraw(&mut self, unique: u64) -> Option<Due> {
        let due = self.calls.remove(&unique)?;
        self.requests -= usize::from(matches!(due, Due::Request(_)));
        Some(due)
    }

    /// Removes and returns the next item.
    pub(super) fn pop(&mut self) -> Option<Due> {
        loop {
            match self.items.pop()? {
                Item::Request(request) => {
                    self.requests -= 1;
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
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The slices, in no order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &Slice> {
        self.calls.values().filter_map(|due| match due {
            Due::Slice(slice) => Some(slice),
            Due::Request(_) => None,
        })
    }

    /// Whether all items are slices, or were withdrawn.
    pub(super) fn has_only_slices(&self) -> bool {
        self.requests == 0
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
        std::iter::from_fn(|| queue.pop()).map(text).collect()
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
    fn the_next_slice_of_a_call_waits_behind_other_owners() {
        let mut queue = RequestQueue::new();
        queue.push_call(of(Uid(1)), 5, slice(5));
        queue.push(of(Uid(2)), request("first"));
        queue.push(of(Uid(2)), request("second"));
        let Some(Due::Slice(Slice { request, .. })) = queue.pop() else { panic!("not its turn") };
        queue.push_call(of(Uid(1)), request.unique, slice(5));
        assert_eq!(drain(&mut queue), ["first", "slice of 5", "second"]);
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
}
