//! Received data, read in place.

use binder_uapi::{BinderTransactionData, FlatBinderObject, TF_ONE_WAY, TF_STATUS_CODE};
use zerocopy::FromBytes;

use crate::{Client, ClientError};

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
