//! Trace events and transaction log entries as data.

use crate::keys::ContextId;
use crate::transaction::types::Kind;

/// Something happened to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// It was sent, or refused.
    Sent(Sent),
    /// A thread of the receiver has it.
    Taken {
        /// Which call.
        id: u32,
        /// The thread.
        tid: u32,
    },
    /// It was answered.
    Answered {
        /// Which call.
        id: u32,
        /// Bytes of the answer.
        bytes: u64,
    },
    /// It failed for its caller, with this `BR_` word.
    Failed {
        /// Which call.
        id: u32,
        /// `BR_DEAD_REPLY`, `BR_FAILED_REPLY` or `BR_FROZEN_REPLY`.
        word: u32,
    },
    /// Nothing more will happen to it.
    Over {
        /// Which call.
        id: u32,
    },
}

/// How a transaction was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The sender's `BR_` word.
    pub word: u32,
    /// Negative errno of the extended error; 0: there is none.
    pub errno: i32,
}

/// A call or one-way call as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its number.
    pub id: u32,
    /// Nobody waits for an answer.
    pub oneway: bool,
    /// The device.
    pub context: Option<ContextId>,
    /// The caller's process.
    pub from_pid: u32,
    /// The caller's thread.
    pub from_tid: u32,
    /// Process called; 0: it did not come so far.
    pub to_pid: u32,
    /// Number of the node; 0: none.
    pub node: u32,
    /// The caller's name for it.
    pub handle: u32,
    /// What is asked for.
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
    pub refused: Option<Refusal>,
}

/// A ring of entries.
#[derive(Debug, Default)]
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

    /// Where the last entry is, if there is one.
    fn last_at(&self) -> usize {
        (self.next + KEPT - 1) % KEPT
    }

    /// The last entry, which may still change.
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
#[derive(Debug, Default)]
pub struct TransactionLog {
    pub all: Ring,
    pub failed: Ring,
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
