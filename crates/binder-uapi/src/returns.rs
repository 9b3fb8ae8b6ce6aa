//! `BR_` returns: written by the driver, parsed by a client.

use crate::command::{Cursor, StreamError, put};
use crate::ioctl::{io, ior, payload_len};
use crate::*;

/// An error code for the thread.
pub const BR_ERROR: u32 = ior::<i32>(b'r', 0);
/// Success; our driver uses it only in an extended error, for "no error".
pub const BR_OK: u32 = io(b'r', 1);
/// A transaction with the sender's security context.
pub const BR_TRANSACTION_SEC_CTX: u32 = ior::<BinderTransactionDataSecctx>(b'r', 2);
/// A transaction.
pub const BR_TRANSACTION: u32 = ior::<BinderTransactionData>(b'r', 2);
/// A reply.
pub const BR_REPLY: u32 = ior::<BinderTransactionData>(b'r', 3);
/// Never sent.
pub const BR_ACQUIRE_RESULT: u32 = ior::<i32>(b'r', 4);
/// The target is dead.
pub const BR_DEAD_REPLY: u32 = io(b'r', 5);
/// The last transaction or reply was accepted.
pub const BR_TRANSACTION_COMPLETE: u32 = io(b'r', 6);
/// First weak reference from outside.
pub const BR_INCREFS: u32 = ior::<BinderPtrCookie>(b'r', 7);
/// First strong reference from outside.
pub const BR_ACQUIRE: u32 = ior::<BinderPtrCookie>(b'r', 8);
/// Last strong reference from outside is gone.
pub const BR_RELEASE: u32 = ior::<BinderPtrCookie>(b'r', 9);
/// Last weak reference from outside is gone.
pub const BR_DECREFS: u32 = ior::<BinderPtrCookie>(b'r', 10);
/// Never sent.
pub const BR_ATTEMPT_ACQUIRE: u32 = ior::<BinderPriPtrCookie>(b'r', 11);
/// First word of every read.
pub const BR_NOOP: u32 = io(b'r', 12);
/// Requests that the process starts another looper.
pub const BR_SPAWN_LOOPER: u32 = io(b'r', 13);
/// Never sent.
pub const BR_FINISHED: u32 = io(b'r', 14);
/// The owner of a watched node died.
pub const BR_DEAD_BINDER: u32 = ior::<u64>(b'r', 15);
/// A death notification was withdrawn.
pub const BR_CLEAR_DEATH_NOTIFICATION_DONE: u32 = ior::<u64>(b'r', 16);
/// The last transaction failed; `BINDER_GET_EXTENDED_ERROR` returns the reason.
pub const BR_FAILED_REPLY: u32 = io(b'r', 17);
/// The target is frozen.
pub const BR_FROZEN_REPLY: u32 = io(b'r', 18);
/// [`BR_TRANSACTION_COMPLETE`], and the sender floods the target with one-way calls.
pub const BR_ONEWAY_SPAM_SUSPECT: u32 = io(b'r', 19);
/// [`BR_TRANSACTION_COMPLETE`] of a one-way call to a frozen target.
pub const BR_TRANSACTION_PENDING_FROZEN: u32 = io(b'r', 20);
/// A watched node's owner was frozen or thawed.
pub const BR_FROZEN_BINDER: u32 = ior::<BinderFrozenStateInfo>(b'r', 21);
/// A freeze notification was withdrawn.
pub const BR_CLEAR_FREEZE_NOTIFICATION_DONE: u32 = ior::<u64>(b'r', 22);

/// One `BR_` return. The three that no driver ever sent ([`BR_ACQUIRE_RESULT`],
/// [`BR_ATTEMPT_ACQUIRE`], [`BR_FINISHED`]) have no variant: the parser treats them as unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// [`BR_ERROR`]: negative errno.
    Error(i32),
    /// [`BR_OK`].
    Ok,
    /// [`BR_TRANSACTION`].
    Transaction(BinderTransactionData),
    /// [`BR_TRANSACTION_SEC_CTX`].
    TransactionSecCtx(BinderTransactionDataSecctx),
    /// [`BR_REPLY`].
    Reply(BinderTransactionData),
    /// [`BR_DEAD_REPLY`].
    DeadReply,
    /// [`BR_TRANSACTION_COMPLETE`].
    TransactionComplete,
    /// [`BR_INCREFS`].
    IncRefs(BinderPtrCookie),
    /// [`BR_ACQUIRE`].
    Acquire(BinderPtrCookie),
    /// [`BR_RELEASE`].
    Release(BinderPtrCookie),
    /// [`BR_DECREFS`].
    DecRefs(BinderPtrCookie),
    /// [`BR_NOOP`].
    Noop,
    /// [`BR_SPAWN_LOOPER`].
    SpawnLooper,
    /// [`BR_DEAD_BINDER`]: the cookie.
    DeadBinder(u64),
    /// [`BR_CLEAR_DEATH_NOTIFICATION_DONE`]: the cookie.
    ClearDeathNotificationDone(u64),
    /// [`BR_FAILED_REPLY`].
    FailedReply,
    /// [`BR_FROZEN_REPLY`].
    FrozenReply,
    /// [`BR_ONEWAY_SPAM_SUSPECT`].
    OnewaySpamSuspect,
    /// [`BR_TRANSACTION_PENDING_FROZEN`].
    TransactionPendingFrozen,
    /// [`BR_FROZEN_BINDER`].
    FrozenBinder(BinderFrozenStateInfo),
    /// [`BR_CLEAR_FREEZE_NOTIFICATION_DONE`]: the cookie.
    ClearFreezeNotificationDone(u64),
}

impl Return {
    /// Appends the return's word and payload to `out`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        match *self {
            Return::Error(errno) => put(out, BR_ERROR, errno),
            Return::Ok => put(out, BR_OK, ()),
            Return::Transaction(data) => put(out, BR_TRANSACTION, data),
            Return::TransactionSecCtx(data) => put(out, BR_TRANSACTION_SEC_CTX, data),
            Return::Reply(data) => put(out, BR_REPLY, data),
            Return::DeadReply => put(out, BR_DEAD_REPLY, ()),
            Return::TransactionComplete => put(out, BR_TRANSACTION_COMPLETE, ()),
            Return::IncRefs(node) => put(out, BR_INCREFS, node),
            Return::Acquire(node) => put(out, BR_ACQUIRE, node),
            Return::Release(node) => put(out, BR_RELEASE, node),
            Return::DecRefs(node) => put(out, BR_DECREFS, node),
            Return::Noop => put(out, BR_NOOP, ()),
            Return::SpawnLooper => put(out, BR_SPAWN_LOOPER, ()),
            Return::DeadBinder(cookie) => put(out, BR_DEAD_BINDER, cookie),
            Return::ClearDeathNotificationDone(cookie) => {
                put(out, BR_CLEAR_DEATH_NOTIFICATION_DONE, cookie)
            }
            Return::FailedReply => put(out, BR_FAILED_REPLY, ()),
            Return::FrozenReply => put(out, BR_FROZEN_REPLY, ()),
            Return::OnewaySpamSuspect => put(out, BR_ONEWAY_SPAM_SUSPECT, ()),
            Return::TransactionPendingFrozen => put(out, BR_TRANSACTION_PENDING_FROZEN, ()),
            Return::FrozenBinder(info) => put(out, BR_FROZEN_BINDER, info),
            Return::ClearFreezeNotificationDone(cookie) => {
                put(out, BR_CLEAR_FREEZE_NOTIFICATION_DONE, cookie)
            }
        }
    }

    /// The `BR_` word of this return.
    pub const fn word(&self) -> u32 {
        match self {
            Return::Error(_) => BR_ERROR,
            Return::Ok => BR_OK,
            Return::Transaction(_) => BR_TRANSACTION,
            Return::TransactionSecCtx(_) => BR_TRANSACTION_SEC_CTX,
            Return::Reply(_) => BR_REPLY,
            Return::DeadReply => BR_DEAD_REPLY,
            Return::TransactionComplete => BR_TRANSACTION_COMPLETE,
            Return::IncRefs(_) => BR_INCREFS,
            Return::Acquire(_) => BR_ACQUIRE,
            Return::Release(_) => BR_RELEASE,
            Return::DecRefs(_) => BR_DECREFS,
            Return::Noop => BR_NOOP,
            Return::SpawnLooper => BR_SPAWN_LOOPER,
            Return::DeadBinder(_) => BR_DEAD_BINDER,
            Return::ClearDeathNotificationDone(_) => BR_CLEAR_DEATH_NOTIFICATION_DONE,
            Return::FailedReply => BR_FAILED_REPLY,
            Return::FrozenReply => BR_FROZEN_REPLY,
            Return::OnewaySpamSuspect => BR_ONEWAY_SPAM_SUSPECT,
            Return::TransactionPendingFrozen => BR_TRANSACTION_PENDING_FROZEN,
            Return::FrozenBinder(_) => BR_FROZEN_BINDER,
            Return::ClearFreezeNotificationDone(_) => BR_CLEAR_FREEZE_NOTIFICATION_DONE,
        }
    }

    /// Bytes that [`write_to`](Self::write_to) appends: the word and the size encoded in it.
    pub const fn encoded_len(&self) -> usize {
        4 + payload_len(self.word())
    }
}

/// Parses a stream of returns, one at a time; after an error it returns no more of them.
pub struct ReturnReader<'a> {
    cursor: Cursor<'a>,
    failed: bool,
}

impl<'a> ReturnReader<'a> {
    /// Starts at the first byte of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { cursor: Cursor { bytes, at: 0 }, failed: false }
    }

    /// Bytes parsed so far.
    pub fn consumed(&self) -> usize {
        self.cursor.at
    }

    fn parse(&mut self, word: u32) -> Result<Return, StreamError> {
        let c = &mut self.cursor;
        let mut unit = |value| c.payload::<()>(word).map(|()| value);
        Ok(match word {
            BR_OK => unit(Return::Ok)?,
            BR_DEAD_REPLY => unit(Return::DeadReply)?,
            BR_TRANSACTION_COMPLETE => unit(Return::TransactionComplete)?,
            BR_NOOP => unit(Return::Noop)?,
            BR_SPAWN_LOOPER => unit(Return::SpawnLooper)?,
            BR_FAILED_REPLY => unit(Return::FailedReply)?,
            BR_FROZEN_REPLY => unit(Return::FrozenReply)?,
            BR_ONEWAY_SPAM_SUSPECT => unit(Return::OnewaySpamSuspect)?,
            BR_TRANSACTION_PENDING_FROZEN => unit(Return::TransactionPendingFrozen)?,
            BR_ERROR => Return::Error(c.payload(word)?),
            BR_TRANSACTION => Return::Transaction(c.payload(word)?),
            BR_TRANSACTION_SEC_CTX => Return::TransactionSecCtx(c.payload(word)?),
            BR_REPLY => Return::Reply(c.payload(word)?),
            BR_INCREFS => Return::IncRefs(c.payload(word)?),
            BR_ACQUIRE => Return::Acquire(c.payload(word)?),
            BR_RELEASE => Return::Release(c.payload(word)?),
            BR_DECREFS => Return::DecRefs(c.payload(word)?),
            BR_DEAD_BINDER => Return::DeadBinder(c.payload(word)?),
            BR_CLEAR_DEATH_NOTIFICATION_DONE => {
                Return::ClearDeathNotificationDone(c.payload(word)?)
            }
            BR_FROZEN_BINDER => Return::FrozenBinder(c.payload(word)?),
            BR_CLEAR_FREEZE_NOTIFICATION_DONE => {
                Return::ClearFreezeNotificationDone(c.payload(word)?)
            }
            command => return Err(StreamError::Unknown { at: c.at, command }),
        })
    }
}

impl Iterator for ReturnReader<'_> {
    type Item = Result<Return, StreamError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let parsed = self.cursor.word()?.and_then(|word| self.parse(word));
        self.failed = parsed.is_err();
        Some(parsed)
    }
}
