//! The state of a driver's objects for status displays, as debugfs shows the kernel's
//! (`binder/proc`): serialisable, with the names of the control socket.

use serde::{Deserialize, Serialize};

/// The unit of numbers of pages, bytes, on machines with any size of pages.
pub const PAGE_BYTES: u64 = 4096;

/// A thread of an open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Looper state in words.
    pub looper: String,
    /// Blocked in a read.
    pub waiting: bool,
    /// Depth of its transaction stack.
    pub stack: u32,
    /// Work items in its own queue, for tests of a driver: no message contains them.
    #[serde(skip)]
    pub queued: u32,
}

/// An object (node).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The owner's pointer.
    pub ptr: u64,
    /// The owner's cookie.
    pub cookie: u64,
    /// Strong references by other processes.
    pub strong: u32,
    /// Weak references by other processes.
    pub weak: u32,
    /// Handles that refer to it.
    pub handles: u32,
}

/// A handle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// The handle's number.
    pub handle: u32,
    /// Strong references by this process.
    pub strong: u32,
    /// Weak references by this process.
    pub weak: u32,
    /// Pid of the node's owner; `None` if the node is dead: its owner has closed the device.
    pub owner: Option<u32>,
    /// A death notification is registered.
    pub death: bool,
}

/// State of the mapping of a receive buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffers {
    /// Size of the mapping, bytes; 0 until it is known.
    pub mapped_bytes: u64,
    /// Live buffers.
    pub count: u32,
    /// Size of the live buffers, bytes.
    pub bytes: u64,
    /// Remaining space for one-way calls, bytes.
    pub async_free_bytes: u64,
    /// Pages that hold memory, [`PAGE_BYTES`] each.
    pub touched_pages: u32,
    /// Of these, pages on which no buffer lies.
    pub idle_pages: u32,
}
