//! The last transactions, and the last that failed.

use serde::{Deserialize, Serialize};

use crate::driver::{ContextId, Driver, NodeId, ProcessId, ThreadId};
use crate::transaction::Kind;
use crate::transaction::send::{Message, Sender};

/// The error of a transaction that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The sender's `BR_` word.
    pub word: u32,
    /// Negative errno of the extended error; 0: there is none.
    pub errno: i32,
}

/// Number of entries that a log keeps.
const KEPT: usize = 32;

/// One transaction, as it was sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LogEntry {
    /// Debug id.
    pub id: u32,
    pub kind: Kind,
    pub from_pid: u32,
    pub from_tid: u32,
    /// 0 if the transaction failed before its target was found.
    pub to_pid: u32,
    /// 0: any thread.
    pub to_tid: u32,
    pub context: Option<ContextId>,
    /// Debug id of the node; 0: none.
    pub to_node: u32,
    pub handle: u32,
    pub data_size: u64,
    pub offsets_size: u64,
    pub refused: Option<Refusal>,
}

/// A ring of entries.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Ring {
    entries: Vec<LogEntry>,
    next: usize,
}

impl Ring {
    pub fn push(&mut self, entry: LogEntry) {
        if self.entries.len() < KEPT {
            self.entries.push(entry);
        } else {
            self.entries[self.next] = entry;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// Checks that the next entry has a place.
    fn check(&self) -> Result<(), String> {
        let is_growing = self.entries.len() < KEPT && self.next == self.entries.len();
        let is_full = self.entries.len() == KEPT && self.next < KEPT;
        if is_growing || is_full { Ok(()) } else { Err("a log has too many entries".into()) }
    }

    /// Index of the last entry, if there is one.
    fn last_at(&self) -> usize {
        (self.next + KEPT - 1) % KEPT
    }

    /// The last entry, for changes.
    pub fn last(&mut self) -> Option<&mut LogEntry> {
        let at = self.last_at();
        self.entries.get_mut(at)
    }

    /// The last entry.
    pub fn latest(&self) -> Option<&LogEntry> {
        self.entries.get(self.last_at())
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &LogEntry> {
        let (newer, older) = self.entries.split_at(self.next.min(self.entries.len()));
        older.iter().chain(newer)
    }
}

/// Both logs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct TransactionLog {
    pub all: Ring,
    pub failed: Ring,
}

impl TransactionLog {
    /// Checks that each log has a place for its next entry.
    pub fn check(&self) -> Result<(), String> {
        self.all.check().and_then(|()| self.failed.check())
    }
}

impl Driver {
    /// A transaction is being sent; values that are not known yet are 0.
    pub(crate) fn log_transaction(&mut self, sender: Sender, message: Message<'_>) {
        let Message { id, kind, data, .. } = message;
        let process = self.processes.get(sender.caller.process);
        let entry = LogEntry {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u32) -> LogEntry {
        LogEntry {
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
            refused: None,
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
