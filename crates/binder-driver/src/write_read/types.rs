//! Data structures of work items, wake-ups and results of `BINDER_WRITE_READ`.

use std::collections::VecDeque;

use binder_uapi::BinderWriteRead;
use serde::{Deserialize, Serialize};

use crate::errno::Errno;
use crate::keys::{
    DeathId, FreezeId, FreezeNotificationId, NodeId, ProcessId, ThreadId, TransactionId,
};

/// An item in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// A call, one-way call or reply.
    Transaction(TransactionId),
    /// The thread's last command failed: a `BR_` word without payload.
    ReturnError(u32),
    /// A `BR_ERROR` with a negative errno.
    Error(i32),
    /// The call for whose reply the thread waits has failed: a `BR_` word without payload.
    ReplyError(u32),
    /// The thread's transaction was accepted: `BR_TRANSACTION_COMPLETE` or its replacement.
    TransactionComplete(u32),
    /// A change of the node's reference counts to report to the owner.
    Node(NodeId),
    /// A death notification, or the confirmation of its withdrawal.
    Death(DeathId),
    /// A freeze notification, or the confirmation of its withdrawal.
    FreezeNotification(FreezeNotificationId),
}

/// Result of a `BINDER_WRITE_READ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteRead {
    /// The ioctl is complete: `bwr` is returned to the client whatever `result` is.
    Done {
        /// The argument with its consumed counts.
        bwr: BinderWriteRead,
        /// The ioctl's result.
        result: Result<(), Errno>,
    },
    /// The commands exceed a slice: serve other clients, then call [`Driver::write_read`] with this
    /// argument. A signal ends the ioctl with `EINTR` and this argument instead.
    Unfinished {
        /// The argument with the counts consumed so far.
        bwr: BinderWriteRead,
    },
    /// Memory of a client is late: call [`Driver::write_read`] with this argument once it answers.
    /// A signal ends the ioctl with `EINTR` and this argument instead.
    Late {
        /// The argument with the counts consumed so far. The command at `write_consumed` has had no
        /// effect, and no work was taken.
        bwr: BinderWriteRead,
    },
    /// No work to read: keep the request and reply to it after a [`Wake::Reader`]
    /// ([`Driver::resume`]) or an interrupt, never otherwise.
    Parked,
    /// The read took a transaction with files: install [`Driver::files_to_install`] in the reader,
    /// then call [`Driver::files_installed`] or [`Driver::files_refused`]. Signals have to wait
    /// until then.
    InstallFds {
        /// The argument so far: commands are consumed, no returns are written.
        bwr: BinderWriteRead,
    },
}

/// An action that the front end has to take.
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
    /// A [`Freeze::Waiting`](crate::Freeze::Waiting) has ended: reply to its request.
    Freeze {
        /// Id of the freeze.
        id: FreezeId,
        /// The ioctl's result.
        result: Result<(), Errno>,
    },
}

/// Whether a read without work may be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The read waits until work arrives.
    Allowed,
    /// `O_NONBLOCK`: the read fails with `EAGAIN` instead.
    Refused,
}

/// Whether reads wait with a held confirmation ([`Driver::release_held_reads`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldReads {
    /// No read does.
    None,
    /// Some reads may.
    Some,
}

/// Result of a signal for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Interrupt {
    /// Its wait has ended: the ioctl fails with `EINTR` and returns this argument.
    Ended(BinderWriteRead),
    /// Its read returns a held confirmation: a [`Wake::Reader`] follows.
    Woken,
    /// It is not parked: its read has returned already.
    NotParked,
}

/// The queues from which a thread takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkScope {
    /// The thread's own queue.
    Thread,
    /// The thread's own queue and that of its process.
    Process,
}

/// Wake-ups for the front end; that of a reader is valid only while the same wait lasts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Wakes {
    pub queue: VecDeque<Pending>,
    pub next_token: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Pending {
    Reader { thread: ThreadId, token: u64 },
    Poll(ProcessId),
    Freeze(FreezeId),
}

impl Wakes {
    /// A pending freeze has to be checked.
    pub fn freeze(&mut self, id: FreezeId) {
        self.queue.push_back(Pending::Freeze(id));
    }
}
