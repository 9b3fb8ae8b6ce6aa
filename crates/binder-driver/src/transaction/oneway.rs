//! One-way calls: one at a time to a node, in the order in which they were sent.

use crate::driver::Driver;
use crate::host::Host;
use crate::keys::{NodeId, TransactionId};
use crate::transaction::types::Target;
use crate::write_read::types::Work;

impl Driver {
    /// One-way calls to one node go one at a time, in the order they were sent.
    pub(crate) fn queue_oneway(&mut self, target: Target, node: NodeId, id: TransactionId) {
        let entry = &mut self.nodes[node];
        if !std::mem::replace(&mut entry.has_oneway, true) {
            self.hold_oneway_slot(id);
            return self.queue_for(target, id);
        }
        let queue = *entry.oneway_todo.get_or_insert_with(|| self.queues.create());
        self.queues.push(queue, Work::Transaction(id));
    }

    /// `TF_UPDATE_TXN`: the first queued one-way call that this one replaces is dropped. It is of
    /// the same sender and code, and came with the same flags.
    pub(crate) fn drop_outdated<H: Host>(
        &mut self,
        host: &mut H,
        node: NodeId,
        newer: TransactionId,
    ) {
        let Some(queue) = self.nodes[node].oneway_todo else { return };
        let key = |id: TransactionId| {
            let entry = &self.transactions[id];
            let sender = entry.buffer.map(|buffer| self.buffers[buffer].sender_pid);
            (entry.code, entry.flags, sender)
        };
        let wanted = key(newer);
        let outdated = self.queues.iter(queue).find_map(|(work_id, work)| match work {
            Work::Transaction(older) if key(older) == wanted => Some((work_id, older)),
            _ => None,
        });
        if let Some((work, older)) = outdated {
            self.queues.unlink(work);
            self.finish_transaction(host, older);
        }
    }

    /// The node's one-way call is over: the next one may be delivered.
    pub(crate) fn next_oneway(&mut self, node: NodeId) {
        let Some(entry) = self.nodes.get_mut(node) else { return };
        let next = entry.oneway_todo.and_then(|queue| self.queues.pop(queue));
        let (Some(Work::Transaction(next)), Some(owner)) = (next, entry.owner) else {
            entry.has_oneway = false;
            return;
        };
        self.hold_oneway_slot(next);
        self.queues.push(self.processes[owner].todo, Work::Transaction(next));
        self.wake_process(owner);
    }

    pub(crate) fn hold_oneway_slot(&mut self, oneway: TransactionId) {
        if let Some(buffer) = self.transactions[oneway].buffer {
            self.buffers[buffer].holds_oneway_slot = true;
        }
    }
}
