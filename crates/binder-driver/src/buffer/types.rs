//! Data structures of buffers and receive areas.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::buffer::allocator::Allocator;
use crate::buffer::pages::AreaPages;
use crate::errno::Errno;
use crate::host::{FileToken, Mapping};
use crate::keys::{AccountId, BufferId, NodeId, ProcessId, RefId, TransactionId};
use crate::limits::MAX_MAPPING;
use crate::objects::types::Strength;

/// Layout of a buffer: data, offsets, extra (scatter-gather), the sender's security context; each
/// padded to 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    pub data_size: u64,
    pub offsets_size: u64,
    /// Offset of the offsets array.
    pub offsets_at: u64,
    /// Offset of the extra buffers.
    pub extra_at: u64,
    /// End of the extra buffers, and offset of the sender's security context.
    pub extra_end: u64,
    pub total: u64,
}

impl Layout {
    /// `EINVAL` if the sum of the sizes does not fit in 64 bits.
    pub fn new(
        data_size: u64,
        offsets_size: u64,
        extra_size: u64,
        context_size: u64,
    ) -> Result<Self, Errno> {
        let padded = |size: u64| size.checked_next_multiple_of(8).ok_or(Errno::EINVAL);
        let offsets_at = padded(data_size)?;
        let extra_at = offsets_at.checked_add(padded(offsets_size)?).ok_or(Errno::EINVAL)?;
        let extra_end = extra_at.checked_add(padded(extra_size)?).ok_or(Errno::EINVAL)?;
        let total = extra_end.checked_add(padded(context_size)?).ok_or(Errno::EINVAL)?;
        Ok(Self { data_size, offsets_size, offsets_at, extra_at, extra_end, total })
    }
}

/// A count that a buffer holds for an object in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeldObject {
    /// A node of the receiver.
    Node { node: NodeId, strength: Strength },
    /// A reference of the receiver.
    Ref { reference: RefId, strength: Strength },
}

/// One buffer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Buffer {
    /// The receiver.
    pub process: ProcessId,
    pub offset: u32,
    pub layout: Layout,
    /// The called node, to which it holds a local strong reference. `None` for a reply.
    pub target: Option<NodeId>,
    /// Transaction of the buffer, until that has ended.
    pub transaction: Option<TransactionId>,
    pub oneway: bool,
    /// The buffer is that of its node's current one-way call: the next one waits until it is freed.
    pub holds_oneway_slot: bool,
    /// `TF_CLEAR_BUF`.
    pub clear: bool,
    /// The receiver knows its address and may free it.
    pub delivered: bool,
    /// The account of its sender, until a thread has received it.
    pub queued_for: Option<AccountId>,
    pub sender_pid: u32,
    pub held: Vec<HeldObject>,
    /// Files that are not installed in the receiver yet.
    pub files: Vec<FileSlot>,
    /// The receiver's descriptors that are closed when it frees the buffer.
    pub close_on_free: Vec<u32>,
    /// Offset of the sender's security context in the buffer.
    pub context_at: Option<u64>,
}

/// Kind of object that carries a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileHolder {
    /// A single descriptor.
    Object,
    /// An array, whose descriptors are closed with the buffer.
    Array,
}

/// A file in a buffer that is not installed in the receiver yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSlot {
    pub file: FileToken,
    /// Offset in the buffer for the receiver's descriptor.
    pub at: u32,
    pub holder: FileHolder,
}

/// A process's mapping and the buffers in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReceiveArea {
    pub mapping: Mapping,
    pub ranges: Allocator<BufferId>,
    pub pages: AreaPages,
    /// Bytes that are left for one-way calls; initially half of the mapping.
    pub free_oneway: u32,
    /// One-way buffers of each sender, by pid.
    pub oneway_shares: BTreeMap<u32, OnewayShare>,
    /// A flood was reported; not again until a tenth of the mapping is free for one-way calls.
    pub spam_reported: bool,
}

impl ReceiveArea {
    /// Bytes of a mapping that are used: whole pages, up to the maximum of the driver.
    pub fn usable_bytes(mapping: Mapping) -> u32 {
        (mapping.len.min(MAX_MAPPING) & !4095) as u32
    }

    pub fn new(mapping: Mapping) -> Self {
        let size = Self::usable_bytes(mapping);
        Self {
            mapping,
            ranges: Allocator::new(size),
            pages: AreaPages::default(),
            free_oneway: size / 2,
            oneway_shares: BTreeMap::new(),
            spam_reported: false,
        }
    }

    /// Whether the client's range begins in the mapping, and is not within one buffer: its pages
    /// may have been given back.
    pub fn has_no_buffer_at(&self, address: u64, len: u64) -> bool {
        let offset = address.wrapping_sub(self.mapping.address);
        let Some(offset) = u32::try_from(offset).ok().filter(|at| *at < self.ranges.size()) else {
            return false;
        };
        len > 0 && self.ranges.live_end(offset).is_none_or(|end| len > u64::from(end - offset))
    }
}

/// One-way buffers of one sender in a mapping. The count is maintained because it is needed for
/// each one-way call while there is little room, and a mapping holds a quarter of a million
/// buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnewayShare {
    pub buffers: u32,
    pub bytes: u32,
}

/// Parameters of a new buffer.
#[derive(Clone, Copy, Debug)]
pub struct BufferRequest {
    pub process: ProcessId,
    pub layout: Layout,
    pub target: Option<NodeId>,
    pub oneway: bool,
    pub clear: bool,
    pub sender: ProcessId,
    pub sender_pid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_padded_to_eight_bytes() {
        let layout = Layout::new(13, 8, 3, 9).unwrap();
        assert_eq!((layout.offsets_at, layout.extra_at, layout.extra_end), (16, 24, 32));
        assert_eq!(layout.total, 48);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        for (data, offsets, extra) in
            [(u64::MAX, 0, 0), (u64::MAX - 7, 8, 0), (8, u64::MAX - 15, 8), (0, 0, u64::MAX - 3)]
        {
            assert_eq!(Layout::new(data, offsets, extra, 8), Err(Errno::EINVAL));
        }
    }
}
