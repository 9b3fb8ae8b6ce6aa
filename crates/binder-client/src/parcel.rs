//! Data to send: bytes, and the offsets of the objects in them.

use std::os::fd::{AsRawFd, BorrowedFd};

use binder_uapi::{
    BINDER_BUFFER_FLAG_HAS_PARENT, BINDER_TYPE_BINDER, BINDER_TYPE_FD, BINDER_TYPE_HANDLE,
    BINDER_TYPE_PTR, BINDER_TYPE_WEAK_BINDER, BINDER_TYPE_WEAK_HANDLE, BinderBufferObject,
    FlatBinderObject,
};
use zerocopy::IntoBytes;

/// A message under construction. Objects start at multiples of 4, as the driver requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parcel {
    /// The data.
    pub data: Vec<u8>,
    /// Offsets of the objects in `data`, ascending.
    pub offsets: Vec<u64>,
    /// Memory of the buffer objects in `data`.
    pub buffers: Vec<Box<[u8]>>,
}

/// Place of a buffer object's address in an earlier buffer of its parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Index of the buffer's object among all objects.
    pub index: u64,
    /// Offset of the address in the buffer, bytes.
    pub offset: u64,
}

impl Parcel {
    /// An empty parcel.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.data.extend_from_slice(bytes);
        self
    }

    /// Appends an object at the next multiple of 8.
    pub fn object(mut self, object: FlatBinderObject) -> Self {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        self.offsets.push(self.data.len() as u64);
        self.data.extend_from_slice(object.as_bytes());
        self
    }

    /// Appends a strong reference to an object of this process.
    pub fn binder(self, ptr: u64, cookie: u64) -> Self {
        self.object(FlatBinderObject { ty: BINDER_TYPE_BINDER, flags: 0, binder: ptr, cookie })
    }

    /// Appends a weak reference to an object of this process.
    pub fn weak_binder(self, ptr: u64, cookie: u64) -> Self {
        self.object(FlatBinderObject { ty: BINDER_TYPE_WEAK_BINDER, flags: 0, binder: ptr, cookie })
    }

    /// Appends a strong reference to an object of another process.
    pub fn handle(self, handle: u32) -> Self {
        let binder = u64::from(handle);
        self.object(FlatBinderObject { ty: BINDER_TYPE_HANDLE, flags: 0, binder, cookie: 0 })
    }

    /// Appends a weak reference to an object of another process.
    pub fn weak_handle(self, handle: u32) -> Self {
        let binder = u64::from(handle);
        self.object(FlatBinderObject { ty: BINDER_TYPE_WEAK_HANDLE, flags: 0, binder, cookie: 0 })
    }

    /// Appends a file descriptor of this process; the receiver gets a duplicate.
    pub fn fd(self, fd: BorrowedFd<'_>) -> Self {
        let binder = fd.as_raw_fd() as u64;
        self.object(FlatBinderObject { ty: BINDER_TYPE_FD, flags: 0, binder, cookie: 0 })
    }

    /// Appends a buffer that the driver copies, at the next multiple of 4. Returns the index of its
    /// object.
    pub fn buffer(&mut self, bytes: &[u8], parent: Option<Parent>) -> u64 {
        let bytes: Box<[u8]> = bytes.into();
        let object = BinderBufferObject {
            ty: BINDER_TYPE_PTR,
            flags: if parent.is_some() { BINDER_BUFFER_FLAG_HAS_PARENT } else { 0 },
            buffer: bytes.as_ptr() as u64,
            length: bytes.len() as u64,
            parent: parent.map_or(0, |parent| parent.index),
            parent_offset: parent.map_or(0, |parent| parent.offset),
        };
        self.data.resize(self.data.len().next_multiple_of(4), 0);
        self.offsets.push(self.data.len() as u64);
        self.data.extend_from_slice(object.as_bytes());
        self.buffers.push(bytes);
        self.offsets.len() as u64 - 1
    }

    /// Borrows the parcel for sending.
    pub fn payload(&self) -> Payload<'_> {
        let lengths = self.buffers.iter().map(|buffer| buffer.len().next_multiple_of(8) as u64);
        let buffers_size = (!self.buffers.is_empty()).then(|| lengths.sum());
        Payload { data: &self.data, offsets: &self.offsets, buffers_size }
    }
}

/// The contents of a call, borrowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Payload<'a> {
    /// The data.
    pub data: &'a [u8],
    /// Offsets of the objects in `data`.
    pub offsets: &'a [u64],
    /// Memory that the receiver needs for buffer objects, bytes; `None` if there are none.
    pub buffers_size: Option<u64>,
}

impl<'a> Payload<'a> {
    /// Bytes without objects.
    pub fn bytes(data: &'a [u8]) -> Self {
        Self { data, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_aligned_and_their_offsets_are_kept() {
        let parcel = Parcel::new().bytes(b"abc").binder(1, 2).bytes(b"d").handle(7);
        assert_eq!(parcel.offsets, [8, 40]);
        assert_eq!(parcel.data.len(), 64);
        assert_eq!(&parcel.data[..4], b"abc\0");
        assert_eq!(parcel.data[8..12], BINDER_TYPE_BINDER.to_ne_bytes());
        assert_eq!(parcel.data[48..52], 7u32.to_ne_bytes());
        let payload = parcel.payload();
        assert_eq!((payload.data.len(), payload.offsets), (64, &[8, 40][..]));
    }
}
