//! Contexts: one per device, with at most one context manager (handle 0). Processes: one open of a
//! device each. Their threads, and the accounts of owners.

pub mod account;
pub mod thread;

use std::collections::BTreeMap;

use binder_uapi::FlatBinderObject;
use owners::{Owner, Uid};
use serde::{Deserialize, Serialize};

use crate::buffer::ReceiveArea;
use crate::debug::counters::{Counters, one_more};
use crate::driver::{
    AccountId, ContextId, DeathId, Driver, FreezeNotificationId, NodeId, ProcessId, ThreadId,
};
use crate::host::{Caller, Errno, Host};
use crate::notifications::Delivered;
use crate::notifications::freeze::Freezer;
use crate::objects::references::References;
use crate::write_read::queue::QueueId;
use crate::write_read::work::{DeliverToRead, Work};

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

impl Driver {
    /// Adds a device.
    pub fn add_context(&mut self, name: &str) -> ContextId {
        self.contexts.insert(Context {
            name: name.to_owned(),
            removed: false,
            manager: None,
            manager_uid: None,
            opens: 0,
        })
    }

    /// Removes a device: no more opens; existing ones keep working.
    pub fn remove_context(&mut self, context: ContextId) {
        let Some(entry) = self.contexts.get_mut(context) else { return };
        entry.removed = true;
        if entry.opens == 0 {
            self.contexts.remove(context);
        }
    }

    /// `BINDER_SET_CONTEXT_MGR` (`None`) and `_EXT`.
    ///
    /// `EBUSY`: there is a manager; `EPERM`: the first manager had another uid; `ENOMEM`: the
    /// caller owns too many nodes.
    pub fn set_context_manager(
        &mut self,
        caller: Caller,
        object: Option<FlatBinderObject>,
    ) -> Result<(), Errno> {
        let process = self.process(caller.process)?;
        let (id, todo) = (process.context, process.todo);
        let context = &mut self.contexts[id];
        if context.manager.is_some() {
            return Err(Errno::EBUSY);
        }
        if *context.manager_uid.get_or_insert(caller.euid) != caller.euid {
            return Err(Errno::EPERM);
        }
        let node = self.node_for_object(caller.process, object.unwrap_or_default())?;
        let entry = &mut self.nodes[node];
        // The context itself refers to the node, so this reference is not reported to the owner.
        entry.local_strong += 1;
        entry.local_weak += 1;
        entry.has_strong = true;
        entry.has_weak = true;
        self.contexts[id].manager = Some(node);
        debug_assert!(self.queues.iter(todo).all(|(_, work)| work != Work::Node(node)));
        Ok(())
    }

    /// Whether `process` is the context manager of its context.
    pub(crate) fn is_manager(&self, process: ProcessId) -> bool {
        let manager = self.contexts[self.processes[process].context].manager;
        manager.is_some_and(|node| self.nodes[node].owner == Some(process))
    }

    /// The process that opened a device has changed its effective uid.
    pub fn set_opener_euid(&mut self, process: ProcessId, euid: Uid) {
        if let Some(open) = self.processes.get_mut(process) {
            open.opener.euid = euid;
        }
    }

    /// Opens a device. `ENOENT`: no such device. The number of opens is the front end's to limit.
    pub fn open(&mut self, context: ContextId, opener: Opener) -> Result<ProcessId, Errno> {
        self.contexts.get(context).filter(|c| !c.removed).ok_or(Errno::ENOENT)?;
        let account = self.join_account(opener.owner);
        self.contexts[context].opens += 1;
        one_more(&mut self.statistics.made.processes);
        Ok(self.processes.insert(Process {
            context,
            opener,
            account,
            threads: BTreeMap::new(),
            idle: Vec::new(),
            todo: self.queues.create(),
            nodes: BTreeMap::new(),
            refs: References::default(),
            delivered_deaths: Delivered::default(),
            deaths: 0,
            freezer: Freezer::default(),
            sent_freeze_notifications: Delivered::default(),
            freeze_notifications: 0,
            oneway_slots: 0,
            untaken_bytes: 0,
            area: None,
            max_threads: 0,
            requested_threads: 0,
            started_threads: 0,
            spam_detection: SpamDetection::Off,
            polled: false,
            counters: Counters::default(),
            dead: false,
        }))
    }

    /// The process, or `EBADF` for a stale key.
    pub(crate) fn process(&self, id: ProcessId) -> Result<&Process, Errno> {
        self.processes.get(id).ok_or(Errno::EBADF)
    }

    pub(crate) fn process_mut(&mut self, id: ProcessId) -> Result<&mut Process, Errno> {
        self.processes.get_mut(id).ok_or(Errno::EBADF)
    }

    /// `close(2)` of one descriptor of the open: its readers return to user space, and so does the
    /// next read of each of its threads.
    pub fn flush(&mut self, process: ProcessId) {
        let Ok(entry) = self.process(process) else { return };
        let threads: Vec<_> = entry.threads.values().copied().collect();
        for thread in threads {
            self.threads[thread].need_return = true;
            self.wake_thread(thread);
        }
    }

    /// The process that made the open has exited, while other references to the open exist. What is
    /// queued for it is dropped, and callers get `BR_DEAD_REPLY`: its address space is gone, and
    /// the files in a message may be all that keeps opens, this one included, from being released.
    pub fn opener_exited<H: Host>(&mut self, host: &mut H, process: ProcessId) {
        let Ok(entry) = self.process(process) else { return };
        let todo = entry.todo;
        let nodes: Vec<_> = entry.nodes.values().copied().collect();
        for node in nodes {
            self.cancel_oneway_queue(host, node);
        }
        let queued: Vec<_> = self.queues.iter(todo).collect();
        for (id, work) in queued {
            if matches!(work, Work::Transaction(_)) && self.queues.unlink(id).is_some() {
                work.cancel(self, host, None);
            }
        }
    }

    /// Last close: the process dies. Its callers get `BR_DEAD_REPLY`, watchers of its nodes
    /// `BR_DEAD_BINDER`; parked reads are dropped.
    pub fn release<H: Host>(&mut self, host: &mut H, process: ProcessId) {
        let Ok(entry) = self.process_mut(process) else { return };
        entry.dead = true;
        let (context, todo) = (entry.context, entry.todo);
        if self.is_manager(process) {
            self.contexts[context].manager = None;
        }
        while let Some((_, &thread)) = self.processes[process].threads.first_key_value() {
            self.release_thread(host, thread);
        }
        while let Some((_, &node)) = self.processes[process].nodes.first_key_value() {
            self.release_node(host, node);
        }
        while let Some(reference) = self.processes[process].refs.last() {
            self.remove_ref(reference);
        }
        while let Some(work) = self.queues.pop(todo) {
            work.cancel(self, host, None);
        }
        while let Some(death) = self.processes[process].delivered_deaths.first() {
            self.remove_death(death);
        }
        while let Some(sent) = self.processes[process].sent_freeze_notifications.first() {
            self.remove_freeze_notification(sent);
        }
        self.release_freezer(process);
        self.forget_buffers(process);
        self.queues.destroy(todo);
        self.leave_account(self.processes[process].account);
        self.processes.remove(process);
        let entry = &mut self.contexts[context];
        entry.opens -= 1;
        if entry.removed && entry.opens == 0 {
            self.contexts.remove(context);
        }
    }

    /// `BINDER_SET_MAX_THREADS`.
    pub fn set_max_threads(&mut self, process: ProcessId, max: u32) -> Result<(), Errno> {
        self.process_mut(process)?.max_threads = max;
        Ok(())
    }

    /// `BINDER_ENABLE_ONEWAY_SPAM_DETECTION`.
    pub fn enable_oneway_spam_detection(
        &mut self,
        process: ProcessId,
        detection: SpamDetection,
    ) -> Result<(), Errno> {
        self.process_mut(process)?.spam_detection = detection;
        Ok(())
    }
}
