//! The binder wire protocol: ioctl numbers, structures, and `BC_`/`BR_` command streams.
//!
//! This crate is plain data in the 64-bit protocol (version 8), for little endian hosts, with the
//! names of the UAPI. Nothing does I/O. The numbers are checked against the distribution's own
//! `linux/android/binder.h` by `tests/header.rs`.
//!
//! The structures that cross the boundary are in the root, field for field, as zerocopy types.
//! Unions of the C header become the widest member with accessor methods for the others.
//!
//! * [`ioctl`]: the ioctl numbers of a device and of `binder-control`;
//! * [`command`]: `BC_` commands, client to driver: [`Command`], parser and writer;
//! * [`returns`]: `BR_` returns, driver to client: [`Return`], parser and writer;
//! * [`status`]: the state of a driver's objects, for status displays.
#![forbid(unsafe_code)]

pub mod command;
pub mod ioctl;
pub mod returns;
pub mod status;

pub use command::{Command, CommandReader, StreamError};
pub use returns::{Return, ReturnReader};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol version that `BINDER_VERSION` returns: 64-bit structures.
pub const CURRENT_PROTOCOL_VERSION: i32 = 8;

const fn pack_chars(a: u8, b: u8, c: u8, d: u8) -> u32 {
    (a as u32) << 24 | (b as u32) << 16 | (c as u32) << 8 | d as u32
}
const LARGE: u8 = 0x85;

/// Strong reference to an object of the sender.
pub const BINDER_TYPE_BINDER: u32 = pack_chars(b's', b'b', b'*', LARGE);
/// Weak reference to an object of the sender.
pub const BINDER_TYPE_WEAK_BINDER: u32 = pack_chars(b'w', b'b', b'*', LARGE);
/// Strong reference by handle.
pub const BINDER_TYPE_HANDLE: u32 = pack_chars(b's', b'h', b'*', LARGE);
/// Weak reference by handle.
pub const BINDER_TYPE_WEAK_HANDLE: u32 = pack_chars(b'w', b'h', b'*', LARGE);
/// One file descriptor.
pub const BINDER_TYPE_FD: u32 = pack_chars(b'f', b'd', b'*', LARGE);
/// An array of file descriptors inside a buffer object.
pub const BINDER_TYPE_FDA: u32 = pack_chars(b'f', b'd', b'a', LARGE);
/// A buffer of scatter-gather data.
pub const BINDER_TYPE_PTR: u32 = pack_chars(b'p', b't', b'*', LARGE);

/// Bits of [`FlatBinderObject::flags`] that hold the node's minimum priority.
pub const FLAT_BINDER_FLAG_PRIORITY_MASK: u32 = 0xff;
/// Bits of [`FlatBinderObject::flags`] that hold the scheduling policy which the minimum priority
/// is of (1: `SCHED_FIFO`, 2: `SCHED_RR`). Android's common kernel knows them, the mainline header
/// does not.
pub const FLAT_BINDER_FLAG_SCHED_POLICY_MASK: u32 = 0x600;
/// Shift of those bits.
pub const FLAT_BINDER_FLAG_SCHED_POLICY_SHIFT: u32 = 9;
/// The node is served with the real-time priority of its callers. Android's common kernel only,
/// too.
pub const FLAT_BINDER_FLAG_INHERIT_RT: u32 = 0x800;
/// The node accepts file descriptors.
pub const FLAT_BINDER_FLAG_ACCEPTS_FDS: u32 = 0x100;
/// The node requests the sender's security context with each transaction.
pub const FLAT_BINDER_FLAG_TXN_SECURITY_CTX: u32 = 0x1000;

/// The transaction is one-way: asynchronous, no reply.
pub const TF_ONE_WAY: u32 = 0x01;
/// The contents are the component's root object.
pub const TF_ROOT_OBJECT: u32 = 0x04;
/// The contents are a 32-bit status code.
pub const TF_STATUS_CODE: u32 = 0x08;
/// The sender accepts file descriptors in the reply.
pub const TF_ACCEPT_FDS: u32 = 0x10;
/// Zero the buffer when it is freed.
pub const TF_CLEAR_BUF: u32 = 0x20;
/// Replace an outdated pending one-way transaction.
pub const TF_UPDATE_TXN: u32 = 0x40;

/// [`BinderBufferObject`] names a parent buffer.
pub const BINDER_BUFFER_FLAG_HAS_PARENT: u32 = 0x01;
/// Longest name of a binderfs device, bytes.
pub const BINDERFS_MAX_NAME: usize = 255;

/// Defines a structure that is exchanged with the kernel or a client, as a zerocopy type. Import
/// zerocopy's `FromBytes`, `IntoBytes`, `Immutable` and `KnownLayout` beside it.
#[macro_export]
macro_rules! wire {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
    };
}

wire!(
    /// First word of every object in a transaction: `BINDER_TYPE_*`.
    BinderObjectHeader {
        /// `BINDER_TYPE_*`.
        ty: u32,
    }
);
wire!(
    /// `BINDER_TYPE_{,WEAK_}{BINDER,HANDLE}`: an object or a reference to one.
    FlatBinderObject {
        /// `BINDER_TYPE_*`.
        ty: u32,
        /// `FLAT_BINDER_FLAG_*`.
        flags: u32,
        /// Local object (`binder`), or the handle in the low 32 bits.
        binder: u64,
        /// Extra data of a local object.
        cookie: u64,
    }
);
impl FlatBinderObject {
    /// The union read as a handle.
    pub fn handle(&self) -> u32 {
        self.binder as u32
    }
}
wire!(
    /// `BINDER_TYPE_FD`: one file descriptor.
    BinderFdObject {
        /// `BINDER_TYPE_FD`.
        ty: u32,
        /// Unused.
        pad_flags: u32,
        /// The descriptor in the low 32 bits.
        fd: u64,
        /// Opaque to the driver.
        cookie: u64,
    }
);
wire!(
    /// `BINDER_TYPE_PTR`: a buffer to copy.
    BinderBufferObject {
        /// `BINDER_TYPE_PTR`.
        ty: u32,
        /// `BINDER_BUFFER_FLAG_*`.
        flags: u32,
        /// Address of the data.
        buffer: u64,
        /// Bytes of data.
        length: u64,
        /// Index of the parent in the offsets array.
        parent: u64,
        /// Offset in the parent of the pointer to this buffer.
        parent_offset: u64,
    }
);
wire!(
    /// `BINDER_TYPE_FDA`: an array of descriptors inside a parent buffer.
    BinderFdArrayObject {
        /// `BINDER_TYPE_FDA`.
        ty: u32,
        /// Unused.
        pad: u32,
        /// Number of descriptors.
        num_fds: u64,
        /// Index of the parent in the offsets array.
        parent: u64,
        /// Offset of the array in the parent.
        parent_offset: u64,
    }
);
wire!(
    /// Argument of `BINDER_WRITE_READ`.
    BinderWriteRead {
        /// Bytes of commands at `write_buffer`.
        write_size: u64,
        /// Bytes of commands that the driver has consumed.
        write_consumed: u64,
        /// Address of the commands.
        write_buffer: u64,
        /// Size of the read buffer, bytes.
        read_size: u64,
        /// Bytes of returns that the driver has written.
        read_consumed: u64,
        /// Address of the read buffer.
        read_buffer: u64,
    }
);
wire!(
    /// Argument of `BINDER_VERSION`.
    BinderVersion {
        /// [`CURRENT_PROTOCOL_VERSION`].
        protocol_version: i32,
    }
);
wire!(
    /// Argument of `BINDER_GET_NODE_DEBUG_INFO`.
    BinderNodeDebugInfo {
        /// The node's pointer in its owner.
        ptr: u64,
        /// The node's cookie.
        cookie: u64,
        /// 1 if strong references exist.
        has_strong_ref: u32,
        /// 1 if weak references exist.
        has_weak_ref: u32,
    }
);
wire!(
    /// Argument of `BINDER_GET_NODE_INFO_FOR_REF`.
    BinderNodeInfoForRef {
        /// A handle of the context manager.
        handle: u32,
        /// Strong references to the node.
        strong_count: u32,
        /// Weak references to the node.
        weak_count: u32,
        /// Must be 0.
        reserved1: u32,
        /// Must be 0.
        reserved2: u32,
        /// Must be 0.
        reserved3: u32,
    }
);
wire!(
    /// Argument of `BINDER_FREEZE`.
    BinderFreezeInfo {
        /// Process whose opens are frozen or thawed.
        pid: u32,
        /// 1 freezes, 0 thaws.
        enable: u32,
        /// Maximum time to wait for pending transactions, milliseconds.
        timeout_ms: u32,
    }
);
wire!(
    /// Argument of `BINDER_GET_FROZEN_INFO`.
    BinderFrozenStatusInfo {
        /// Process whose opens are inspected.
        pid: u32,
        /// Bit 0: a sync call was received while frozen; bit 1: one was pending while freezing.
        sync_recv: u32,
        /// 1 if a one-way call was received while frozen.
        async_recv: u32,
    }
);
wire!(
    /// Argument of `BINDER_GET_EXTENDED_ERROR`.
    BinderExtendedError {
        /// Debug id of the failed transaction.
        id: u32,
        /// The `BR_` word that the thread received.
        command: u32,
        /// Negative errno.
        param: i32,
    }
);
wire!(
    /// `BC_TRANSACTION`, `BC_REPLY`, `BR_TRANSACTION`, `BR_REPLY`.
    BinderTransactionData {
        /// Handle (commands, low 32 bits) or node pointer (returns).
        target: u64,
        /// The node's cookie (returns).
        cookie: u64,
        /// Transaction code, defined by the clients.
        code: u32,
        /// `TF_*`.
        flags: u32,
        /// Pid of the sender (returns); 0 for one-way.
        sender_pid: i32,
        /// Effective uid of the sender (returns).
        sender_euid: u32,
        /// Bytes of data.
        data_size: u64,
        /// Bytes of the offsets array.
        offsets_size: u64,
        /// Address of the data.
        buffer: u64,
        /// Address of the offsets array.
        offsets: u64,
    }
);
impl BinderTransactionData {
    /// The target union read as a handle.
    pub fn handle(&self) -> u32 {
        self.target as u32
    }
}
wire!(
    /// `BR_TRANSACTION_SEC_CTX`.
    BinderTransactionDataSecctx {
        /// The transaction.
        transaction_data: BinderTransactionData,
        /// Address of the sender's security context, NUL-terminated, in the buffer.
        secctx: u64,
    }
);
wire!(
    /// `BC_TRANSACTION_SG`, `BC_REPLY_SG`.
    BinderTransactionDataSg {
        /// The transaction.
        transaction_data: BinderTransactionData,
        /// Bytes of all scatter-gather buffers.
        buffers_size: u64,
    }
);
wire!(
    /// A node's identity in its owner.
    BinderPtrCookie {
        /// Pointer.
        ptr: u64,
        /// Cookie.
        cookie: u64,
    }
);
/// A handle and the cookie of a notification; packed, 12 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, packed)]
pub struct BinderHandleCookie {
    /// The caller's handle.
    pub handle: u32,
    /// The caller's cookie.
    pub cookie: u64,
}
wire!(
    /// `BC_ATTEMPT_ACQUIRE`; never implemented by any driver.
    BinderPriDesc {
        /// Priority.
        priority: i32,
        /// Handle.
        desc: u32,
    }
);
wire!(
    /// `BR_ATTEMPT_ACQUIRE`; never sent by any driver.
    BinderPriPtrCookie {
        /// Priority.
        priority: i32,
        /// Unused; the C header leaves it to the compiler.
        pad: u32,
        /// Pointer.
        ptr: u64,
        /// Cookie.
        cookie: u64,
    }
);
wire!(
    /// `BR_FROZEN_BINDER`.
    BinderFrozenStateInfo {
        /// The watcher's cookie.
        cookie: u64,
        /// 1 frozen, 0 not.
        is_frozen: u32,
        /// 0.
        reserved: u32,
    }
);
/// Argument of `BINDER_CTL_ADD`, 264 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BinderfsDevice {
    /// NUL-terminated name.
    pub name: [u8; BINDERFS_MAX_NAME + 1],
    /// Filled in by the driver.
    pub major: u32,
    /// Filled in by the driver.
    pub minor: u32,
}
