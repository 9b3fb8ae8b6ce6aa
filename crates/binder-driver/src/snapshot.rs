//! What the driver holds, as plain data for status displays.

use serde::Serialize;

/// Everything, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// One entry a device, also a removed one that still has opens.
    pub contexts: Vec<ContextSnapshot>,
    /// Transactions on their way or waiting for their reply.
    pub transactions: usize,
    /// Nodes whose owner is gone but that somebody still refers to.
    pub dead_nodes: usize,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContextSnapshot {
    /// The device's name.
    pub name: String,
    /// The device was unlinked; its opens go on.
    pub removed: bool,
    /// Pid of the context manager.
    pub manager_pid: Option<u32>,
    /// The only uid that may become the manager, once one has been.
    pub manager_uid: Option<u32>,
    /// Its opens.
    pub processes: Vec<ProcessSnapshot>,
}

/// One open of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSnapshot {
    /// Who opened it (thread group id).
    pub pid: u32,
    /// Effective uid of the opener.
    pub euid: u32,
    /// Loopers that the driver may ask for.
    pub max_threads: u32,
    /// Its threads by tid.
    pub threads: Vec<ThreadSnapshot>,
    /// Nodes that it owns.
    pub nodes: Vec<NodeSnapshot>,
    /// Its references by handle.
    pub handles: Vec<HandleSnapshot>,
    /// Its receive buffer; `None` until the first transaction to it.
    pub buffers: Option<BufferSnapshot>,
    /// Work items that no thread has taken yet.
    pub queued_work: usize,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadSnapshot {
    /// Thread id.
    pub tid: u32,
    /// Its place in the pool, as `entered`, `registered`, `entered|invalid`, ...; empty = none.
    pub looper: String,
    /// It waits in a read.
    pub waiting: bool,
    /// Calls that it is in, made or served.
    pub stack_depth: usize,
    /// Work items queued for this very thread.
    pub queued_work: usize,
}

/// One node, as its owner knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeSnapshot {
    /// Debug id, unique since the driver started.
    pub id: u32,
    /// Pointer in the owner.
    pub ptr: u64,
    /// Cookie in the owner.
    pub cookie: u64,
    /// Processes that hold a reference.
    pub refs: u32,
    /// Strong counts: of references, and of the owner's side (buffers, pending acknowledgements).
    pub strong: (u32, u32),
    /// Weak counts of the owner's side.
    pub weak: u32,
    /// One-way calls queued behind the one that is being served.
    pub queued_oneway: usize,
}

/// One reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// A death notification is registered.
    pub death: bool,
}

/// A receive buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BufferSnapshot {
    /// Bytes of the mapping that are used for buffers.
    pub size: u64,
    /// Buffers in use.
    pub live: usize,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that one-way calls may still take.
    pub free_async: u64,
}
