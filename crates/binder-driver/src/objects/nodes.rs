//! Nodes: objects that a process owns, and the changes of their reference counts that are reported
//! to the owner.
//!
//! *Internal* strong references are those of other processes' references; *local* ones are on the
//! owner's side: undelivered transactions to the node, buffers that refer to it, pending
//! acknowledgements, and the context's reference to its manager.

use std::collections::{BTreeMap, VecDeque};

use binder_uapi::{
    BinderNodeDebugInfo, BinderNodeInfoForRef, BinderPtrCookie, FLAT_BINDER_FLAG_ACCEPTS_FDS,
    FLAT_BINDER_FLAG_TXN_SECURITY_CTX, FlatBinderObject, Return,
};
use serde::{Deserialize, Serialize};

use crate::debug::counters::one_more;
use crate::driver::{Driver, NodeId, ProcessId, RefId, ThreadId};
use crate::host::{Errno, Host};
use crate::limits::MAX_OBJECTS_A_PROCESS;
use crate::objects::Strength;
use crate::transaction::oneway::{QueuedUpdate, UpdateKey};
use crate::write_read::queue::{QueueId, WorkId};
use crate::write_read::work::{DeliverToRead, Flow, Reader, Work};

/// An object of a process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Node {
    /// Debug id.
    pub id: u32,
    pub ptr: u64,
    pub cookie: u64,
    /// `None` = the owner is dead.
    pub owner: Option<ProcessId>,
    pub accepts_fds: bool,
    pub wants_security_context: bool,
    /// Flags from the first time that the owner sent the object; they determine its priority.
    pub flags: u32,
    /// Number of references with a strong count.
    pub internal_strong: u32,
    pub local_strong: u32,
    pub local_weak: u32,
    /// Strong (`BR_ACQUIRE`) / weak (`BR_INCREFS`) references were reported to the owner.
    pub has_strong: bool,
    pub has_weak: bool,
    /// ... and the owner has not acknowledged that yet.
    pub pending_strong: bool,
    pub pending_weak: bool,
    /// Head of the list of references to this node.
    pub first_ref: Option<RefId>,
    pub ref_count: u32,
    /// The node's work item, when queued.
    pub work: Option<WorkId>,
    /// A one-way call is undelivered, or its buffer is not freed yet.
    pub has_oneway: bool,
    /// One-way calls queued behind that one; created with the first.
    pub oneway_todo: Option<QueueId>,
    /// Those of these calls that have `TF_UPDATE_TXN`: oldest first for each key, so that a newer
    /// one finds the call that it supersedes without a search through the queue.
    pub updates: BTreeMap<UpdateKey, VecDeque<QueuedUpdate>>,
}

impl Node {
    fn is_strong(&self) -> bool {
        self.internal_strong > 0 || self.local_strong > 0
    }

    fn is_weak(&self) -> bool {
        self.ref_count > 0 || self.local_weak > 0 || self.is_strong()
    }

    fn name(&self) -> BinderPtrCookie {
        BinderPtrCookie { ptr: self.ptr, cookie: self.cookie }
    }
}

impl Driver {
    /// The caller's node for a local object, created if it is new. A caller that then takes no
    /// reference must call [`Self::drop_node_if_unused`].
    pub(crate) fn node_for_object(
        &mut self,
        process: ProcessId,
        object: FlatBinderObject,
    ) -> Result<NodeId, Errno> {
        let entry = self.process(process)?;
        if let Some(&node) = entry.nodes.get(&object.binder) {
            return Ok(node);
        }
        if entry.nodes.len() >= MAX_OBJECTS_A_PROCESS {
            return Err(Errno::ENOMEM);
        }
        self.charge_object(process)?;
        let node = Node {
            id: self.new_debug_id(),
            ptr: object.binder,
            cookie: object.cookie,
            owner: Some(process),
            accepts_fds: object.flags & FLAT_BINDER_FLAG_ACCEPTS_FDS != 0,
            wants_security_context: object.flags & FLAT_BINDER_FLAG_TXN_SECURITY_CTX != 0,
            flags: object.flags,
            ..Node::default()
        };
        one_more(&mut self.statistics.made.nodes);
        let node = self.nodes.insert(node);
        self.process_mut(process)?.nodes.insert(object.binder, node);
        Ok(node)
    }

    /// A reference of another process became strong; `notify` is the owner's thread to which that
    /// is reported with its next return. Without it, strong references must be known to the owner
    /// already.
    pub(crate) fn inc_internal_strong(
        &mut self,
        node: NodeId,
        notify: Option<ThreadId>,
    ) -> Result<(), Errno> {
        let manager = self.is_manager_node(node);
        let entry = &mut self.nodes[node];
        if notify.is_none() && entry.internal_strong == 0 && !(manager && entry.has_strong) {
            return Err(Errno::EINVAL);
        }
        entry.internal_strong += 1;
        if let Some(thread) = notify
            && !entry.has_strong
        {
            if let Some(queued) = entry.work.take() {
                self.queues.unlink(queued);
            }
            self.nodes[node].work = Some(self.push_deferred_work(thread, Work::Node(node)));
        }
        Ok(())
    }

    /// A reference of another process became weak.
    pub(crate) fn inc_internal_weak(&mut self, node: NodeId, notify: Option<ThreadId>) {
        let entry = &self.nodes[node];
        if let Some(thread) = notify
            && !entry.has_weak
            && entry.work.is_none()
        {
            self.nodes[node].work = Some(self.push_deferred_work(thread, Work::Node(node)));
        }
    }

    fn is_manager_node(&self, node: NodeId) -> bool {
        let owner = self.nodes[node].owner.and_then(|owner| self.processes.get(owner));
        owner.is_some_and(|owner| self.contexts[owner.context].manager == Some(node))
    }

    pub(crate) fn inc_local(&mut self, node: NodeId, strength: Strength) {
        let entry = &mut self.nodes[node];
        match strength {
            Strength::Strong => entry.local_strong += 1,
            Strength::Weak => entry.local_weak += 1,
        }
    }

    pub(crate) fn dec_internal_strong(&mut self, node: NodeId) {
        self.nodes[node].internal_strong -= 1;
        self.node_lost_strong(node);
    }

    /// Drops a local reference. Nodes of dead owners have no local references.
    pub(crate) fn dec_local(&mut self, node: NodeId, strength: Strength) {
        let Some(entry) = self.nodes.get_mut(node) else { return };
        if entry.owner.is_none() {
            return;
        }
        match strength {
            Strength::Strong => {
                entry.local_strong -= 1;
                self.node_lost_strong(node);
            }
            Strength::Weak => {
                entry.local_weak -= 1;
                self.node_lost_weak(node);
            }
        }
    }

    fn node_lost_strong(&mut self, node: NodeId) {
        if !self.nodes[node].is_strong() {
            self.notify_owner_or_drop(node);
        }
    }

    /// A weak reference of either kind was dropped.
    pub(crate) fn node_lost_weak(&mut self, node: NodeId) {
        let entry = &self.nodes[node];
        if entry.local_weak == 0 && entry.ref_count == 0 {
            self.notify_owner_or_drop(node);
        }
    }

    fn notify_owner_or_drop(&mut self, node: NodeId) {
        let entry = &self.nodes[node];
        match entry.owner {
            Some(owner) if entry.has_strong || entry.has_weak => {
                if entry.work.is_none() {
                    let todo = self.processes[owner].todo;
                    self.nodes[node].work = Some(self.queues.push(todo, Work::Node(node)));
                    self.wake_process(owner);
                }
            }
            _ => self.drop_node_if_unused(node),
        }
    }

    /// Removes a node that has no references and none that its owner knows of.
    pub(crate) fn drop_node_if_unused(&mut self, node: NodeId) {
        let Some(entry) = self.nodes.get(node) else { return };
        let notified = entry.owner.is_some() && (entry.has_strong || entry.has_weak);
        if entry.is_weak() || notified {
            return;
        }
        let (owner, ptr) = (entry.owner, entry.ptr);
        self.unlink_node(node);
        self.nodes.remove(node);
        self.forget_node_of(owner, ptr);
    }

    /// Removes the node from its owner's nodes.
    fn forget_node_of(&mut self, owner: Option<ProcessId>, ptr: u64) {
        let Some(owner) = owner.filter(|&owner| self.processes.contains_key(owner)) else { return };
        self.processes[owner].nodes.remove(&ptr);
        self.discharge_object(owner);
    }

    /// Removes the node's work item from its queue, and destroys the node's own queue.
    fn unlink_node(&mut self, node: NodeId) {
        let entry = &mut self.nodes[node];
        let queued = entry.work.take();
        if let Some(queue) = entry.oneway_todo.take() {
            self.queues.destroy(queue);
        }
        if let Some(queued) = queued {
            self.queues.unlink(queued);
        }
    }

    /// `BC_INCREFS_DONE` / `BC_ACQUIRE_DONE`. An acknowledgement that is not pending is ignored.
    pub(crate) fn acknowledge_node(
        &mut self,
        process: ProcessId,
        name: BinderPtrCookie,
        strength: Strength,
    ) {
        let Some(&node) = self.processes[process].nodes.get(&name.ptr) else { return };
        let entry = &mut self.nodes[node];
        if entry.cookie != name.cookie {
            return;
        }
        let pending = match strength {
            Strength::Strong => &mut entry.pending_strong,
            Strength::Weak => &mut entry.pending_weak,
        };
        if std::mem::take(pending) {
            self.dec_local(node, strength);
        }
    }

    /// The owner dies: watchers are notified, and the node remains only while references to it
    /// exist.
    pub(crate) fn release_node<H: Host>(&mut self, host: &mut H, node: NodeId) {
        self.cancel_oneway_queue(host, node);
        self.unlink_node(node);
        let entry = &mut self.nodes[node];
        let (owner, ptr, first) = (entry.owner.take(), entry.ptr, entry.first_ref);
        entry.local_strong = 0;
        entry.local_weak = 0;
        entry.pending_strong = false;
        entry.pending_weak = false;
        entry.has_oneway = false;
        self.forget_node_of(owner, ptr);
        let mut at = first;
        while let Some(reference) = at {
            at = self.refs[reference].next_of_node;
            self.queue_death_notification(reference);
        }
        self.drop_node_if_unused(node);
    }

    /// `BINDER_GET_NODE_DEBUG_INFO`: the first node whose pointer is above `after`; zeroes if there
    /// is none.
    pub fn node_debug_info(
        &self,
        process: ProcessId,
        after: u64,
    ) -> Result<BinderNodeDebugInfo, Errno> {
        let above = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let first = self.process(process)?.nodes.range(above).next();
        Ok(first.map_or_else(BinderNodeDebugInfo::default, |(_, &node)| {
            let entry = &self.nodes[node];
            BinderNodeDebugInfo {
                ptr: entry.ptr,
                cookie: entry.cookie,
                has_strong_ref: entry.has_strong.into(),
                has_weak_ref: entry.has_weak.into(),
            }
        }))
    }

    /// `BINDER_GET_NODE_INFO_FOR_REF`: `EINVAL` unless all but the handle is 0, `EPERM` unless the
    /// caller is the context manager, `EINVAL` without a strong reference of that handle.
    pub fn node_info_for_ref(
        &self,
        process: ProcessId,
        query: BinderNodeInfoForRef,
    ) -> Result<BinderNodeInfoForRef, Errno> {
        self.process(process)?;
        let empty = BinderNodeInfoForRef { handle: query.handle, ..Default::default() };
        if query != empty {
            return Err(Errno::EINVAL);
        }
        if !self.is_manager(process) {
            return Err(Errno::EPERM);
        }
        let reference =
            self.ref_by_handle(process, query.handle, Strength::Strong).ok_or(Errno::EINVAL)?;
        let node = &self.nodes[self.refs[reference].node];
        Ok(BinderNodeInfoForRef {
            strong_count: node.local_strong + node.internal_strong,
            weak_count: node.local_weak,
            ..empty
        })
    }
}

impl DeliverToRead for NodeId {
    fn deliver<H: Host>(self, driver: &mut Driver, _: &mut H, reader: &mut Reader<'_>) -> Flow {
        let node = &mut driver.nodes[self];
        node.work = None;
        let name = node.name();
        let (strong, weak) = (node.is_strong(), node.is_weak());
        let (had_strong, had_weak) = (node.has_strong, node.has_weak);
        if weak && !had_weak {
            node.has_weak = true;
            node.pending_weak = true;
            node.local_weak += 1;
            reader.put(Return::IncRefs(name));
        }
        if strong && !had_strong {
            node.has_strong = true;
            node.pending_strong = true;
            node.local_strong += 1;
            reader.put(Return::Acquire(name));
        }
        if !strong && had_strong {
            node.has_strong = false;
            reader.put(Return::Release(name));
        }
        if !weak && had_weak {
            node.has_weak = false;
            reader.put(Return::DecRefs(name));
        }
        driver.drop_node_if_unused(self);
        Flow::Continue
    }

    fn cancel<H: Host>(self, driver: &mut Driver, _: &mut H, _: Option<ThreadId>) {
        let node = &mut driver.nodes[self];
        node.work = None;
        // The thread has exited but its process may be alive: another thread reports to the owner.
        let Some(owner) = node.owner.filter(|&owner| !driver.processes[owner].dead) else { return };
        let todo = driver.processes[owner].todo;
        driver.nodes[self].work = Some(driver.queues.push(todo, Work::Node(self)));
        driver.wake_process(owner);
    }
}
