//! Held confirmations: the `BR_TRANSACTION_COMPLETE` of a reply waits in its thread's read for the
//! next item, so that a server needs one request per call instead of two.
//!
//! The wait is bounded by the front end's ticks ([`Driver::release_held_reads`]) and ends at once
//! for a signal, a thread that polls, and a read that may not wait.

use serde::{Deserialize, Serialize};

use crate::driver::{Driver, ThreadId};
use crate::write_read::work::Work;

/// Delivery of the `BR_TRANSACTION_COMPLETE` of a thread's last reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplyComplete {
    /// There is none, or it was delivered.
    #[default]
    Delivered,
    /// It is delivered together with the next item.
    Held {
        /// Ticks since the thread waits in a read.
        ticks: u8,
    },
    /// The thread's read returns for it, without work of the process.
    Due,
}

/// Whether reads wait with a held confirmation ([`Driver::release_held_reads`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldReads {
    /// No read does.
    None,
    /// Some reads may.
    Some,
}

impl Driver {
    /// A thread's reply was accepted.
    pub(crate) fn confirm_reply(&mut self, thread: ThreadId, complete: Work) {
        let entry = &self.threads[thread];
        // A later BC_FREE_BUFFER of a one-way call must not wait: it starts the next one.
        let may_hold = !entry.polls
            && entry.reply_complete == ReplyComplete::Delivered
            && entry.fd_delivery.is_none()
            && self.queues.is_empty(entry.todo)
            && self.processes[entry.process].oneway_slots == 0;
        if may_hold {
            self.threads[thread].reply_complete = ReplyComplete::Held { ticks: 0 };
        } else {
            self.push_thread_work(thread, complete);
        }
    }

    /// The thread starts to wait in a read: bounds the wait for what it holds.
    pub(crate) fn limit_hold(&mut self, thread: ThreadId) {
        let entry = &mut self.threads[thread];
        if let ReplyComplete::Held { ticks } = &mut entry.reply_complete {
            *ticks = 0;
            if !std::mem::replace(&mut entry.is_listed_as_holding, true) {
                self.holding.push(thread);
            }
        }
    }

    /// Makes a held confirmation due. False: the thread has none.
    pub(crate) fn end_hold(&mut self, thread: ThreadId) -> bool {
        let complete = &mut self.threads[thread].reply_complete;
        let holds = matches!(complete, ReplyComplete::Held { .. });
        if holds {
            *complete = ReplyComplete::Due;
        }
        holds
    }

    /// Whether reads may wait with a held confirmation. From then on the front end calls
    /// [`release_held_reads`](Self::release_held_reads) in regular intervals.
    pub fn held_reads(&self) -> HeldReads {
        if self.holding.is_empty() { HeldReads::None } else { HeldReads::Some }
    }

    /// An interval has passed: wakes the reads that have waited with a held confirmation for more
    /// than one interval, so each waits for two intervals at most.
    pub fn release_held_reads(&mut self) -> HeldReads {
        let mut holding = std::mem::take(&mut self.holding);
        holding.retain(|&thread| self.keeps_holding(thread));
        self.holding = holding;
        self.held_reads()
    }

    fn keeps_holding(&mut self, thread: ThreadId) -> bool {
        let Some(entry) = self.threads.get_mut(thread) else { return false };
        match &mut entry.reply_complete {
            ReplyComplete::Held { ticks: ticks @ 0 } if entry.parked.is_some() => {
                *ticks += 1;
                return true;
            }
            ReplyComplete::Held { .. } if entry.parked.is_some() => {
                self.end_hold(thread);
                self.wake_thread(thread);
            }
            _ => {}
        }
        self.threads[thread].is_listed_as_holding = false;
        false
    }
}
