//! The driver: one value that owns every device, open, thread, node, reference and transaction.
//!
//! Its behaviour is implemented in the modules of the concepts; this module holds the slabs, and
//! their generational keys. Looking up a stale key returns no entry.

use std::collections::HashMap;

use crate::slab::{Slab, key_types};
use owners::Owner;
use serde::{Deserialize, Serialize};

use crate::buffer::pages::IdlePages;
use crate::buffer::{Buffer, HeldObject};
use crate::debug::counters::Statistics;
use crate::debug::trace::TraceEvent;
use crate::debug::transaction_log::TransactionLog;
use crate::notifications::death::Death;
use crate::notifications::freeze::FreezeWait;
use crate::notifications::freeze_notification::FreezeNotification;
use crate::objects::nodes::Node;
use crate::objects::references::Reference;
use crate::process::account::Account;
use crate::process::thread::Thread;
use crate::process::{Context, Process};
use crate::transaction::Transaction;
use crate::transaction::prediction::ParcelPlace;
use crate::transaction::priority::LateCalls;
use crate::write_read::queue::Queues;
use crate::write_read::wake::Wakes;

key_types! {
    /// A device. A stale key is reported as an error, never by a panic.
    pub struct ContextId;
    /// One open of a device. A stale key is reported as an error, never by a panic.
    pub struct ProcessId;
    /// An owner that has opens or queued messages.
    pub struct AccountId;
    /// A thread of a process.
    pub struct ThreadId;
    /// An object that a process owns.
    pub struct NodeId;
    /// A process's reference to another's node.
    pub struct RefId;
    /// A call, one-way call or reply that is not delivered or waits for its reply.
    pub struct TransactionId;
    /// A slice of a receiver's mapping.
    pub struct BufferId;
    /// A death notification.
    pub struct DeathId;
    /// A pending `BINDER_FREEZE`. A stale key is reported as an error, never by a panic.
    pub struct FreezeId;
    /// A freeze notification.
    pub struct FreezeNotificationId;
}

/// Buffers that are reused from call to call, so that no memory is allocated in a steady state.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Commands as fetched.
    pub commands: Vec<u8>,
    /// The parcel that is being sent.
    pub parcel: Vec<u8>,
    /// `parcel` holds the contents of these ranges of the sender, read together with its commands.
    pub predicted: Option<ParcelPlace>,
    /// Returns for a reader.
    pub returns: Vec<u8>,
}

/// The driver core; see the crate's documentation.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Driver {
    pub(crate) contexts: Slab<ContextId, Context>,
    pub(crate) processes: Slab<ProcessId, Process>,
    pub(crate) accounts: Slab<AccountId, Account>,
    /// Not serialised, as it follows from the accounts.
    #[serde(skip)]
    pub(crate) accounts_by_owner: HashMap<Owner, AccountId>,
    pub(crate) threads: Slab<ThreadId, Thread>,
    pub(crate) nodes: Slab<NodeId, Node>,
    pub(crate) refs: Slab<RefId, Reference>,
    pub(crate) transactions: Slab<TransactionId, Transaction>,
    pub(crate) buffers: Slab<BufferId, Buffer>,
    pub(crate) deaths: Slab<DeathId, Death>,
    pub(crate) freezes: Slab<FreezeId, FreezeWait>,
    pub(crate) freeze_notifications: Slab<FreezeNotificationId, FreezeNotification>,
    pub(crate) queues: Queues,
    pub(crate) wakes: Wakes,
    /// Dropped where the state is read back: their servers keep their own nice values.
    #[serde(skip)]
    pub(crate) late_calls: LateCalls,
    /// Threads that may wait with a held confirmation, each once.
    pub(crate) holding: Vec<ThreadId>,
    #[serde(skip)]
    pub(crate) scratch: Scratch,
    #[serde(skip)]
    pub(crate) spare_held: Vec<Vec<HeldObject>>,
    pub(crate) idle_pages: IdlePages,
    pub(crate) reclaimed_pages: u64,
    /// Maximum bytes of messages of an owner.
    pub(crate) memory_quota: Option<u64>,
    pub(crate) statistics: Statistics,
    pub(crate) log: TransactionLog,
    /// Events of the trace, while there is one. A trace ends where the state is read back.
    #[serde(skip)]
    pub(crate) trace: Option<Vec<TraceEvent>>,
    last_debug_id: u32,
}

impl Driver {
    /// A driver without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// A debug id: nodes and transactions share one sequence.
    pub(crate) fn new_debug_id(&mut self) -> u32 {
        self.last_debug_id = self.last_debug_id.wrapping_add(1);
        self.last_debug_id
    }

    /// Nothing has the id, unless a later one was assigned.
    pub(crate) fn return_debug_id(&mut self, id: u32) {
        if self.last_debug_id == id {
            self.last_debug_id = id.wrapping_sub(1);
        }
    }
}
