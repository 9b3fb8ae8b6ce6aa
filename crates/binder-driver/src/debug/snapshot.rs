//! The driver's state as plain data, for status displays.

use binder_uapi::status;
use owners::{Owner, Uid};

use crate::buffer::ReceiveArea;
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
    pub threads: Vec<status::Thread>,
    /// Nodes that it owns.
    pub nodes: Vec<status::Node>,
    /// References by handle.
    pub handles: Vec<status::Handle>,
    /// Receive area; all zeros until the first transaction to the open.
    pub buffers: status::Buffers,
    /// Work items in the queue of the process.
    pub queued_work: usize,
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
        let handles = process.refs.iter().map(|id| self.handle(&self.refs[id]));
        let nodes = process.nodes.values().map(|&id| node(&self.nodes[id]));
        let threads = process.threads.values().map(|&id| self.thread(id));
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
            buffers: process.area.as_ref().map(|area| self.buffers(area)).unwrap_or_default(),
            queued_work: self.queues.len(process.todo),
        }
    }

    fn buffers(&self, area: &ReceiveArea) -> status::Buffers {
        let units = self.page_bytes() / status::PAGE_BYTES as u32;
        status::Buffers {
            mapped_bytes: area.ranges.size().into(),
            count: count(area.ranges.live_count()),
            bytes: area.ranges.used().into(),
            async_free_bytes: area.free_oneway.into(),
            touched_pages: area.pages.touched().saturating_mul(units),
            idle_pages: area.pages.idle().saturating_mul(units),
        }
    }

    fn thread(&self, id: ThreadId) -> status::Thread {
        let thread = &self.threads[id];
        let queued = self.queues.len(thread.todo) + usize::from(thread.fd_delivery.is_some());
        status::Thread {
            tid: thread.tid,
            looper: thread.looper.to_string(),
            waiting: thread.parked.is_some(),
            stack: count(self.stack_of(id).count()),
            queued: count(queued),
        }
    }

    fn handle(&self, reference: &Reference) -> status::Handle {
        status::Handle {
            handle: reference.handle,
            strong: reference.strong,
            weak: reference.weak,
            owner: self.nodes[reference.node].owner.map(|owner| self.processes[owner].opener.pid),
            death: reference.death.is_some(),
        }
    }
}

fn node(node: &Node) -> status::Node {
    status::Node {
        ptr: node.ptr,
        cookie: node.cookie,
        strong: node.internal_strong,
        weak: node.local_weak,
        handles: node.ref_count,
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
