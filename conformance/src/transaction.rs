//! Transactions of a script: data, objects and offsets, with correct or wrong addresses and sizes.

use binder_uapi::*;
use zerocopy::IntoBytes;

use crate::arena::Arena;

/// A transaction or reply under construction.
#[derive(Clone, Debug, Default)]
pub struct Tx {
    handle: u64,
    cookie: u64,
    code: u32,
    flags: u32,
    data: Vec<u8>,
    offsets: Vec<u8>,
    buffers_size: Option<u64>,
    data_address: Option<u64>,
    data_size: Option<u64>,
    offsets_address: Option<u64>,
    offsets_size: Option<u64>,
}

impl Tx {
    /// To a handle (ignored for a reply), with a code.
    pub fn to(handle: u32, code: u32) -> Self {
        Self { handle: handle.into(), code, ..Default::default() }
    }

    /// A reply, or a transaction without a target.
    pub fn new() -> Self {
        Self::default()
    }

    /// All 64 bits of the target.
    pub fn wide_target(mut self, target: u64) -> Self {
        self.handle = target;
        self
    }

    /// Sets the cookie, which drivers ignore in a command.
    pub fn cookie(mut self, cookie: u64) -> Self {
        self.cookie = cookie;
        self
    }

    /// Adds flags.
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    /// Makes it one-way.
    pub fn one_way(self) -> Self {
        self.flags(TF_ONE_WAY)
    }

    /// Appends plain data.
    pub fn data(mut self, bytes: &[u8]) -> Self {
        self.data.extend_from_slice(bytes);
        self
    }

    /// Appends an object at the next multiple of 4, with its offset.
    pub fn object(mut self, object: impl IntoBytes + zerocopy::Immutable) -> Self {
        self.data.resize(self.data.len().next_multiple_of(4), 0);
        let offset = self.data.len() as u64;
        self.data.extend_from_slice(object.as_bytes());
        self.offset(offset)
    }

    /// Appends an offset without an object.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offsets.extend_from_slice(offset.as_bytes());
        self
    }

    /// Makes it scatter-gather with this much extra space, bytes.
    pub fn buffers_size(mut self, size: u64) -> Self {
        self.buffers_size = Some(size);
        self
    }

    /// Sets a wrong address of the data.
    pub fn data_address(mut self, address: u64) -> Self {
        self.data_address = Some(address);
        self
    }

    /// Sets a wrong size of the data.
    pub fn data_size(mut self, size: u64) -> Self {
        self.data_size = Some(size);
        self
    }

    /// Sets a wrong address of the offsets.
    pub fn offsets_address(mut self, address: u64) -> Self {
        self.offsets_address = Some(address);
        self
    }

    /// Sets a wrong size of the offsets.
    pub fn offsets_size(mut self, size: u64) -> Self {
        self.offsets_size = Some(size);
        self
    }

    fn wire(&self, arena: &Arena) -> BinderTransactionData {
        BinderTransactionData {
            target: self.handle,
            cookie: self.cookie,
            code: self.code,
            flags: self.flags,
            sender_pid: 0,
            sender_euid: 0,
            data_size: self.data_size.unwrap_or(self.data.len() as u64),
            offsets_size: self.offsets_size.unwrap_or(self.offsets.len() as u64),
            buffer: self.data_address.unwrap_or_else(|| arena.place(&self.data)),
            offsets: self.offsets_address.unwrap_or_else(|| arena.place(&self.offsets)),
        }
    }

    /// The call as a command.
    pub fn transaction(&self, arena: &Arena) -> Command {
        Command::Transaction { data: self.wire(arena), buffers_size: self.buffers_size }
    }

    /// The reply as a command.
    pub fn reply(&self, arena: &Arena) -> Command {
        Command::Reply { data: self.wire(arena), buffers_size: self.buffers_size }
    }
}

/// An object of the sender.
pub fn local(ptr: u64, cookie: u64) -> FlatBinderObject {
    FlatBinderObject { ty: BINDER_TYPE_BINDER, flags: 0, binder: ptr, cookie }
}

/// A weak reference to an object of the sender.
pub fn weak_local(ptr: u64, cookie: u64) -> FlatBinderObject {
    FlatBinderObject { ty: BINDER_TYPE_WEAK_BINDER, ..local(ptr, cookie) }
}

/// A reference to an object by the sender's handle.
pub fn remote(handle: u32) -> FlatBinderObject {
    FlatBinderObject { ty: BINDER_TYPE_HANDLE, flags: 0, binder: handle.into(), cookie: 0 }
}

/// A weak reference by handle.
pub fn weak_remote(handle: u32) -> FlatBinderObject {
    FlatBinderObject { ty: BINDER_TYPE_WEAK_HANDLE, ..remote(handle) }
}

/// A file descriptor.
pub fn descriptor(fd: u32) -> BinderFdObject {
    BinderFdObject { ty: BINDER_TYPE_FD, pad_flags: 0, fd: fd.into(), cookie: 0 }
}

/// A buffer without a parent.
pub fn pointer(buffer: u64, length: u64) -> BinderBufferObject {
    BinderBufferObject { ty: BINDER_TYPE_PTR, buffer, length, ..Default::default() }
}

/// A buffer to which a parent buffer points.
pub fn pointer_in(parent: u64, offset: u64, buffer: u64, length: u64) -> BinderBufferObject {
    let flags = BINDER_BUFFER_FLAG_HAS_PARENT;
    BinderBufferObject { flags, parent, parent_offset: offset, ..pointer(buffer, length) }
}

/// An array of descriptors inside a buffer.
pub fn descriptors(num_fds: u64, parent: u64, parent_offset: u64) -> BinderFdArrayObject {
    BinderFdArrayObject { ty: BINDER_TYPE_FDA, pad: 0, num_fds, parent, parent_offset }
}
