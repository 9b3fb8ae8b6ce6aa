//! Contexts, accounts, opens and threads as data.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use binder_uapi::returns::BR_OK;
use binder_uapi::{BinderExtendedError, BinderWriteRead};
use owners::{Owner, Uid};

use crate::buffer::types::ReceiveArea;
use crate::debug::counters::Counters;
use crate::host::Caller;
use crate::keys::{
    AccountId, ContextId, DeathId, FreezeNotificationId, NodeId, ProcessId, ThreadId, TransactionId,
};
use crate::notifications::types::Freezer;
use crate::objects::types::References;
use crate::transaction::types::FdDelivery;
use crate::write_read::queue::QueueId;
use crate::write_read::types::WorkScope;

/// One device.
#[derive(Debug)]
pub struct Context {
    pub name: String,
    /// Unlinked: no more opens, gone with its last process.
    pub removed: bool,
    /// The node behind handle 0.
    pub manager: Option<NodeId>,
    /// The euid of the first manager; nobody else may become one later.
    pub manager_uid: Option<Uid>,
    /// Opens of it.
    pub opens: usize,
}

/// What one owner uses.
#[derive(Debug)]
pub struct Account {
    pub owner: Owner,
    pub opens: usize,
    /// Nodes, references, death and freeze notifications of all its opens.
    pub objects: usize,
    /// Bytes of messages that its opens have sent and no thread has taken yet, with their records.
    pub queued_bytes: u64,
    /// Pages of its receive buffers that hold memory.
    pub touched_pages: u64,
    /// Bytes of the messages in its receive buffers that no thread has taken yet.
    pub untaken_bytes: u64,
    /// Messages in its receive buffers that a thread has taken.
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

/// Who opens a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Thread group id, as the host numbers processes.
    pub pid: u32,
    /// Effective uid, which receivers see. The right to become the context manager depends on the
    /// caller's instead.
    pub euid: Uid,
    /// The party that its opens, objects and memory are charged to.
    pub owner: Owner,
}

/// One open.
#[derive(Debug)]
pub struct Process {
    pub context: ContextId,
    pub opener: Opener,
    pub account: AccountId,
    /// By tid.
    pub threads: BTreeMap<u32, ThreadId>,
    /// Threads parked with nothing of their own to wait for; the last one is woken first, its
    /// caches being the warmest.
    pub idle: Vec<ThreadId>,
    /// Work that any thread may take.
    pub todo: QueueId,
    /// Nodes it owns, by pointer.
    pub nodes: BTreeMap<u64, NodeId>,
    pub refs: References,
    /// Death notifications sent but not acknowledged, by cookie.
    pub delivered_deaths: BTreeSet<(u64, DeathId)>,
    /// Death notifications of any state.
    pub deaths: usize,
    pub freezer: Freezer,
    /// Freeze notifications sent but not acknowledged, by cookie.
    pub sent_freeze_notifications: BTreeSet<(u64, FreezeNotificationId)>,
    /// Freeze notifications of any state that it asked for.
    pub freeze_notifications: usize,
    /// Where its transactions arrive; known once the first one came.
    pub area: Option<Box<ReceiveArea>>,
    pub max_threads: u32,
    /// `BR_SPAWN_LOOPER` sent, `BC_REGISTER_LOOPER` not yet seen.
    pub requested_threads: u32,
    /// Requested threads that have registered.
    pub started_threads: u32,
    pub spam_detection: SpamDetection,
    /// A thread has polled the open.
    pub polled: bool,
    /// What it said and heard so far.
    pub counters: Counters,
    /// It is being released.
    pub dead: bool,
}

/// Whether a process that floods a receiver with one-way calls reads `BR_ONEWAY_SPAM_SUSPECT`
/// instead of `BR_TRANSACTION_COMPLETE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpamDetection {
    /// As at the start.
    Off,
    /// `BINDER_ENABLE_ONEWAY_SPAM_DETECTION` switched it on.
    On,
}

/// A thread's place in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looper {
    /// `BC_ENTER_LOOPER`: the application's own thread.
    pub entered: bool,
    /// `BC_REGISTER_LOOPER`: a thread that the driver asked for.
    pub registered: bool,
    /// `BC_EXIT_LOOPER`.
    pub exited: bool,
    /// It mixed the above in a wrong way; recorded, without further effect.
    pub invalid: bool,
}

impl Looper {
    /// In the pool by either way.
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
#[derive(Clone, Copy, Debug)]
pub struct Parked {
    pub caller: Caller,
    pub bwr: BinderWriteRead,
    pub scope: WorkScope,
    /// Tells this park from earlier ones of the thread.
    pub token: u64,
    /// A wake-up is on its way.
    pub woken: bool,
}

/// A thread that has used the open.
#[derive(Debug)]
pub struct Thread {
    pub process: ProcessId,
    pub tid: u32,
    pub looper: Looper,
    /// Work for this very thread.
    pub todo: QueueId,
    /// `todo` holds something worth returning for, not only items that go along with others.
    pub has_urgent: bool,
    /// The call that it is in: an incoming one (`to_thread` is this thread) or an outgoing one.
    pub stack: Option<TransactionId>,
    /// A [`Work::ReturnError`] or [`Work::Error`] is queued: commands wait until it was read.
    pub return_error: bool,
    /// A [`Work::ReplyError`] is queued.
    pub reply_error: bool,
    pub extended_error: BinderExtendedError,
    /// Its next ioctl, if it is a read, returns at once: it is new, or a descriptor was closed.
    pub need_return: bool,
    /// The read buffer that took returns last, so that a read can tell beforehand whether it will.
    pub good_read_buffer: Option<u64>,
    pub parked: Option<Parked>,
    pub fd_delivery: Option<Box<FdDelivery>>,
    /// It has polled the open.
    pub polls: bool,
}

/// `command` of an extended error that tells of no error.
pub const NO_ERROR: u32 = BR_OK;
