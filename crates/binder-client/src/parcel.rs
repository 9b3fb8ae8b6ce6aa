//! Data to send: bytes, and the offsets of the objects in them. Received data, read in place.

use std::os::fd::{AsRawFd, BorrowedFd};

use binder_uapi::{
    BINDER_BUFFER_FLAG_HAS_PARENT, BINDER_TYPE_BINDER, BINDER_TYPE_FD, BINDER_TYPE_HANDLE,
    BINDER_TYPE_PTR, BINDER_TYPE_WEAK_BINDER, BINDER_TYPE_WEAK_HANDLE, BinderBufferObject,
    BinderTransactionData, FlatBinderObject, TF_ONE_WAY, TF_STATUS_CODE,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{Client, ClientError};

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

/// A transaction or a reply whose buffer is still in the mapping.
///
/// Return it with [`Session::free`](crate::Session::free): if it is dropped, the buffer stays in
/// use until the device is closed.
#[must_use = "the buffer stays taken until Session::free"]
#[derive(Clone)]
pub struct Received<'c> {
    client: &'c Client,
    transaction: BinderTransactionData,
    secctx: Option<u64>,
}

impl std::fmt::Debug for Received<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.transaction.fmt(f)
    }
}

impl<'c> Received<'c> {
    pub(crate) fn new(
        client: &'c Client,
        transaction: BinderTransactionData,
        secctx: Option<u64>,
    ) -> Self {
        Self { client, transaction, secctx }
    }

    /// The driver's description of the transaction.
    pub fn transaction(&self) -> &BinderTransactionData {
        &self.transaction
    }

    /// The sender's code.
    pub fn code(&self) -> u32 {
        self.transaction.code
    }

    /// The sender does not wait for a reply.
    pub fn is_one_way(&self) -> bool {
        self.transaction.flags & TF_ONE_WAY != 0
    }

    /// Address of the buffer in the mapping: what `BC_FREE_BUFFER` takes.
    pub fn address(&self) -> u64 {
        self.transaction.buffer
    }

    /// Address of the sender's security context, if the node requested it.
    pub fn security_context(&self) -> Option<u64> {
        self.secctx
    }

    /// The data, in the mapping.
    pub fn data(&self) -> Result<&[u8], ClientError> {
        self.client.view(self.transaction.buffer, self.transaction.data_size)
    }

    /// The contents of a buffer object, in the mapping.
    pub fn buffer(&self, address: u64, len: u64) -> Result<&[u8], ClientError> {
        self.client.view(address, len)
    }

    /// Offsets of the objects in the data.
    pub fn offsets(&self) -> Result<Vec<u64>, ClientError> {
        let bytes = self.client.view(self.transaction.offsets, self.transaction.offsets_size)?;
        let (words, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(ClientError::Contents("the offsets array is not whole words"));
        }
        Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// The objects, all of which must be references.
    pub fn objects(&self) -> Result<Vec<FlatBinderObject>, ClientError> {
        let data = self.data()?;
        let object = |offset: u64| {
            let rest = usize::try_from(offset).ok().and_then(|at| data.get(at..));
            let object = rest.and_then(|rest| FlatBinderObject::read_from_prefix(rest).ok());
            object
                .map(|(object, _)| object)
                .ok_or(ClientError::Contents("an object lies outside of the data"))
        };
        self.offsets()?.into_iter().map(object).collect()
    }

    /// The status code, if the sender replied with one instead of data (`TF_STATUS_CODE`).
    pub fn status(&self) -> Result<Option<i32>, ClientError> {
        if self.transaction.flags & TF_STATUS_CODE == 0 {
            return Ok(None);
        }
        let status = self.data()?.try_into().map(i32::from_ne_bytes);
        status.map(Some).map_err(|_| ClientError::Contents("a status code is not 4 bytes long"))
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
