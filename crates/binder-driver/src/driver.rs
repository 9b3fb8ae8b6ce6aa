//! The driver: one value that owns every device, open, thread, node, reference and transaction.
//!
//! Its behaviour is in the files of the concepts; this one holds the slabs.

use std::collections::HashMap;

use binder_uapi::BinderWriteRead;
use slotmap::SlotMap;

use crate::Errno;
use crate::buffer::{Buffer, HeldObject};
use crate::context::Context;
use crate::death::Death;
use crate::freeze::FreezeWait;
use crate::freeze_notification::FreezeNotification;
use crate::keys::*;
use crate::node::Node;
use crate::pages::IdlePages;
use crate::process::Process;
use crate::queue::Queues;
use crate::quota::User;
use crate::reference::Reference;
use crate::statistics::Statistics;
use crate::thread::Thread;
use crate::trace::TraceEvent;
use crate::transaction::Transaction;
use crate::transaction_log::TransactionLog;
use crate::wake::Wakes;

/// Who opens a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Thread group id, as the host numbers processes.
    pub pid: u32,
    /// Effective uid; shown to the operator, rights go by that of the caller.
    pub euid: u32,
}

/// What becomes of a `BINDER_WRITE_READ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteRead {
    /// Answer the ioctl now: `bwr` goes back to the client whatever `result` is.
    Done {
        /// The argument with its consumed counts.
        bwr: BinderWriteRead,
        /// The ioctl's result.
        result: Result<(), Errno>,
    },
    /// Nothing to read: keep the request and answer it after a [`Wake::Reader`]
    /// ([`Driver::resume`]) or an interrupt, never otherwise.
    Parked,
    /// The read took a transaction with files: give the reader [`Driver::files_to_give`], then call
    /// [`Driver::files_given`] or [`Driver::files_refused`]. Signals have to wait for that.
    Giving {
        /// The argument so far: commands are consumed, nothing is read.
        bwr: BinderWriteRead,
    },
}

/// What the front end has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// Call [`Driver::resume`] for this parked reader.
    Reader {
        /// The open.
        process: ProcessId,
        /// The parked thread.
        tid: u32,
    },
    /// The open may have become readable for a thread that polled it.
    Poll {
        /// The open.
        process: ProcessId,
    },
    /// A [`Freeze::Waiting`](crate::Freeze::Waiting) is over: answer its request.
    Freeze {
        /// Which one.
        id: FreezeId,
        /// The ioctl's result.
        result: Result<(), Errno>,
    },
}

/// Buffers that are reused from call to call, so that a steady state allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Commands as fetched.
    pub commands: Vec<u8>,
    /// What is being sent.
    pub parcel: Vec<u8>,
    /// Returns for a reader.
    pub returns: Vec<u8>,
}

/// The driver core; see the crate's documentation.
#[derive(Debug, Default)]
pub struct Driver {
    pub(crate) contexts: SlotMap<ContextId, Context>,
    pub(crate) processes: SlotMap<ProcessId, Process>,
    pub(crate) users: SlotMap<UserId, User>,
    pub(crate) users_by_uid: HashMap<u32, UserId>,
    pub(crate) threads: SlotMap<ThreadId, Thread>,
    pub(crate) nodes: SlotMap<NodeId, Node>,
    pub(crate) refs: SlotMap<RefId, Reference>,
    pub(crate) transactions: SlotMap<TransactionId, Transaction>,
    pub(crate) buffers: SlotMap<BufferId, Buffer>,
    pub(crate) deaths: SlotMap<DeathId, Death>,
    pub(crate) freezes: SlotMap<FreezeId, FreezeWait>,
    pub(crate) freeze_notifications: SlotMap<FreezeNotificationId, FreezeNotification>,
    pub(crate) queues: Queues,
    pub(crate) wakes: Wakes,
    pub(crate) scratch: Scratch,
    pub(crate) spare_held: Vec<Vec<HeldObject>>,
    pub(crate) idle_pages: IdlePages,
    pub(crate) reclaimed_pages: u64,
    pub(crate) statistics: Statistics,
    pub(crate) log: TransactionLog,
    /// Filled while somebody traces.
    pub(crate) trace: Option<Vec<TraceEvent>>,
    last_debug_id: u32,
}

impl Driver {
    /// A driver without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// A number for people: nodes and transactions share one sequence.
    pub(crate) fn new_debug_id(&mut self) -> u32 {
        self.last_debug_id = self.last_debug_id.wrapping_add(1);
        self.last_debug_id
    }
}
