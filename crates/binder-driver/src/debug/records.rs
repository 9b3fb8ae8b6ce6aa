//! Data structures of trace events and transaction log entries.

use serde::{Deserialize, Serialize};

use crate::keys::ContextId;
use crate::transaction::types::Kind;

/// An event of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// The call was sent, or refused.
    Sent(Sent),
    /// A thread of the receiver has received it.
    Taken {
        /// Debug id of the call.
        id: u32,
        /// Tid of the receiving thread.
        tid: u32,
    },
    /// The reply was delivered.
    Answered {
        /// Debug id of the call.
        id: u32,
        /// Bytes of the reply.
        bytes: u64,
    },
    /// The call failed for its caller, with this `BR_` word.
    Failed {
        /// Debug id of the call.
        id: u32,
        /// `BR_DEAD_REPLY`, `BR_FAILED_REPLY` or `BR_FROZEN_REPLY`.
        word: u32,
    },
    /// The call has ended; no further event follows.
    Over {
        /// Debug id of the call.
        id: u32,
    },
}

/// The error of a transaction that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The sender's `BR_` word.
    pub word: u32,
    /// Negative errno of the extended error; 0: there is none.
    pub errno: i32,
}

/// A call or one-way call as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Debug id.
    pub id: u32,
    /// One-way: there is no reply.
    pub oneway: bool,
    /// The device.
    pub context: Option<ContextId>,
    /// The caller's process.
    pub from_pid: u32,
    /// The caller's thread.
    pub from_tid: u32,
    /// The called process; 0 if the call failed before its target was found.
    pub to_pid: u32,
    /// Debug id of the node; 0: none.
    pub node: u32,
    /// The caller's handle of the node.
    pub handle: u32,
    /// Transaction code, defined by the clients.
    pub code: u32,
    /// `TF_` flags.
    pub flags: u32,
    /// Bytes of data.
    pub bytes: u64,
    /// Objects in it.
    pub objects: u64,
    /// Why it was refused.
    pub refused: Option<Refusal>,
}

/// Number of entries that a log keeps.
const KEPT: usize = 32;

/// One transaction, as it was sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Entry {
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
    entries: Vec<Entry>,
    next: usize,
}

impl Ring {
    pub fn push(&mut self, entry: Entry) {
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
    pub fn last(&mut self) -> Option<&mut Entry> {
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
