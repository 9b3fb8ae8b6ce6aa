//! Data structures of contexts, accounts, opens and threads.

use std::collections::BTreeMap;
use std::fmt;

use binder_uapi::returns::BR_OK;
use binder_uapi::{BinderExtendedError, BinderWriteRead};
use owners::{Owner, Uid};
use serde::{Deserialize, Serialize};

use crate::buffer::types::ReceiveArea;
use crate::debug::counters::Counters;
use crate::host::Caller;
use crate::keys::{
    AccountId, ContextId, DeathId, FreezeNotificationId, NodeId, ProcessId, ThreadId, TransactionId,
};
use crate::notifications::delivered::Delivered;
use crate::notifications::types::Freezer;
use crate::objects::types::References;
use crate::transaction::prediction::LastParcel;
use crate::transaction::types::FdDelivery;
use crate::write_read::held::ReplyComplete;
use crate::write_read::queue::QueueId;
use crate::write_read::types::WorkScope;

/// A device.
#[derive(Debug, Serialize, Deserialize)]
pub struct Context {
    pub name: String,
    /// Unlinked: no more opens; removed with its last open.
    pub removed: bool,
    /// The node behind handle 0.
    pub manager: Option<NodeId>,
    /// The euid of the first manager; later managers must have the same.
    pub manager_uid: Option<Uid>,
    /// Number of opens.
    pub opens: usize,
}

/// Resources that one owner uses.
#[derive(Debug, Serialize, Deserialize)]
pub struct Account {
    pub owner: Owner,
    pub opens: usize,
    /// Nodes, references, death and freeze notifications of all its opens.
    pub objects: usize,
    /// Bytes of messages that its opens have sent and no thread has received yet, with their
    /// records.
    pub queued_bytes: u64,
    /// Pages of its receive areas that hold memory.
    pub touched_pages: u64,
    /// Bytes of the messages in its receive areas that no thread has received yet.
    pub untaken_bytes: u64,
    /// Messages in its receive areas that a thread has received.
    pub taken_buffers: u64,
}

impl Account {
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            opens: 0,
            objects: 0,
            queued_bytes: 0,
            touched_pages: 0,
            untaken_bytes: 0,
            taken_buffers: 0,
        }
    }
}

/// The process that opens a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opener {
    /// Thread group id, as the host numbers processes.
    pub pid: u32,
    /// Effective uid, which receivers see. The right to become the context manager depends on the
    /// euid of the calling thread instead.
    pub euid: Uid,
    /// The owner that its opens, objects and memory are charged to.
    pub owner: Owner,
}

/// An open of a device.
#[derive(Debug, Serialize, Deserialize)]
pub struct Process {
    pub context: ContextId,
    pub opener: Opener,
    pub account: AccountId,
    /// Threads by tid.
    pub threads: BTreeMap<u32, ThreadId>,
    /// Threads parked without pending calls of their own; the last one is woken first, because its
    /// caches are the warmest.
    pub idle: Vec<ThreadId>,
    /// Work that any thread may take.
    pub todo: QueueId,
    /// Nodes that it owns, by pointer.
    pub nodes: BTreeMap<u64, NodeId>,
    pub refs: References,
    /// Death notifications sent but not acknowledged.
    pub delivered_deaths: Delivered<DeathId>,
    /// Number of death notifications in any state.
    pub deaths: usize,
    pub freezer: Freezer,
    /// Freeze notifications sent but not acknowledged.
    pub sent_freeze_notifications: Delivered<FreezeNotificationId>,
    /// Number of freeze notifications that it requested, in any state.
    pub freeze_notifications: usize,
    /// Buffers that hold the one-way slot of a node: until the receiver frees one, the node gets no
    /// other one-way call.
    pub oneway_slots: usize,
    /// Bytes of messages in its area that no thread has received yet. Counted again when a state is
    /// read.
    #[serde(skip)]
    pub untaken_bytes: u64,
    /// Receive area; created with the first transaction to the process.
    pub area: Option<Box<ReceiveArea>>,
    pub max_threads: u32,
    /// `BR_SPAWN_LOOPER` was sent, `BC_REGISTER_LOOPER` was not received yet.
    pub requested_threads: u32,
    /// Requested threads that have registered.
    pub started_threads: u32,
    pub spam_detection: SpamDetection,
    /// A thread has polled the open.
    pub polled: bool,
    /// Counters of its commands and returns.
    pub counters: Counters,
    /// The open is being released.
    pub dead: bool,
}

/// Whether a process that floods a receiver with one-way calls reads `BR_ONEWAY_SPAM_SUSPECT`
/// instead of `BR_TRANSACTION_COMPLETE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpamDetection {
    /// The initial state.
    Off,
    /// Enabled by `BINDER_ENABLE_ONEWAY_SPAM_DETECTION`.
    On,
}

/// Looper state of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looper {
    /// `BC_ENTER_LOOPER`: the application's own thread.
    pub entered: bool,
    /// `BC_REGISTER_LOOPER`: a thread that the driver requested.
    pub registered: bool,
    /// `BC_EXIT_LOOPER`.
    pub exited: bool,
    /// The commands above were combined in a wrong way; recorded, without further effect.
    pub invalid: bool,
}

impl Looper {
    /// Whether the thread is in the pool in one of the two ways.
    pub fn in_pool(self) -> bool {
        self.entered || self.registered
    }
}

impl fmt::Display for Looper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (self.entered, "entered"),
            (self.registered, "registered"),
            (self.exited, "exited"),
            (self.invalid, "invalid"),
        ];
        let names = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name);
        f.write_str(&names.collect::<Vec<_>>().join("|"))
    }
}

/// A read that waits for work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Parked {
    pub caller: Caller,
    #[serde(with = "crate::state::wire_bytes")]
    pub bwr: BinderWriteRead,
    pub scope: WorkScope,
    /// Distinguishes this wait from earlier ones of the thread.
    pub token: u64,
    /// A wake-up is queued.
    pub woken: bool,
}

/// A thread that has used the open.
#[derive(Debug, Serialize, Deserialize)]
pub struct Thread {
    pub process: ProcessId,
    pub tid: u32,
    pub looper: Looper,
    /// Work for this thread only.
    pub todo: QueueId,
    /// `todo` has an item for which a read returns, not only deferred items.
    pub has_urgent: bool,
    /// Delivered before the items of `todo`.
    pub reply_complete: ReplyComplete,
    /// In [`Driver::holding`](crate::driver::Driver).
    pub is_listed_as_holding: bool,
    /// The innermost call that it is in: an incoming one (`to_thread` is this thread) or an
    /// outgoing one.
    pub stack: Option<TransactionId>,
    /// A [`Work::ReturnError`] or [`Work::Error`] is queued: commands are not run until it was
    /// read.
    pub return_error: bool,
    /// A [`Work::ReplyError`] is queued.
    pub reply_error: bool,
    #[serde(with = "crate::state::wire_bytes")]
    pub extended_error: BinderExtendedError,
    /// Its next ioctl, if it is a read, returns at once: the thread is new, or a descriptor was
    /// closed.
    pub need_return: bool,
    /// The read buffer to which returns were written last, so that the next read need not check it.
    pub good_read_buffer: Option<u64>,
    /// Not serialised: without it, the next parcels are not read ahead.
    #[serde(skip)]
    pub last_parcel: LastParcel,
    pub parked: Option<Parked>,
    pub fd_delivery: Option<Box<FdDelivery>>,
    /// The thread has polled the open.
    pub polls: bool,
}

/// `command` of an extended error when there is no error.
pub const NO_ERROR: u32 = BR_OK;
