//! ioctl numbers, as encoded by the kernel's `_IO*` macros (type, number, direction and size).

use crate::*;

const NONE: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;

/// Encodes an ioctl (or `BC_`/`BR_`) number: direction in bits 30-31, size in 16-29, type in
/// 8-15, number in 0-7.
pub(crate) const fn encode(dir: u32, ty: u8, nr: u8, size: usize) -> u32 {
    dir << 30 | (size as u32) << 16 | (ty as u32) << 8 | nr as u32
}
/// Size of the payload behind a command, return or ioctl word, bytes, as encoded in the word.
pub const fn payload_len(word: u32) -> usize {
    (word >> 16 & 0x3fff) as usize
}
pub(crate) const fn io(ty: u8, nr: u8) -> u32 {
    encode(NONE, ty, nr, 0)
}
pub(crate) const fn iow<T>(ty: u8, nr: u8) -> u32 {
    encode(WRITE, ty, nr, size_of::<T>())
}
pub(crate) const fn ior<T>(ty: u8, nr: u8) -> u32 {
    encode(READ, ty, nr, size_of::<T>())
}
pub(crate) const fn iowr<T>(ty: u8, nr: u8) -> u32 {
    encode(READ | WRITE, ty, nr, size_of::<T>())
}

/// Run commands, then wait for returns: [`BinderWriteRead`].
pub const BINDER_WRITE_READ: u32 = iowr::<BinderWriteRead>(b'b', 1);
/// Never implemented by any driver: `EINVAL`.
pub const BINDER_SET_IDLE_TIMEOUT: u32 = iow::<i64>(b'b', 3);
/// Maximum number of loopers that the driver may request from the process.
pub const BINDER_SET_MAX_THREADS: u32 = iow::<u32>(b'b', 5);
/// Never implemented by any driver: `EINVAL`.
pub const BINDER_SET_IDLE_PRIORITY: u32 = iow::<i32>(b'b', 6);
/// Become the context manager (handle 0).
pub const BINDER_SET_CONTEXT_MGR: u32 = iow::<i32>(b'b', 7);
/// The calling thread is about to exit; its argument is ignored.
pub const BINDER_THREAD_EXIT: u32 = iow::<i32>(b'b', 8);
/// Protocol version: [`BinderVersion`].
pub const BINDER_VERSION: u32 = iowr::<BinderVersion>(b'b', 9);
/// First node whose pointer is above the given one: [`BinderNodeDebugInfo`].
pub const BINDER_GET_NODE_DEBUG_INFO: u32 = iowr::<BinderNodeDebugInfo>(b'b', 11);
/// Reference counts of the node behind a handle, for the context manager: [`BinderNodeInfoForRef`].
pub const BINDER_GET_NODE_INFO_FOR_REF: u32 = iowr::<BinderNodeInfoForRef>(b'b', 12);
/// Become the context manager, with node flags: [`FlatBinderObject`].
pub const BINDER_SET_CONTEXT_MGR_EXT: u32 = iow::<FlatBinderObject>(b'b', 13);
/// Freeze or thaw every open of a pid: [`BinderFreezeInfo`].
pub const BINDER_FREEZE: u32 = iow::<BinderFreezeInfo>(b'b', 14);
/// Calls that a frozen process has received: [`BinderFrozenStatusInfo`].
pub const BINDER_GET_FROZEN_INFO: u32 = iowr::<BinderFrozenStatusInfo>(b'b', 15);
/// Turn one-way spam detection on or off (`u32`).
pub const BINDER_ENABLE_ONEWAY_SPAM_DETECTION: u32 = iow::<u32>(b'b', 16);
/// Read and clear the calling thread's last extended error: [`BinderExtendedError`].
pub const BINDER_GET_EXTENDED_ERROR: u32 = iowr::<BinderExtendedError>(b'b', 17);

/// On `binder-control`: add a device: [`BinderfsDevice`].
pub const BINDER_CTL_ADD: u32 = iowr::<BinderfsDevice>(b'b', 1);
