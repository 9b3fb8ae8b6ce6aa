//! Events of each call. The driver has no clock: the front end adds the time.

use binder_uapi::BinderTransactionData;

use crate::debug::transaction_log::Refusal;
use crate::driver::{ContextId, Driver, ThreadId, TransactionId};
use crate::transaction::Kind;

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

impl Driver {
    /// Starts the trace. [`take_trace`](Self::take_trace) must be called often: the events are kept
    /// until they are taken.
    pub fn start_tracing(&mut self) {
        self.trace = Some(Vec::new());
    }

    /// Ends the trace and drops the events that were not taken.
    pub fn stop_tracing(&mut self) {
        self.trace = None;
    }

    /// Events since the last call, oldest first.
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

    /// Records the last logged transaction as a call that was sent or refused.
    pub(crate) fn note_sent(&mut self, data: &BinderTransactionData) {
        let (Some(trace), Some(entry)) = (&mut self.trace, self.log.all.latest()) else { return };
        trace.push(TraceEvent::Sent(Sent {
            id: entry.id,
            oneway: entry.kind == Kind::Oneway,
            context: entry.context,
            from_pid: entry.from_pid,
            from_tid: entry.from_tid,
            to_pid: entry.to_pid,
            node: entry.to_node,
            handle: entry.handle,
            code: data.code,
            flags: data.flags,
            bytes: entry.data_size,
            objects: entry.offsets_size / 8,
            refused: entry.refused,
        }));
    }

    pub(crate) fn note_taken(&mut self, thread: ThreadId, transaction: TransactionId) {
        if self.trace.is_some() {
            let (id, tid) = (self.transactions[transaction].id, self.threads[thread].tid);
            self.note(|| TraceEvent::Taken { id, tid });
        }
    }
}
