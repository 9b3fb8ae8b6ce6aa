//! One-way calls: delivered one at a time to a node, in the order in which they were sent.

use std::collections::btree_map::Entry;

use binder_uapi::TF_UPDATE_TXN;
use serde::{Deserialize, Serialize};

use crate::driver::{Driver, NodeId, TransactionId};
use crate::host::Host;
use crate::transaction::Transaction;
use crate::transaction::send::Target;
use crate::write_read::queue::WorkId;
use crate::write_read::work::{DeliverToRead, Work};

/// Key of one-way calls to a node: a newer call supersedes an older one with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UpdateKey {
    pub code: u32,
    pub flags: u32,
    pub sender_pid: u32,
}

/// A queued one-way call with `TF_UPDATE_TXN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedUpdate {
    pub work: WorkId,
    pub transaction: TransactionId,
}

impl Driver {
    /// Queues a one-way call: one at a time is delivered to a node, in the order of sending.
    pub(crate) fn queue_oneway(&mut self, target: Target, node: NodeId, id: TransactionId) {
        let entry = &mut self.nodes[node];
        if !std::mem::replace(&mut entry.has_oneway, true) {
            self.hold_oneway_slot(id);
            return self.queue_for(target, id);
        }
        let queue = *entry.oneway_todo.get_or_insert_with(|| self.queues.create());
        let work = self.queues.push(queue, Work::Transaction(id));
        if let Some(key) = self.update_key(id) {
            let update = QueuedUpdate { work, transaction: id };
            self.nodes[node].updates.entry(key).or_default().push_back(update);
        }
    }

    /// `None`: the call has no `TF_UPDATE_TXN`.
    pub(crate) fn update_key(&self, id: TransactionId) -> Option<UpdateKey> {
        let Transaction { code, flags, buffer, .. } = self.transactions[id];
        let sender_pid = self.buffers[buffer?].sender_pid;
        (flags & TF_UPDATE_TXN != 0).then_some(UpdateKey { code, flags, sender_pid })
    }

    /// `TF_UPDATE_TXN`: drops the first queued one-way call that this one replaces: one of the same
    /// sender and code, with the same flags.
    pub(crate) fn drop_outdated<H: Host>(
        &mut self,
        host: &mut H,
        node: NodeId,
        newer: TransactionId,
    ) {
        let Some(key) = self.update_key(newer) else { return };
        if let Some(outdated) = self.take_oldest_update(node, key) {
            self.queues.unlink(outdated.work);
            self.finish_transaction(host, outdated.transaction);
        }
    }

    /// Drops the one-way calls that wait for the one that is being delivered.
    pub(crate) fn cancel_oneway_queue<H: Host>(&mut self, host: &mut H, node: NodeId) {
        let Some(entry) = self.nodes.get_mut(node) else { return };
        entry.updates.clear();
        let Some(queue) = entry.oneway_todo else { return };
        while let Some(work) = self.queues.pop(queue) {
            work.cancel(self, host, None);
        }
    }

    fn take_oldest_update(&mut self, node: NodeId, key: UpdateKey) -> Option<QueuedUpdate> {
        let Entry::Occupied(mut updates) = self.nodes[node].updates.entry(key) else {
            return None;
        };
        let oldest = updates.get_mut().pop_front();
        if updates.get().is_empty() {
            updates.remove();
        }
        oldest
    }

    /// The node's one-way call has ended: the next one may be delivered.
    pub(crate) fn next_oneway(&mut self, node: NodeId) {
        let Some(entry) = self.nodes.get_mut(node) else { return };
        let next = entry.oneway_todo.and_then(|queue| self.queues.pop(queue));
        let (Some(Work::Transaction(next)), Some(owner)) = (next, entry.owner) else {
            entry.has_oneway = false;
            return;
        };
        if let Some(key) = self.update_key(next) {
            // The first in the queue is the first of its key.
            self.take_oldest_update(node, key);
        }
        self.hold_oneway_slot(next);
        self.queues.push(self.processes[owner].todo, Work::Transaction(next));
        self.wake_process(owner);
    }

    fn hold_oneway_slot(&mut self, oneway: TransactionId) {
        if let Some(buffer) = self.transactions[oneway].buffer {
            let buffer = &mut self.buffers[buffer];
            buffer.holds_oneway_slot = true;
            self.processes[buffer.process].oneway_slots += 1;
        }
    }
}
