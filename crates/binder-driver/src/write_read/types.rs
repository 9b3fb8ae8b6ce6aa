//! Work items, wake-ups and the outcomes of `BINDER_WRITE_READ` as data.

use std::collections::VecDeque;

use binder_uapi::BinderWriteRead;

use crate::errno::Errno;
use crate::keys::{
    DeathId, FreezeId, FreezeNotificationId, NodeId, ProcessId, ThreadId, TransactionId,
};

/// An item in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A call, one-way or reply on its way.
    Transaction(TransactionId),
    /// The thread's last command failed: a `BR_` word without payload.
    ReturnError(u32),
    /// A `BR_ERROR` with a negative errno.
    Error(i32),
    /// The call that the thread waits for failed: a `BR_` word without payload.
    ReplyError(u32),
    /// The thread's transaction was taken: `BR_TRANSACTION_COMPLETE` or what replaces it.
    TransactionComplete(u32),
    /// The owner has to hear of a change of the node's reference counts.
    Node(NodeId),
    /// A death notification, or the answer to its withdrawal.
    Death(DeathId),
    /// A freeze notification, or the answer to its withdrawal.
    FreezeNotification(FreezeNotificationId),
}

/// What becomes of a `BINDER_WRITE_READ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteRead {
    /// Answer the ioctl now: `bwr` goes back to the client whatever `result` is.
    Done {
        /// The argument with its consumed counts.
        bwr: BinderWriteRead,
        /// The ioctl's result.
        result: Result<(), Errno>,
    },
    /// The commands cost more than a slice: serve other clients, then call [`Driver::write_read`]
    /// with this argument. A signal ends the ioctl with `EINTR` and this argument instead.
    Unfinished {
        /// The argument with what is consumed so far.
        bwr: BinderWriteRead,
    },
    /// Nothing to read: keep the request and answer it after a [`Wake::Reader`]
    /// ([`Driver::resume`]) or an interrupt, never otherwise.
    Parked,
    /// The read took a transaction with files: install [`Driver::files_to_install`] in the reader,
    /// then call [`Driver::files_installed`] or [`Driver::files_refused`]. Signals have to wait for
    /// that.
    InstallFds {
        /// The argument so far: commands are consumed, nothing is read.
        bwr: BinderWriteRead,
    },
}

/// What the front end has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// Call [`Driver::resume`] for this parked reader.
    Reader {
        /// The open.
        process: ProcessId,
        /// The parked thread.
        tid: u32,
    },
    /// The open may have become readable for a thread that polled it.
    Poll {
        /// The open.
        process: ProcessId,
    },
    /// A [`Freeze::Waiting`](crate::Freeze::Waiting) is over: answer its request.
    Freeze {
        /// Which one.
        id: FreezeId,
        /// The ioctl's result.
        result: Result<(), Errno>,
    },
}

/// Whether a read may be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Until work arrives.
    Allowed,
    /// `O_NONBLOCK`: answer `EAGAIN` instead.
    Refused,
}

/// Which queues a thread takes work from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkScope {
    /// Its own.
    Thread,
    /// Its own and that of its process.
    Process,
}

/// Wake-ups for the front end; a reader's counts only while that very park lasts.
#[derive(Debug, Default)]
pub struct Wakes {
    pub queue: VecDeque<Pending>,
    pub next_token: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Pending {
    Reader { thread: ThreadId, token: u64 },
    Poll(ProcessId),
    Freeze(FreezeId),
}

impl Wakes {
    /// A waiting freeze has to be looked at.
    pub fn freeze(&mut self, id: FreezeId) {
        self.queue.push_back(Pending::Freeze(id));
    }
}
