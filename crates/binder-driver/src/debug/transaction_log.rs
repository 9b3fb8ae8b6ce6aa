//! The latest transactions, and the latest that failed.

use binder_uapi::BinderTransactionData;

use crate::call::Sender;
use crate::driver::Driver;
use crate::keys::{ContextId, NodeId, ProcessId, ThreadId};
use crate::transaction::Kind;

/// Entries a log keeps.
const KEPT: usize = 32;

/// One transaction, as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Debug id.
    pub id: u32,
    pub kind: Kind,
    pub from_pid: u32,
    pub from_tid: u32,
    /// 0: it did not come so far.
    pub to_pid: u32,
    /// 0: any thread.
    pub to_tid: u32,
    pub context: Option<ContextId>,
    /// Debug id of the node; 0: none.
    pub to_node: u32,
    pub handle: u32,
    pub data_size: u64,
    pub offsets_size: u64,
    /// The sender's `BR_` word and negative errno; 0: it was taken.
    pub error: (u32, i32),
}

/// A ring of entries.
#[derive(Debug, Default)]
pub struct Ring {
    entries: Vec<Entry>,
    next: usize,
}

impl Ring {
    fn push(&mut self, entry: Entry) {
        if self.entries.len() < KEPT {
            self.entries.push(entry);
        } else {
            self.entries[self.next] = entry;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// Where the last entry is, if there is one.
    fn last_at(&self) -> usize {
        (self.next + KEPT - 1) % KEPT
    }

    /// The last entry, which may still change.
    fn last(&mut self) -> Option<&mut Entry> {
        let at = self.last_at();
        self.entries.get_mut(at)
    }

    /// The last entry.
    pub fn latest(&self) -> Option<&Entry> {
        self.entries.get(self.last_at())
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        let (newer, older) = self.entries.split_at(self.next.min(self.entries.len()));
        older.iter().chain(newer)
    }
}

/// Both logs.
#[derive(Debug, Default)]
pub struct TransactionLog {
    pub all: Ring,
    pub failed: Ring,
}

impl Driver {
    /// A transaction is being sent; what is not known yet is 0.
    pub(crate) fn log_transaction(
        &mut self,
        id: u32,
        kind: Kind,
        sender: Sender,
        data: &BinderTransactionData,
    ) {
        let process = self.processes.get(sender.caller.process);
        self.log.all.push(Entry {
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
            error: (0, 0),
        });
    }

    /// It has a receiver.
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

    /// It failed.
    pub(crate) fn log_failure(&mut self, word: u32, errno: i32) {
        let Some(entry) = self.log.all.last() else { return };
        entry.error = (word, errno);
        let entry = *entry;
        self.log.failed.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u32) -> Entry {
        Entry {
            id,
            kind: Kind::Call,
            from_pid: 1,
            from_tid: 1,
            to_pid: 0,
            to_tid: 0,
            context: None,
            to_node: 0,
            handle: 0,
            data_size: 0,
            offsets_size: 0,
            error: (0, 0),
        }
    }

    #[test]
    fn a_ring_keeps_the_last_32_oldest_first() {
        let mut ring = Ring::default();
        assert!(ring.last().is_none());
        for id in 0..3 {
            ring.push(entry(id));
        }
        assert_eq!(ring.iter().map(|entry| entry.id).collect::<Vec<_>>(), [0, 1, 2]);
        for id in 3..70 {
            ring.push(entry(id));
            assert_eq!(ring.last().map(|entry| entry.id), Some(id));
        }
        assert!(ring.iter().map(|entry| entry.id).eq(38..70));
    }
}
