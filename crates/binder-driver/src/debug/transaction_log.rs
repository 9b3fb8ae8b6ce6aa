//! The last transactions, and the last that failed.

use crate::debug::records::{Entry, Refusal};
use crate::driver::Driver;
use crate::keys::{NodeId, ProcessId, ThreadId};
use crate::transaction::types::{Kind, Message, Sender};

impl Driver {
    /// A transaction is being sent; values that are not known yet are 0.
    pub(crate) fn log_transaction(&mut self, sender: Sender, message: Message<'_>) {
        let Message { id, kind, data, .. } = message;
        let process = self.processes.get(sender.caller.process);
        let entry = Entry {
            id,
            kind,
            from_pid: process.map_or(0, |process| process.opener.pid),
            from_tid: sender.caller.tid,
            to_pid: 0,
            to_tid: 0,
            context: process.map(|process| process.context),
            to_node: 0,
            handle: if kind == Kind::Reply { 0 } else { data.handle() },
            data_size: data.data_size,
            offsets_size: data.offsets_size,
            refused: None,
        };
        match self.log.all.last() {
            // It was sent before, and client memory was late.
            Some(last) if last.id == id => *last = entry,
            _ => self.log.all.push(entry),
        }
    }

    /// The target of the transaction was found.
    pub(crate) fn log_target(
        &mut self,
        process: ProcessId,
        node: Option<NodeId>,
        thread: Option<ThreadId>,
    ) {
        let Some(entry) = self.log.all.last() else { return };
        entry.to_pid = self.processes.get(process).map_or(0, |process| process.opener.pid);
        entry.to_node = node.and_then(|node| self.nodes.get(node)).map_or(0, |node| node.id);
        entry.to_tid = thread.and_then(|thread| self.threads.get(thread)).map_or(0, |t| t.tid);
    }

    /// The transaction failed.
    pub(crate) fn log_failure(&mut self, refusal: Refusal) {
        let Some(entry) = self.log.all.last() else { return };
        entry.refused = Some(refusal);
        let entry = *entry;
        self.log.failed.push(entry);
    }
}
