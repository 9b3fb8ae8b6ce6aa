//! Model of a client: its counts, buffers and call stacks, computed from its commands and returns.

use std::collections::{BTreeMap, BTreeSet};

use binder_driver::Caller;
use binder_uapi::*;

use crate::actions::UPDATE_CODE;
use crate::common::{cookie_of, parcel_of};

/// A call that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The thread serves the call.
    In,
    /// The thread waits for the reply.
    Out,
}

#[derive(Debug, Default)]
pub struct ThreadModel {
    pub parked: bool,
    pub frames: Vec<Frame>,
    /// One-way calls and replies without a `BR_TRANSACTION_COMPLETE` yet.
    pub unconfirmed: usize,
}

#[derive(Debug)]
pub struct Buffer {
    pub address: u64,
    /// The node of a one-way call.
    pub oneway: Option<u64>,
    /// Handles that were received in it: (handle, strong).
    pub handles: Vec<(u32, bool)>,
}

/// One process.
#[derive(Debug)]
pub struct Client {
    pub main: Caller,
    /// It has sent invalid commands, or lost returns to a fault: its model is not checked any more.
    pub hostile: bool,
    pub threads: BTreeMap<u32, ThreadModel>,
    /// Counts that it acquired by commands: (strong, weak) by handle.
    pub held: BTreeMap<u32, (u32, u32)>,
    pub buffers: Vec<Buffer>,
    /// `*_DONE` commands that are due.
    pub due: Vec<Command>,
    /// Death notifications by handle.
    pub deaths: BTreeMap<u32, u64>,
    /// Cookies of death notifications that may still be received.
    pub cookies: BTreeSet<u64>,
    /// Freeze notifications by handle.
    pub freezes: BTreeMap<u32, u64>,
    /// Cookies of freeze notifications that may still be received, and the last state received.
    pub freeze_cookies: BTreeMap<u64, Option<bool>>,
    /// The highest one-way code seen at each node.
    pub last_oneway: BTreeMap<u64, u32>,
}

impl Client {
    pub fn new(main: Caller) -> Self {
        Self {
            main,
            hostile: false,
            threads: BTreeMap::new(),
            held: BTreeMap::new(),
            buffers: Vec::new(),
            due: Vec::new(),
            deaths: BTreeMap::new(),
            cookies: BTreeSet::new(),
            freezes: BTreeMap::new(),
            freeze_cookies: BTreeMap::new(),
            last_oneway: BTreeMap::new(),
        }
    }

    pub fn thread(&mut self, tid: u32) -> &mut ThreadModel {
        self.threads.entry(tid).or_default()
    }

    /// Handles that may be called.
    pub fn strong_handles(&self) -> Vec<u32> {
        let held = self.held.iter().filter(|(_, (strong, _))| *strong > 0).map(|(h, _)| *h);
        let came = self.buffers.iter().flat_map(|buffer| &buffer.handles);
        held.chain(came.filter(|(_, strong)| *strong).map(|(handle, _)| *handle)).collect()
    }

    /// Handles of any kind.
    pub fn handles(&self) -> Vec<u32> {
        let came = self.buffers.iter().flat_map(|buffer| &buffer.handles);
        self.held.keys().copied().chain(came.map(|(handle, _)| *handle)).collect()
    }

    /// Drops a strong count.
    pub fn drop_strong(&mut self, handle: u32) {
        self.held.get_mut(&handle).expect("only held counts are dropped").0 -= 1;
        self.count_dropped(handle);
    }

    /// Drops a weak count.
    pub fn drop_weak(&mut self, handle: u32) {
        self.held.get_mut(&handle).expect("only held counts are dropped").1 -= 1;
        self.count_dropped(handle);
    }

    fn count_dropped(&mut self, handle: u32) {
        if self.held[&handle] == (0, 0) {
            self.held.remove(&handle);
            // The notification may have been removed with the reference, and then its
            // acknowledgement is an error.
            if let Some(cookie) = self.freezes.remove(&handle) {
                self.due.retain(|due| *due != Command::FreezeNotificationDone(cookie));
            }
        }
        // The reference, and thereby its notification, may have been removed.
        if !self.handles().contains(&handle) {
            self.deaths.remove(&handle);
        }
    }

    /// Updates the model with a return; `objects` are those of its parcel.
    pub fn see(&mut self, tid: u32, value: &Return, objects: &[FlatBinderObject]) {
        if let Some(data) = parcel_of(value) {
            self.see_parcel(tid, value, &data, objects);
        }
        let hostile = self.hostile;
        let thread = self.thread(tid);
        match *value {
            Return::IncRefs(node) => self.due.push(Command::IncRefsDone(node)),
            Return::Acquire(node) => self.due.push(Command::AcquireDone(node)),
            Return::DeadBinder(cookie) => {
                assert!(hostile || self.cookies.contains(&cookie), "an unknown death {cookie}");
                self.due.push(Command::DeadBinderDone(cookie));
            }
            Return::ClearDeathNotificationDone(cookie) => {
                assert!(self.cookies.remove(&cookie) || hostile, "an unknown clear {cookie}");
            }
            Return::FrozenBinder(info) => {
                let state = self.freeze_cookies.get_mut(&info.cookie);
                assert!(hostile || state.is_some(), "an unknown freeze {info:?}");
                state.map(|state| state.replace(info.is_frozen != 0));
                self.due.push(Command::FreezeNotificationDone(info.cookie));
            }
            Return::ClearFreezeNotificationDone(cookie) => {
                let known = self.freeze_cookies.remove(&cookie).is_some();
                assert!(known || hostile, "an unknown freeze clear {cookie}");
            }
            Return::DeadReply | Return::FailedReply | Return::FrozenReply => {
                if thread.frames.last() == Some(&Frame::Out) {
                    thread.frames.pop();
                } else if thread.unconfirmed > 0 {
                    thread.unconfirmed -= 1;
                } else if let Some(call) = thread.frames.iter().rposition(|f| *f == Frame::Out) {
                    // A call was queued for the thread when it made its own call (EPROTO): it reads
                    // the queued call first.
                    thread.frames.remove(call);
                } else {
                    assert!(hostile, "an error for nothing");
                }
            }
            Return::TransactionComplete | Return::TransactionPendingFrozen
                if thread.frames.last() != Some(&Frame::Out) =>
            {
                thread.unconfirmed = thread.unconfirmed.saturating_sub(1);
            }
            Return::Reply(_) => {
                let waiting = thread.frames.pop();
                assert!(hostile || waiting == Some(Frame::Out), "a reply to nothing");
            }
            Return::Transaction(data) if data.flags & TF_ONE_WAY == 0 => {
                thread.frames.push(Frame::In);
            }
            _ => {}
        }
    }

    fn see_parcel(
        &mut self,
        tid: u32,
        value: &Return,
        data: &BinderTransactionData,
        objects: &[FlatBinderObject],
    ) {
        let mut oneway = None;
        if matches!(value, Return::Transaction(_)) && !self.hostile {
            let manager = data.target == 0 && data.cookie == 0;
            assert!(manager || data.cookie == cookie_of(data.target), "a node of another process");
            if data.flags & TF_ONE_WAY != 0 {
                let node = data.target;
                let busy = self.buffers.iter().any(|buffer| buffer.oneway == Some(node));
                assert!(!busy, "a second one-way at node {node:#x} before the first was freed");
                if data.code != UPDATE_CODE {
                    let last = self.last_oneway.insert(node, data.code);
                    assert!(last < Some(data.code), "one-way order at {node:#x}, thread {tid}");
                }
                oneway = Some(node);
            }
        }
        let mut handles = Vec::new();
        for object in objects {
            match object.ty {
                BINDER_TYPE_HANDLE => handles.push((object.handle(), true)),
                BINDER_TYPE_WEAK_HANDLE => handles.push((object.handle(), false)),
                BINDER_TYPE_FD => {}
                BINDER_TYPE_BINDER | BINDER_TYPE_WEAK_BINDER => assert!(
                    self.hostile || object.cookie == cookie_of(object.binder) || object.binder == 0,
                    "an object of another process"
                ),
                ty => panic!("object of type {ty:#x}"),
            }
        }
        let known = self.buffers.iter().any(|buffer| buffer.address == data.buffer);
        assert!(self.hostile || !known, "two buffers at {:#x}", data.buffer);
        self.buffers.push(Buffer { address: data.buffer, oneway, handles });
    }
}
