//! The driver's state as plain data, for status displays.

use owners::{Owner, Uid};

use crate::driver::{ContextId, Driver, ThreadId};
use crate::objects::nodes::Node;
use crate::objects::references::Reference;
use crate::process::{Context, Process};

/// The whole state at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// One entry per device, including a removed one that still has opens.
    pub contexts: Vec<ContextSnapshot>,
    /// Transactions that are not delivered or wait for their reply.
    pub transactions: usize,
    /// Nodes of dead owners to which references still exist.
    pub dead_nodes: usize,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextSnapshot {
    /// The device's name.
    pub name: String,
    /// The device was unlinked; its opens keep working.
    pub removed: bool,
    /// Pid of the context manager.
    pub manager_pid: Option<u32>,
    /// Opens of the device.
    pub processes: Vec<ProcessSnapshot>,
}

/// One open of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSnapshot {
    /// Process that opened it (thread group id).
    pub pid: u32,
    /// Effective uid of the opener.
    pub euid: Uid,
    /// The owner that it is charged to.
    pub owner: Owner,
    /// Memory of all messages of this owner, which counts against its quota.
    pub owner_memory_bytes: u64,
    /// The open refuses sync calls (`BINDER_FREEZE`).
    pub frozen: bool,
    /// Threads by tid.
    pub threads: Vec<ThreadSnapshot>,
    /// Nodes that it owns.
    pub nodes: Vec<NodeSnapshot>,
    /// References by handle.
    pub handles: Vec<HandleSnapshot>,
    /// Receive area; `None` until the first transaction to the open.
    pub buffers: Option<BufferSnapshot>,
    /// Work items in the queue of the process.
    pub queued_work: usize,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadSnapshot {
    /// Thread id.
    pub tid: u32,
    /// Looper state, as `entered`, `registered`, `entered|invalid`, ...; empty = none.
    pub looper: String,
    /// The thread waits in a read.
    pub waiting: bool,
    /// Number of calls on its stack, made or served.
    pub stack_depth: usize,
    /// Work items in the queue of this thread.
    pub queued_work: usize,
}

/// One node, as its owner knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSnapshot {
    /// Debug id, unique since the driver started.
    pub id: u32,
    /// Pointer in the owner.
    pub ptr: u64,
    /// Cookie in the owner.
    pub cookie: u64,
    /// Number of processes that hold a reference.
    pub refs: u32,
    /// Number of references with a strong count.
    pub internal_strong: u32,
    /// Weak counts of the owner's side.
    pub local_weak: u32,
}

/// One reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandleSnapshot {
    /// The handle.
    pub handle: u32,
    /// Debug id of the node.
    pub node: u32,
    /// Pid of the node's owner; `None` = dead.
    pub owner_pid: Option<u32>,
    /// Strong count.
    pub strong: u32,
    /// Weak count.
    pub weak: u32,
    /// State of the death notification that is registered, as `armed` or `dead`.
    pub death: Option<String>,
}

/// A receive buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferSnapshot {
    /// Bytes of the mapping that are used for buffers.
    pub size: u64,
    /// Buffers in use.
    pub live: usize,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that are left for one-way calls.
    pub free_async: u64,
    /// Pages of the machine that hold memory.
    pub touched_pages: u32,
    /// Number of these pages that are not part of a buffer.
    pub idle_pages: u32,
}

impl Driver {
    /// The whole state of the driver.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            contexts: self
                .contexts
                .iter()
                .map(|(id, entry)| self.context_snapshot(id, entry))
                .collect(),
            transactions: self.transactions.len(),
            dead_nodes: self.nodes.values().filter(|node| node.owner.is_none()).count(),
        }
    }

    fn context_snapshot(&self, id: ContextId, context: &Context) -> ContextSnapshot {
        let manager = context.manager.and_then(|node| self.nodes[node].owner);
        let opens = self.processes.values().filter(|process| process.context == id);
        ContextSnapshot {
            name: context.name.clone(),
            removed: context.removed,
            manager_pid: manager.map(|process| self.processes[process].opener.pid),
            processes: opens.map(|process| self.process_snapshot(process)).collect(),
        }
    }

    fn process_snapshot(&self, process: &Process) -> ProcessSnapshot {
        let handles = process.refs.iter().map(|id| self.handle_snapshot(&self.refs[id]));
        let nodes = process.nodes.values().map(|&id| self.node_snapshot(&self.nodes[id]));
        let threads = process.threads.values().map(|&id| self.thread_snapshot(id));
        ProcessSnapshot {
            pid: process.opener.pid,
            euid: process.opener.euid,
            owner: process.opener.owner,
            owner_memory_bytes: self.accounts[process.account]
                .memory(self.page_bytes())
                .total_bytes(),
            frozen: process.freezer.frozen,
            threads: threads.collect(),
            nodes: nodes.collect(),
            handles: handles.collect(),
            buffers: process.area.as_ref().map(|area| BufferSnapshot {
                size: area.ranges.size().into(),
                live: area.ranges.live_count(),
                used: area.ranges.used().into(),
                free_async: area.free_oneway.into(),
                touched_pages: area.pages.touched(),
                idle_pages: area.pages.idle(),
            }),
            queued_work: self.queues.len(process.todo),
        }
    }

    fn thread_snapshot(&self, id: ThreadId) -> ThreadSnapshot {
        let thread = &self.threads[id];
        ThreadSnapshot {
            tid: thread.tid,
            looper: thread.looper.to_string(),
            waiting: thread.parked.is_some(),
            stack_depth: self.stack_of(id).count(),
            queued_work: self.queues.len(thread.todo) + usize::from(thread.fd_delivery.is_some()),
        }
    }

    fn node_snapshot(&self, node: &Node) -> NodeSnapshot {
        NodeSnapshot {
            id: node.id,
            ptr: node.ptr,
            cookie: node.cookie,
            refs: node.ref_count,
            internal_strong: node.internal_strong,
            local_weak: node.local_weak,
        }
    }

    fn handle_snapshot(&self, reference: &Reference) -> HandleSnapshot {
        let node = &self.nodes[reference.node];
        HandleSnapshot {
            handle: reference.handle,
            node: node.id,
            owner_pid: node.owner.map(|owner| self.processes[owner].opener.pid),
            strong: reference.strong,
            weak: reference.weak,
            death: reference.death.map(|id| self.deaths[id].state.to_string()),
        }
    }
}
