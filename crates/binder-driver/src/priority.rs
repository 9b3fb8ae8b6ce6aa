//! Priorities: a call is served with its caller's nice value, or that of the node's minimum where
//! the caller's is weaker, and the server has its own back when it replies.

use crate::driver::Driver;
use crate::host::{Caller, Host};
use crate::keys::{ThreadId, TransactionId};

impl Driver {
    /// The thread begins to serve a call.
    pub(crate) fn inherit_priority<H: Host>(
        &mut self,
        host: &mut H,
        thread: ThreadId,
        call: TransactionId,
    ) {
        let entry = &self.transactions[call];
        let node = entry.buffer.and_then(|buffer| self.buffers[buffer].target);
        let (Some(callers), Some(node)) = (entry.nice, node) else { return };
        let tid = self.threads[thread].tid;
        let Some(own) = host.nice(tid) else { return };
        let wanted = callers.min(self.nodes[node].min_priority);
        if wanted != own && host.inherit_nice(tid, wanted) {
            self.transactions[call].own_nice = Some(own);
        }
    }

    /// The thread replies to a call.
    pub(crate) fn restore_priority<H: Host>(
        &mut self,
        host: &mut H,
        caller: Caller,
        call: TransactionId,
    ) {
        if let Some(own) = self.transactions[call].own_nice.take() {
            host.restore_nice(caller.tid, own);
        }
    }
}
