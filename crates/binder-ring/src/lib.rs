//! Memory that one thread of a binder client shares with the driver's daemon, and its protocol.
//!
//! A thread that calls often attaches a *ring*: a sealed memfd of [`RING_BYTES`] that both map. It
//! then submits a `BINDER_WRITE_READ` by writing it there and waking the daemon, and waits on a
//! futex, instead of making a FUSE request. There is one ring per thread and open, so it has one
//! slot, and its thread waits on one word of it; the daemon waits on one word of each owner.
//!
//! * [`turn`]: whose turn it is, and whether the daemon watches or sleeps: the atomic part;
//! * [`page`]: the layout of the memory, and the contents of a call and of its result.
//!
//! No I/O: mapping, futexes and ioctls belong to the two users of this crate.
//!
//! The other side may be hostile. Each reads a word or a copy of the bytes once, checks the lengths
//! and uses only what it has copied.

#[doc(hidden)]
pub mod fuzzing;
pub mod page;
pub mod turn;

#[cfg(test)]
mod loom_tests;

/// The atomic types of the code that the loom tests include a second time, with loom's types.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
}

use binder_uapi::ioctl::BINDER_WRITE_READ;

/// Version of the layout and of the protocol: the daemon refuses any other.
pub const VERSION: u32 = 2;
/// Bytes of a ring, a multiple of the page size of the architectures that we support.
pub const RING_BYTES: usize = 32 << 10;
/// Bytes of a doorbell's memory, of which the first word is used: a page at most.
pub const DOORBELL_BYTES: usize = 4 << 10;

/// Number of the ioctls below, among those with the type byte of binder; the kernel's driver uses
/// numbers up to 19 and returns `EINVAL` for all others.
const FIRST_NUMBER: u32 = 0xe0;

const fn number(offset: u32, bytes: usize) -> u32 {
    let type_byte = BINDER_WRITE_READ & 0xff00;
    1 << 30 | (bytes as u32) << 16 | type_byte | (FIRST_NUMBER + offset)
}

/// Attaches a ring for the calling thread: [`Attach`].
pub const RING_ATTACH: u32 = number(0, size_of::<Attach>());
/// Ends the calling thread's pending call of its ring: its result is there when the ioctl returns.
pub const RING_INTERRUPT: u32 = number(1, size_of::<u32>());
/// Sends the files of the calling thread's deferred transaction over a socket (its number, `u32`).
pub const RING_FILES: u32 = number(2, size_of::<u32>());

/// Argument of [`RING_ATTACH`].
#[derive(Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
pub struct Attach {
    /// [`VERSION`].
    pub version: u32,
    /// Number of the memfd in the caller's process. It can be closed afterwards.
    pub memfd: u32,
    /// The number that the memory contains ([`page::Page::token`]): another thread of the caller
    /// may have replaced the descriptor.
    pub token: u64,
    /// Number of a socket in the caller's process, over which the daemon sends a memfd: the
    /// [doorbell](turn::Doorbell) of the caller's owner, [`DOORBELL_BYTES`] that are sealed against
    /// resizing.
    pub socket: u32,
    /// 0.
    pub reserved: u32,
}
