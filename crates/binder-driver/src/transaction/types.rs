//! Data structures of transactions, their parties and their parcels.

use std::fmt;

use binder_uapi::returns::{BR_DEAD_REPLY, BR_FAILED_REPLY};
use binder_uapi::*;
use owners::Uid;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::buffer::types::{FileSlot, HeldObject, Layout};
use crate::errno::Errno;
use crate::host::{Caller, Priority};
use crate::keys::{BufferId, NodeId, ProcessId, ThreadId, TransactionId};

/// Kind of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The sender waits for the reply.
    Call,
    /// There is no reply.
    Oneway,
    /// The reply to a call.
    Reply,
}

impl Kind {
    /// The kind of a `BC_TRANSACTION` with these flags.
    pub fn of_transaction(flags: u32) -> Self {
        if flags & TF_ONE_WAY != 0 { Self::Oneway } else { Self::Call }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Call => "call",
            Kind::Oneway => "oneway",
            Kind::Reply => "reply",
        })
    }
}

/// One transaction. A one-way call and a reply end when delivered, a call when replied to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Transaction {
    /// Debug id.
    pub id: u32,
    pub kind: Kind,
    /// The thread that waits for the reply to a call; `None` once it has exited.
    pub from: Option<ThreadId>,
    pub from_parent: Option<TransactionId>,
    /// The thread that must receive a nested call, then the one that serves it.
    pub to_thread: Option<ThreadId>,
    pub to_parent: Option<TransactionId>,
    /// The receiver, while this transaction is among its outstanding ones.
    pub to: Option<ProcessId>,
    /// `None` once the receiver has freed it.
    pub buffer: Option<BufferId>,
    pub code: u32,
    pub flags: u32,
    pub sender_euid: Uid,
    /// The caller's priority; `None` if it is not inherited.
    pub priority: Option<Priority>,
    /// The priority to restore of the thread that serves the call.
    pub own_priority: Option<Priority>,
}

/// The sending side of one command.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub caller: Caller,
    pub thread: ThreadId,
}

/// A read whose transaction has file descriptors, until they are installed in the reader.
#[derive(Debug, Serialize, Deserialize)]
pub struct FdDelivery {
    /// The read returned without the transaction.
    pub is_deferred: bool,
    pub request: ReadRequest,
    pub transaction: TransactionId,
    /// The returns of the read, and the offset of the transaction in them.
    pub returns: Vec<u8>,
    pub transaction_at: usize,
}

/// Contents of a `BC_TRANSACTION` or `BC_REPLY`.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Debug id of the transaction.
    pub id: u32,
    pub kind: Kind,
    pub data: &'a BinderTransactionData,
    /// Bytes of scatter-gather buffers.
    pub extra_size: u64,
}

/// Why a transaction was not sent: the sender's `BR_` word and the extended error's errno.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub word: u32,
    /// `None`: the sender made no error.
    pub errno: Option<Errno>,
    /// The call to which this is the reply, which fails as well.
    pub in_reply_to: Option<TransactionId>,
}

impl Failure {
    /// The extended error's negative errno; 0: none.
    pub fn param(&self) -> i32 {
        self.errno.map_or(0, |errno| -errno.code())
    }

    /// The transaction had no effect and is sent again, as client memory is late.
    pub fn is_restart(&self) -> bool {
        self.errno == Some(Errno::ERESTART)
    }

    pub fn dead(errno: Errno) -> Self {
        Self { word: BR_DEAD_REPLY, errno: Some(errno), in_reply_to: None }
    }
}

impl From<Errno> for Failure {
    /// A missing mapping is treated as a dead target.
    fn from(errno: Errno) -> Self {
        let word = if errno == Errno::ESRCH { BR_DEAD_REPLY } else { BR_FAILED_REPLY };
        Self { word, errno: Some(errno), in_reply_to: None }
    }
}

/// The target of a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub process: ProcessId,
    /// The node, with a local strong reference for the buffer. `None` for a reply.
    pub node: Option<NodeId>,
    /// The thread that must receive it.
    pub thread: Option<ThreadId>,
    /// The target accepts descriptors.
    pub accepts_fds: bool,
}

/// A read that is being served.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReadRequest {
    pub caller: Caller,
    pub thread: ThreadId,
    #[serde(with = "crate::state::wire_bytes")]
    pub bwr: BinderWriteRead,
}

/// A transaction that a read has taken.
#[derive(Clone, Copy, Debug)]
pub struct Arriving {
    pub transaction: TransactionId,
    /// Offset of the transaction in the returns of the read.
    pub at: usize,
}

/// Position of an object in a parcel.
#[derive(Clone, Copy, Debug)]
pub struct ObjectPlace {
    /// Index in the table of offsets.
    pub index: u64,
    /// Offset in the data.
    pub at: u64,
}

/// Private copy of a parcel that is being sent, and the references that its buffer will hold.
pub struct Parcel<'a> {
    /// Data, offsets and extra buffers in their layout.
    pub bytes: &'a mut [u8],
    pub layout: Layout,
    /// The receiver's address of `bytes`.
    pub address: u64,
    pub held: &'a mut Vec<HeldObject>,
    pub files: &'a mut Vec<FileSlot>,
    /// The target accepts descriptors.
    pub accepts_fds: bool,
}

impl Parcel<'_> {
    /// The offset of the object with this index; `EINVAL` if there is none.
    pub fn object_at(&self, index: u64) -> Result<u64, Errno> {
        if index >= self.layout.offsets_size / 8 {
            return Err(Errno::EINVAL);
        }
        self.get(self.layout.offsets_at + index * 8)
    }

    /// Reads a value from the copy; `EINVAL` if it is outside.
    pub fn get<T: FromBytes>(&self, at: u64) -> Result<T, Errno> {
        let from = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..));
        from.and_then(|bytes| T::read_from_prefix(bytes).ok())
            .map(|(value, _)| value)
            .ok_or(Errno::EINVAL)
    }

    /// Replaces a value in the copy.
    pub fn put<T: IntoBytes + Immutable>(&mut self, at: u64, value: &T) -> Result<(), Errno> {
        let into = usize::try_from(at).ok().and_then(|at| self.bytes.get_mut(at..));
        into.and_then(|bytes| value.write_to_prefix(bytes).ok()).ok_or(Errno::EINVAL)
    }

    /// The type and size of the object at an offset in the data; `EINVAL` if it is misaligned,
    /// unknown or not wholly inside.
    pub fn object(&self, at: u64) -> Result<(u32, u64), Errno> {
        if !at.is_multiple_of(4) || at >= self.layout.data_size {
            return Err(Errno::EINVAL);
        }
        let ty: u32 = self.get(at)?;
        let size = match ty {
            BINDER_TYPE_BINDER
            | BINDER_TYPE_WEAK_BINDER
            | BINDER_TYPE_HANDLE
            | BINDER_TYPE_WEAK_HANDLE => size_of::<FlatBinderObject>(),
            BINDER_TYPE_FD => size_of::<BinderFdObject>(),
            BINDER_TYPE_FDA => size_of::<BinderFdArrayObject>(),
            BINDER_TYPE_PTR => size_of::<BinderBufferObject>(),
            _ => return Err(Errno::EINVAL),
        } as u64;
        if self.layout.data_size - at < size {
            return Err(Errno::EINVAL);
        }
        Ok((ty, size))
    }
}
