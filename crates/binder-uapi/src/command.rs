//! `BC_` commands: written by a client, parsed by the driver.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ioctl::{io, iow};
use crate::*;

/// Sends a transaction.
pub const BC_TRANSACTION: u32 = iow::<BinderTransactionData>(b'c', 0);
/// Replies to the transaction on top of the thread's stack.
pub const BC_REPLY: u32 = iow::<BinderTransactionData>(b'c', 1);
/// Never implemented: `EINVAL`.
pub const BC_ACQUIRE_RESULT: u32 = iow::<i32>(b'c', 2);
/// Releases a received buffer.
pub const BC_FREE_BUFFER: u32 = iow::<u64>(b'c', 3);
/// Takes a weak reference.
pub const BC_INCREFS: u32 = iow::<u32>(b'c', 4);
/// Takes a strong reference.
pub const BC_ACQUIRE: u32 = iow::<u32>(b'c', 5);
/// Drops a strong reference.
pub const BC_RELEASE: u32 = iow::<u32>(b'c', 6);
/// Drops a weak reference.
pub const BC_DECREFS: u32 = iow::<u32>(b'c', 7);
/// Acknowledges `BR_INCREFS`.
pub const BC_INCREFS_DONE: u32 = iow::<BinderPtrCookie>(b'c', 8);
/// Acknowledges `BR_ACQUIRE`.
pub const BC_ACQUIRE_DONE: u32 = iow::<BinderPtrCookie>(b'c', 9);
/// Never implemented: `EINVAL`.
pub const BC_ATTEMPT_ACQUIRE: u32 = iow::<BinderPriDesc>(b'c', 10);
/// A thread that the driver requested enters the pool.
pub const BC_REGISTER_LOOPER: u32 = io(b'c', 11);
/// A thread that the application started enters the pool.
pub const BC_ENTER_LOOPER: u32 = io(b'c', 12);
/// The thread leaves the pool.
pub const BC_EXIT_LOOPER: u32 = io(b'c', 13);
/// Requests a death notification.
pub const BC_REQUEST_DEATH_NOTIFICATION: u32 = iow::<BinderHandleCookie>(b'c', 14);
/// Withdraws a death notification.
pub const BC_CLEAR_DEATH_NOTIFICATION: u32 = iow::<BinderHandleCookie>(b'c', 15);
/// Acknowledges `BR_DEAD_BINDER`.
pub const BC_DEAD_BINDER_DONE: u32 = iow::<u64>(b'c', 16);
/// [`BC_TRANSACTION`] with scatter-gather buffers.
pub const BC_TRANSACTION_SG: u32 = iow::<BinderTransactionDataSg>(b'c', 17);
/// [`BC_REPLY`] with scatter-gather buffers.
pub const BC_REPLY_SG: u32 = iow::<BinderTransactionDataSg>(b'c', 18);
/// Requests freeze notifications.
pub const BC_REQUEST_FREEZE_NOTIFICATION: u32 = iow::<BinderHandleCookie>(b'c', 19);
/// Withdraws freeze notifications.
pub const BC_CLEAR_FREEZE_NOTIFICATION: u32 = iow::<BinderHandleCookie>(b'c', 20);
/// Acknowledges `BR_FROZEN_BINDER`.
pub const BC_FREEZE_NOTIFICATION_DONE: u32 = iow::<u64>(b'c', 21);

/// One parsed `BC_` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// [`BC_TRANSACTION`], or its SG form with `buffers_size` bytes of extra buffers.
    Transaction {
        /// The transaction.
        data: BinderTransactionData,
        /// `Some` for the SG form.
        buffers_size: Option<u64>,
    },
    /// [`BC_REPLY`], or its SG form.
    Reply {
        /// The reply.
        data: BinderTransactionData,
        /// `Some` for the SG form.
        buffers_size: Option<u64>,
    },
    /// [`BC_ACQUIRE_RESULT`].
    AcquireResult(i32),
    /// [`BC_FREE_BUFFER`]: the buffer's address.
    FreeBuffer(u64),
    /// [`BC_INCREFS`]: a handle.
    IncRefs(u32),
    /// [`BC_ACQUIRE`]: a handle.
    Acquire(u32),
    /// [`BC_RELEASE`]: a handle.
    Release(u32),
    /// [`BC_DECREFS`]: a handle.
    DecRefs(u32),
    /// [`BC_INCREFS_DONE`].
    IncRefsDone(BinderPtrCookie),
    /// [`BC_ACQUIRE_DONE`].
    AcquireDone(BinderPtrCookie),
    /// [`BC_ATTEMPT_ACQUIRE`].
    AttemptAcquire(BinderPriDesc),
    /// [`BC_REGISTER_LOOPER`].
    RegisterLooper,
    /// [`BC_ENTER_LOOPER`].
    EnterLooper,
    /// [`BC_EXIT_LOOPER`].
    ExitLooper,
    /// [`BC_REQUEST_DEATH_NOTIFICATION`].
    RequestDeathNotification(BinderHandleCookie),
    /// [`BC_CLEAR_DEATH_NOTIFICATION`].
    ClearDeathNotification(BinderHandleCookie),
    /// [`BC_DEAD_BINDER_DONE`]: the notification's cookie.
    DeadBinderDone(u64),
    /// [`BC_REQUEST_FREEZE_NOTIFICATION`].
    RequestFreezeNotification(BinderHandleCookie),
    /// [`BC_CLEAR_FREEZE_NOTIFICATION`].
    ClearFreezeNotification(BinderHandleCookie),
    /// [`BC_FREEZE_NOTIFICATION_DONE`]: the notification's cookie.
    FreezeNotificationDone(u64),
}

/// Why parsing a stream stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Fewer bytes are left than the command word or its payload needs.
    #[error(
        "stream ends inside command {command:#010x} at byte {at}: {need} bytes needed, {have} left"
    )]
    Truncated {
        /// Offset of the command.
        at: usize,
        /// The command, or 0 if its word is incomplete.
        command: u32,
        /// Bytes needed from `at` on.
        need: usize,
        /// Bytes left from `at` on.
        have: usize,
    },
    /// No such command.
    #[error("unknown command {command:#010x} at byte {at}")]
    Unknown {
        /// Offset of the command.
        at: usize,
        /// The unknown word.
        command: u32,
    },
}

/// Reads words and payloads off a byte stream; shared by both directions.
pub(crate) struct Cursor<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl Cursor<'_> {
    /// Reads the command word at the cursor without moving; `None` at the end.
    pub(crate) fn word(&self) -> Option<Result<u32, StreamError>> {
        let rest = &self.bytes[self.at..];
        if rest.is_empty() {
            return None;
        }
        Some(u32::read_from_prefix(rest).map(|(word, _)| word).map_err(|_| {
            StreamError::Truncated { at: self.at, command: 0, need: 4, have: rest.len() }
        }))
    }

    /// Reads the payload behind `command` and moves past both.
    pub(crate) fn payload<T: FromBytes>(&mut self, command: u32) -> Result<T, StreamError> {
        let rest = &self.bytes[self.at..];
        let need = 4 + size_of::<T>();
        let value = rest
            .get(4..)
            .and_then(|r| T::read_from_prefix(r).ok())
            .ok_or(StreamError::Truncated { at: self.at, command, need, have: rest.len() })?;
        self.at += need;
        Ok(value.0)
    }
}

/// Parses a stream of commands, one at a time; after an error it returns no more commands.
pub struct CommandReader<'a> {
    cursor: Cursor<'a>,
    failed: bool,
}

impl<'a> CommandReader<'a> {
    /// Starts at the first byte of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { cursor: Cursor { bytes, at: 0 }, failed: false }
    }

    /// Bytes parsed so far: the end of the last complete command.
    pub fn consumed(&self) -> usize {
        self.cursor.at
    }

    fn parse(&mut self, word: u32) -> Result<Command, StreamError> {
        let c = &mut self.cursor;
        Ok(match word {
            BC_TRANSACTION => Command::Transaction { data: c.payload(word)?, buffers_size: None },
            BC_REPLY => Command::Reply { data: c.payload(word)?, buffers_size: None },
            BC_TRANSACTION_SG => {
                let sg: BinderTransactionDataSg = c.payload(word)?;
                Command::Transaction {
                    data: sg.transaction_data,
                    buffers_size: Some(sg.buffers_size),
                }
            }
            BC_REPLY_SG => {
                let sg: BinderTransactionDataSg = c.payload(word)?;
                Command::Reply { data: sg.transaction_data, buffers_size: Some(sg.buffers_size) }
            }
            BC_ACQUIRE_RESULT => Command::AcquireResult(c.payload(word)?),
            BC_FREE_BUFFER => Command::FreeBuffer(c.payload(word)?),
            BC_INCREFS => Command::IncRefs(c.payload(word)?),
            BC_ACQUIRE => Command::Acquire(c.payload(word)?),
            BC_RELEASE => Command::Release(c.payload(word)?),
            BC_DECREFS => Command::DecRefs(c.payload(word)?),
            BC_INCREFS_DONE => Command::IncRefsDone(c.payload(word)?),
            BC_ACQUIRE_DONE => Command::AcquireDone(c.payload(word)?),
            BC_ATTEMPT_ACQUIRE => Command::AttemptAcquire(c.payload(word)?),
            BC_REGISTER_LOOPER => {
                c.payload::<()>(word)?;
                Command::RegisterLooper
            }
            BC_ENTER_LOOPER => {
                c.payload::<()>(word)?;
                Command::EnterLooper
            }
            BC_EXIT_LOOPER => {
                c.payload::<()>(word)?;
                Command::ExitLooper
            }
            BC_REQUEST_DEATH_NOTIFICATION => Command::RequestDeathNotification(c.payload(word)?),
            BC_CLEAR_DEATH_NOTIFICATION => Command::ClearDeathNotification(c.payload(word)?),
            BC_DEAD_BINDER_DONE => Command::DeadBinderDone(c.payload(word)?),
            BC_REQUEST_FREEZE_NOTIFICATION => Command::RequestFreezeNotification(c.payload(word)?),
            BC_CLEAR_FREEZE_NOTIFICATION => Command::ClearFreezeNotification(c.payload(word)?),
            BC_FREEZE_NOTIFICATION_DONE => Command::FreezeNotificationDone(c.payload(word)?),
            command => return Err(StreamError::Unknown { at: c.at, command }),
        })
    }
}

impl Iterator for CommandReader<'_> {
    type Item = Result<Command, StreamError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let parsed = self.cursor.word()?.and_then(|word| self.parse(word));
        self.failed = parsed.is_err();
        Some(parsed)
    }
}

pub(crate) fn put<T: IntoBytes + Immutable>(out: &mut Vec<u8>, word: u32, payload: T) {
    out.extend_from_slice(word.as_bytes());
    out.extend_from_slice(payload.as_bytes());
}

impl Command {
    /// Appends the command's word and payload to `out`.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        match *self {
            Command::Transaction { data, buffers_size: None } => put(out, BC_TRANSACTION, data),
            Command::Transaction { data, buffers_size: Some(buffers_size) } => put(
                out,
                BC_TRANSACTION_SG,
                BinderTransactionDataSg { transaction_data: data, buffers_size },
            ),
            Command::Reply { data, buffers_size: None } => put(out, BC_REPLY, data),
            Command::Reply { data, buffers_size: Some(buffers_size) } => put(
                out,
                BC_REPLY_SG,
                BinderTransactionDataSg { transaction_data: data, buffers_size },
            ),
            Command::AcquireResult(result) => put(out, BC_ACQUIRE_RESULT, result),
            Command::FreeBuffer(address) => put(out, BC_FREE_BUFFER, address),
            Command::IncRefs(handle) => put(out, BC_INCREFS, handle),
            Command::Acquire(handle) => put(out, BC_ACQUIRE, handle),
            Command::Release(handle) => put(out, BC_RELEASE, handle),
            Command::DecRefs(handle) => put(out, BC_DECREFS, handle),
            Command::IncRefsDone(node) => put(out, BC_INCREFS_DONE, node),
            Command::AcquireDone(node) => put(out, BC_ACQUIRE_DONE, node),
            Command::AttemptAcquire(desc) => put(out, BC_ATTEMPT_ACQUIRE, desc),
            Command::RegisterLooper => put(out, BC_REGISTER_LOOPER, ()),
            Command::EnterLooper => put(out, BC_ENTER_LOOPER, ()),
            Command::ExitLooper => put(out, BC_EXIT_LOOPER, ()),
            Command::RequestDeathNotification(p) => put(out, BC_REQUEST_DEATH_NOTIFICATION, p),
            Command::ClearDeathNotification(p) => put(out, BC_CLEAR_DEATH_NOTIFICATION, p),
            Command::DeadBinderDone(cookie) => put(out, BC_DEAD_BINDER_DONE, cookie),
            Command::RequestFreezeNotification(p) => put(out, BC_REQUEST_FREEZE_NOTIFICATION, p),
            Command::ClearFreezeNotification(p) => put(out, BC_CLEAR_FREEZE_NOTIFICATION, p),
            Command::FreezeNotificationDone(cookie) => {
                put(out, BC_FREEZE_NOTIFICATION_DONE, cookie)
            }
        }
    }
}

// Compile-time proof that payloads may be read from any bytes.
const _: fn() = || {
    fn plain<T: FromBytes + IntoBytes + Immutable + KnownLayout>() {}
    plain::<BinderTransactionData>();
    plain::<BinderHandleCookie>();
};
