//! Reads whose returns are not written yet, because the memory of their clients does not answer.
//!
//! The returns cannot be withdrawn: their work was taken. So the reply waits until the blocked
//! thread has written them.

use std::collections::HashMap;
use std::io;

use binder_driver::Errno;
use binder_uapi::BinderWriteRead;

use super::{PendingIoctl, Server};
use crate::client_access::BlockedAccess;

/// A read, by its request.
pub(super) struct LateRead {
    request: PendingIoctl,
    bwr: BinderWriteRead,
    access: BlockedAccess,
}

/// See the module's documentation. No more than threads are blocked.
#[derive(Default)]
pub(super) struct LateReturns(HashMap<u64, LateRead>);

impl LateReturns {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns the read of a request.
    pub(super) fn take(&mut self, unique: u64) -> Option<LateRead> {
        self.0.remove(&unique)
    }
}

impl Server {
    /// Replies to a read once its returns are written.
    pub(super) fn await_returns(
        &mut self,
        request: PendingIoctl,
        bwr: BinderWriteRead,
        access: BlockedAccess,
    ) {
        let PendingIoctl { key, caller, unique, .. } = request;
        if let Some(open) = self.host.opens.get_mut(key) {
            open.calls.set(caller.tid, Some(unique));
        }
        self.late_returns.0.insert(unique, LateRead { request, bwr, access });
    }

    /// Replies to the reads whose returns are written by now.
    pub(super) fn finish_late_returns(&mut self) {
        let has_returned = |_: &u64, read: &mut LateRead| read.access.has_returned();
        let returned: Vec<_> = self.late_returns.0.extract_if(has_returned).collect();
        for (unique, read) in returned {
            let sent = match read.access.result() {
                Some(Ok(())) => {
                    self.end_request(&read.request);
                    self.finish(read.request, &read.bwr, Ok(()))
                }
                _ => self.fail_returns(read),
            };
            if let Err(error) = sent {
                tracing::warn!("request {unique}: the kernel does not take the answer: {error}");
            }
        }
    }

    /// Ends a read whose returns are not written, or whose caller has a signal, which may kill it.
    /// The thread does not know of the calls that it has received: they fail as if it had exited.
    pub(super) fn fail_returns(
        &mut self,
        LateRead { request, bwr, .. }: LateRead,
    ) -> io::Result<()> {
        self.end_request(&request);
        let (process, tid) = (request.caller.process, request.caller.tid);
        self.driver.thread_exit(&mut self.host, process, tid);
        self.cancel_deferred(tid, process);
        let bwr = BinderWriteRead { read_consumed: 0, ..bwr };
        self.finish(request, &bwr, Err(Errno::EFAULT))
    }

    fn end_request(&mut self, request: &PendingIoctl) {
        if let Some(open) = self.host.opens.get_mut(request.key) {
            open.calls.take(request.caller.tid);
        }
    }
}
