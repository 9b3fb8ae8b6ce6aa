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
    pub(crate) pid_view: PidView,
    pub(crate) user_view: UserView,
    /// `O_NONBLOCK` at the time of the open.
    pub(crate) nonblock: bool,
    pub(crate) flag_history: FlagHistory,
    /// Of its mapping, once that was found.
    pub(crate) address_space: Option<AddressSpace>,
    pub(crate) backing: Box<dyn Backing>,
    /// Threads that have called, and the request that each is parked in.
    pub(crate) calls: Calls,
    /// The kernel's poll handle, once a thread polls.
    pub(crate) poll_handle: Option<u64>,
    /// The thread that has polled last.
    pub(crate) poller: Option<u32>,
    /// How its threads are stopped while they receive files.
    pub(crate) call_stop: CallStop,
    /// A call on it was not trapped although the thread had a deferred delivery.
    pub(crate) untrapped: bool,
    /// Warnings about this open that were already logged.
    pub(crate) warned_writable: bool,
    pub(crate) warned_broken: bool,
}

/// An [`Open`] in a state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedOpen {
    pub(crate) process: ProcessId,
    pub(crate) node: u64,
    pid: u32,
    opener: OpenerState,
    euid: Uid,
    sender_euid: Uid,
    owner: Owner,
    pid_view: PidView,
    user_view: UserView,
    nonblock: bool,
    flag_history: FlagHistory,
    pub(crate) address_space: Option<SavedAddressSpace>,
    pub(crate) backing: SavedBacking,
    pub(crate) calls: Calls,
    poll_handle: Option<u64>,
    call_stop: CallStop,
    untrapped: bool,
    warned_writable: bool,
    warned_broken: bool,
}

impl Open {
    pub(crate) fn save(&self) -> SavedOpen {
        SavedOpen {
            process: self.process,
            node: self.node,
            pid: self.pid,
            opener: self.opener,
            euid: self.euid,
            sender_euid: self.sender_euid,
            owner: self.owner,
            pid_view: self.pid_view.clone(),
            user_view: self.user_view.clone(),
            nonblock: self.nonblock,
            flag_history: self.flag_history,
            address_space: self.address_space.as_ref().map(AddressSpace::save),
            backing: self.backing.save(),
            calls: self.calls.clone(),
            poll_handle: self.poll_handle,
            call_stop: self.call_stop,
            untrapped: self.untrapped,
            warned_writable: self.warned_writable,
            warned_broken: self.warned_broken,
        }
    }

    pub(crate) fn restore(
        saved: SavedOpen,
        backing: Box<dyn Backing>,
        address_space: Option<AddressSpace>,
    ) -> Self {
        Self {
            process: saved.process,
            node: saved.node,
            pid: saved.pid,
            opener: saved.opener,
            euid: saved.euid,
            sender_euid: saved.sender_euid,
            owner: saved.owner,
            pid_view: saved.pid_view,
            user_view: saved.user_view,
            nonblock: saved.nonblock,
            flag_history: saved.flag_history,
            address_space,
            backing,
            calls: saved.calls,
            poll_handle: saved.poll_handle,
            poller: None,
            call_stop: saved.call_stop,
            untrapped: saved.untrapped,
            warned_writable: saved.warned_writable,
            warned_broken: saved.warned_broken,
        }
    }
}

/// The threads that have called on an open, and the request that each waits in, by tid. The first
/// thread, for most opens the only one, needs no allocation: ten thousand
/// idle opens have ten thousand of these.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Calls {
    first: Option<(u32, Option<u64>)>,
    /// All threads but the first.
    #[expect(clippy::box_collection, reason = "an open without others pays for a pointer only")]
    others: Option<Box<HashMap<u32, Option<u64>>>>,
}

impl Calls {
    fn place(&mut self, tid: u32) -> Option<&mut Option<u64>> {
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
    pub(crate) fn request(&self, tid: u32) -> Option<u64> {
        match self.first {
            Some((first, request)) if first == tid => request,
            _ => self.others.as_ref()?.get(&tid).copied().flatten(),
        }
    }

    /// Records that a thread waits in this request, or in none; adds the thread if it is new.
    pub(crate) fn set(&mut self, tid: u32, request: Option<u64>) {
        if let Some(place) = self.place(tid) {
            *place = request;
        } else if self.first.is_none() {
            self.first = Some((tid, request));
        } else {
            self.others.get_or_insert_default().insert(tid, request);
        }
    }

    /// Records that the thread no longer waits; returns the request it was in.
    pub(crate) fn take(&mut self, tid: u32) -> Option<u64> {
        self.place(tid)?.take()
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
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Option<u64>)> {
        let others = self.others.iter().flat_map(|others| others.iter());
        self.first.into_iter().chain(others.map(|(&tid, &request)| (tid, request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_request_in_any_order() {
        let mut calls = Calls::default();
        for tid in [7, 3, 5] {
            assert!(!calls.knows(tid));
            calls.set(tid, None);
            calls.set(tid, Some(u64::from(tid) * 10));
        }
        assert_eq!(
            [7, 3, 5, 4].map(|tid| calls.request(tid)),
            [Some(70), Some(30), Some(50), None]
        );
        assert_eq!((calls.take(7), calls.take(7), calls.take(3)), (Some(70), None, Some(30)));
        assert!(calls.knows(7) && calls.knows(3));
        calls.forget(7);
        assert!(!calls.knows(7) && calls.knows(5));
        calls.set(9, Some(90));
        let mut all: Vec<_> = calls.iter().collect();
        all.sort_unstable();
        assert_eq!(all, [(3, None), (5, Some(50)), (9, Some(90))]);
        [3, 5, 9, 5].into_iter().for_each(|tid| calls.forget(tid));
        assert_eq!(calls.iter().count(), 0);
    }
}
