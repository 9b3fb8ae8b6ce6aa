//! An open of a device, and the threads that have called on it.

use std::collections::HashMap;

use binder_driver::ProcessId;
use binder_driver::slab::{Key, key_types};
use owners::{Owner, Uid};
use serde::{Deserialize, Serialize};

use crate::files::CallStop;
use crate::identity::{PidView, UserView};
use crate::mapping::{Backing, SavedBacking};
use crate::maps::{AddressSpace, SavedAddressSpace};
use crate::nonblock::FlagHistory;

key_types! {
    /// A call that waits.
    pub(crate) struct CallKey;
    /// An open file of a device; its number is the `fh` in the kernel's requests.
    pub(crate) struct OpenKey;
}

impl OpenKey {
    pub(crate) fn to_fh(self) -> u64 {
        self.number()
    }

    pub(crate) fn from_fh(fh: u64) -> Self {
        Self::from_number(fh)
    }
}

/// Whether the process that opened a device still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OpenerState {
    Alive,
    Exited,
}

/// One open of a device.
pub(crate) struct Open {
    pub(crate) info: OpenInfo,
    /// Of its mapping, once that was found.
    pub(crate) address_space: Option<AddressSpace>,
    pub(crate) backing: Box<dyn Backing>,
}

/// What is known of an open.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenInfo {
    pub(crate) process: ProcessId,
    /// Node id, which is the inode number too.
    pub(crate) node: u64,
    /// Process that opened it, in our pid namespace. Another process may have the number once it
    /// has exited.
    pub(crate) pid: u32,
    pub(crate) opener: OpenerState,
    /// The opener's effective uid at the time of the open.
    pub(crate) euid: Uid,
    /// The opener's effective uid that receivers see.
    pub(crate) sender_euid: Uid,
    /// The owner that its files are charged to.
    pub(crate) owner: Owner,
    pub(crate) views: Views,
    /// `O_NONBLOCK` at the time of the open.
    pub(crate) nonblock: bool,
    pub(crate) flag_history: FlagHistory,
    /// Threads that have called, and the call that each waits in.
    pub(crate) calls: Calls,
    /// Once a thread polls.
    pub(crate) poll: Option<Poll>,
    /// How its threads are stopped while they receive files.
    pub(crate) call_stop: CallStop,
    /// A call on it was not trapped although the thread had a deferred delivery.
    pub(crate) untrapped: bool,
    pub(crate) warned: Warned,
}

/// The namespaces in which others see the opener, and in which it sees others.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Views {
    pub(crate) pid: PidView,
    pub(crate) user: UserView,
}

/// Who is woken when an open has work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Poll {
    /// The kernel's handle.
    pub(crate) handle: u64,
    /// The thread that has polled last, while it lives.
    pub(crate) thread: Option<u32>,
}

/// Warnings about an open that were already logged.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Warned {
    pub(crate) writable: bool,
    pub(crate) broken: bool,
}

/// An [`Open`] in a state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedOpen {
    pub(crate) info: OpenInfo,
    pub(crate) address_space: Option<SavedAddressSpace>,
    pub(crate) backing: SavedBacking,
}

impl Open {
    pub(crate) fn save(&self) -> SavedOpen {
        SavedOpen {
            info: self.info.clone(),
            address_space: self.address_space.as_ref().map(AddressSpace::save),
            backing: self.backing.save(),
        }
    }
}

/// The threads that have called on an open, and the request that each waits in, by tid. The first
/// thread, for most opens the only one, needs no allocation: ten thousand
/// idle opens have ten thousand of these.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Calls {
    first: Option<(u32, Option<CallKey>)>,
    /// All threads but the first.
    #[expect(clippy::box_collection, reason = "an open without others pays for a pointer only")]
    others: Option<Box<HashMap<u32, Option<CallKey>>>>,
}

impl Calls {
    fn place(&mut self, tid: u32) -> Option<&mut Option<CallKey>> {
        match &mut self.first {
            Some((first, request)) if *first == tid => Some(request),
            _ => self.others.as_mut()?.get_mut(&tid),
        }
    }

    /// The thread has called before.
    pub(crate) fn knows(&self, tid: u32) -> bool {
        self.first.is_some_and(|(first, _)| first == tid)
            || self.others.as_ref().is_some_and(|others| others.contains_key(&tid))
    }

    /// The request in which a thread waits.
    pub(crate) fn request(&self, tid: u32) -> Option<CallKey> {
        match self.first {
            Some((first, request)) if first == tid => request,
            _ => self.others.as_ref()?.get(&tid).copied().flatten(),
        }
    }

    /// Records that a thread waits in this request, or in none; adds the thread if it is new.
    pub(crate) fn set(&mut self, tid: u32, request: Option<CallKey>) {
        if let Some(place) = self.place(tid) {
            *place = request;
        } else if self.first.is_none() {
            self.first = Some((tid, request));
        } else {
            self.others.get_or_insert_default().insert(tid, request);
        }
    }

    /// Removes a thread that has exited.
    pub(crate) fn forget(&mut self, tid: u32) {
        if self.first.is_some_and(|(first, _)| first == tid) {
            self.first = None;
        } else if let Some(others) = &mut self.others {
            others.remove(&tid);
            if others.is_empty() {
                self.others = None;
            }
        }
    }

    /// All threads.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Option<CallKey>)> {
        let others = self.others.iter().flat_map(|others| others.iter());
        self.first.into_iter().chain(others.map(|(&tid, &request)| (tid, request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u32) -> CallKey {
        CallKey::from_number(1 << 32 | u64::from(number))
    }

    #[test]
    fn each_thread_has_its_request_in_any_order() {
        let mut calls = Calls::default();
        for tid in [7, 3, 5] {
            assert!(!calls.knows(tid));
            calls.set(tid, None);
            calls.set(tid, Some(call(tid)));
        }
        assert_eq!(
            [7, 3, 5, 4].map(|tid| calls.request(tid)),
            [Some(call(7)), Some(call(3)), Some(call(5)), None]
        );
        [7, 3].into_iter().for_each(|tid| calls.set(tid, None));
        assert!(calls.knows(7) && calls.knows(3));
        calls.forget(7);
        assert!(!calls.knows(7) && calls.knows(5));
        calls.set(9, Some(call(9)));
        let mut all: Vec<_> = calls.iter().collect();
        all.sort_unstable();
        assert_eq!(all, [(3, None), (5, Some(call(5))), (9, Some(call(9)))]);
        [3, 5, 9, 5].into_iter().for_each(|tid| calls.forget(tid));
        assert_eq!(calls.iter().count(), 0);
    }
}
