//! What becomes of each call, for whoever traces them. There is no clock here: who takes the events knows the time.

use binder_uapi::BinderTransactionData;

use crate::driver::Driver;
use crate::keys::{ContextId, ThreadId, TransactionId};

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

/// A call or one-way call as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its number.
    pub id: u32,
    /// Nobody waits for an answer.
    pub oneway: bool,
    /// The device.
    pub context: Option<ContextId>,
    /// Caller: process and thread.
    pub from: (u32, u32),
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
    /// The `BR_` word and negative errno that refused it.
    pub refused: Option<(u32, i32)>,
}

impl Driver {
    /// Traces from now on, or no longer. While on, [`take_trace`](Self::take_trace) must be called often: what is not
    /// taken is kept.
    pub fn set_tracing(&mut self, on: bool) {
        self.trace = on.then(Vec::new);
    }

    /// What has happened since it was called last, oldest first.
    pub fn take_trace(&mut self) -> Vec<TraceEvent> {
        self.trace.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The name of a device.
    pub fn context_name(&self, context: ContextId) -> Option<&str> {
        self.contexts.get(context).map(|context| &context.name[..])
    }

    pub(crate) fn note(&mut self, event: impl FnOnce() -> TraceEvent) {
        if let Some(trace) = &mut self.trace {
            trace.push(event());
        }
    }

    /// The transaction that was logged last is a call that was sent or refused.
    pub(crate) fn note_sent(&mut self, data: &BinderTransactionData) {
        let (Some(trace), Some(entry)) = (&mut self.trace, self.log.all.latest()) else { return };
        trace.push(TraceEvent::Sent(Sent {
            id: entry.id,
            oneway: entry.kind == crate::transaction::Kind::Oneway,
            context: entry.context,
            from: (entry.from_pid, entry.from_tid),
            to_pid: entry.to_pid,
            node: entry.to_node,
            handle: entry.handle,
            code: data.code,
            flags: data.flags,
            bytes: entry.data_size,
            objects: entry.offsets_size / 8,
            refused: (entry.error.0 != 0).then_some(entry.error),
        }));
    }

    pub(crate) fn note_taken(&mut self, thread: ThreadId, transaction: TransactionId) {
        if self.trace.is_some() {
            let (id, tid) = (self.transactions[transaction].id, self.threads[thread].tid);
            self.note(|| TraceEvent::Taken { id, tid });
        }
    }
}
