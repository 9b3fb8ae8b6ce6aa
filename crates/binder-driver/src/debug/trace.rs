//! Events of each call. The driver has no clock: the front end adds the time.

use binder_uapi::BinderTransactionData;

use crate::debug::records::{Sent, TraceEvent};
use crate::driver::Driver;
use crate::keys::{ContextId, ThreadId, TransactionId};
use crate::transaction::types::Kind;

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
