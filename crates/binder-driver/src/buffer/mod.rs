//! Receive areas: the buffers in a receiver's mapping, which hold received transactions, and the
//! memory of its pages.

mod allocator;
pub mod pages;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Deserialize, Serialize};

use crate::buffer::allocator::Allocator;
use crate::buffer::pages::AreaPages;
use crate::driver::{AccountId, BufferId, Driver, NodeId, ProcessId, RefId, TransactionId};
use crate::host::{Errno, FileToken, Host, Mapping};
use crate::limits::MAX_MAPPING;
use crate::objects::Strength;
use crate::transaction::send::Sender;

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
    spam_reported: bool,
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

impl Driver {
    /// Reserves a buffer. `ESRCH`: the receiver has no mapping, or no longer has; `ENOSPC`: no
    /// room, or no async space; `ERESTART`: its memory is late; also the errors of
    /// [`admit_message`](Self::admit_message). On an error the caller keeps the local reference to
    /// the target.
    pub(crate) fn allocate_buffer<H: Host>(
        &mut self,
        host: &mut H,
        request: BufferRequest,
    ) -> Result<BufferId, Errno> {
        let process = &mut self.processes[request.process];
        if process.area.is_none() {
            let found = host.mapping(request.process);
            let mapping = found.map_err(|fault| fault.errno(Errno::ESRCH))?.ok_or(Errno::ESRCH)?;
            process.area = Some(Box::new(ReceiveArea::new(mapping)));
        } else if !host.has_address_space(request.process) {
            return Err(Errno::ESRCH);
        }
        // An empty buffer uses room too, so that its address is unique.
        let len = request.layout.total.max(8);
        let len = u32::try_from(len).map_err(|_| Errno::ENOSPC)?;
        self.admit_message(host, request.sender, request.process, len)?;
        let area = self.processes[request.process].area.as_mut().ok_or(Errno::ESRCH)?;
        if request.oneway && area.free_oneway < len {
            return Err(Errno::ENOSPC);
        }
        let id = self.buffers.insert(Buffer {
            process: request.process,
            offset: 0,
            layout: request.layout,
            target: request.target,
            transaction: None,
            oneway: request.oneway,
            holds_oneway_slot: false,
            clear: request.clear,
            delivered: false,
            queued_for: None,
            sender_pid: request.sender_pid,
            held: self.spare_held.pop().unwrap_or_default(),
            files: Vec::new(),
            close_on_free: Vec::new(),
            context_at: None,
        });
        let Some(offset) = area.ranges.allocate(len, id) else {
            self.buffers.remove(id);
            return Err(Errno::ENOSPC);
        };
        if request.oneway {
            area.free_oneway -= len;
            let share = area.oneway_shares.entry(request.sender_pid).or_default();
            share.buffers += 1;
            share.bytes += len;
        }
        self.idle_pages.take(&mut area.pages, offset..offset + len);
        self.buffers[id].offset = offset;
        self.charge_message(id, request.sender);
        Ok(id)
    }

    /// Whether the sender of this new one-way buffer floods the receiver: less than a tenth of the
    /// mapping is left for one-way calls, and more than 50 buffers or a quarter of the mapping
    /// belong to this sender. Reported once until the space recovers.
    pub(crate) fn is_oneway_spam(&mut self, buffer: BufferId) -> bool {
        let Buffer { process, sender_pid, .. } = self.buffers[buffer];
        let Some(area) = &mut self.processes[process].area else { return false };
        let size = area.ranges.size();
        if area.free_oneway >= size / 10 {
            area.spam_reported = false;
            return false;
        }
        if area.spam_reported {
            return false;
        }
        let share = area.oneway_shares.get(&sender_pid).copied().unwrap_or_default();
        area.spam_reported = share.buffers > 50 || share.bytes > size / 4;
        area.spam_reported
    }

    /// The buffer's address in its receiver.
    pub(crate) fn buffer_address(&self, id: BufferId) -> u64 {
        let buffer = &self.buffers[id];
        let area = self.processes[buffer.process].area.as_ref();
        area.map_or(0, |area| area.mapping.address.wrapping_add(buffer.offset.into()))
    }

    /// `BC_FREE_BUFFER`: an address that is not that of a delivered buffer is ignored.
    pub(crate) fn free_buffer<H: Host>(&mut self, host: &mut H, sender: Sender, address: u64) {
        let process = sender.caller.process;
        let Some(area) = &self.processes[process].area else { return };
        let offset = u32::try_from(address.wrapping_sub(area.mapping.address)).ok();
        let Some(id) = offset.and_then(|offset| area.ranges.owner(offset)) else { return };
        if !self.buffers[id].delivered {
            return;
        }
        let fds = std::mem::take(&mut self.buffers[id].close_on_free);
        if !fds.is_empty() {
            host.close_on_return(sender.caller, &fds);
            self.threads[sender.thread].need_return = true;
        }
        self.release_buffer(host, id);
    }

    /// Releases a buffer with everything that it holds, and starts the node's next one-way call if
    /// this was one.
    pub(crate) fn release_buffer<H: Host>(&mut self, host: &mut H, id: BufferId) {
        let Some(buffer) = self.buffers.remove(id) else { return };
        self.discharge_message(&buffer);
        if let Some(transaction) = buffer.transaction {
            self.transactions[transaction].buffer = None;
        }
        if let Some(node) = buffer.target {
            if buffer.holds_oneway_slot {
                self.processes[buffer.process].oneway_slots -= 1;
                self.next_oneway(node);
            }
            self.dec_local(node, Strength::Strong);
        }
        self.release_held(buffer.held);
        for slot in &buffer.files {
            host.drop_file(slot.file);
        }
        if buffer.clear && !self.processes[buffer.process].dead {
            // Clearing a mapping fails only if its client is exiting.
            let _ = host.zero(buffer.process, buffer.offset.into(), buffer.layout.total);
            self.touch(buffer.process, buffer.offset, buffer.layout.total);
        }
        let Some(area) = self.processes[buffer.process].area.as_mut() else { return };
        let Some(freed) = area.ranges.release(buffer.offset) else { return };
        if buffer.oneway {
            area.free_oneway += freed.len;
            if let Entry::Occupied(mut share) = area.oneway_shares.entry(buffer.sender_pid) {
                share.get_mut().buffers -= 1;
                share.get_mut().bytes -= freed.len;
                if share.get().buffers == 0 {
                    share.remove();
                }
            }
        }
        let range = buffer.offset..buffer.offset + freed.len;
        self.idle_pages.put(buffer.process, &mut area.pages, range, freed.hole);
    }

    fn release_held(&mut self, mut held: Vec<HeldObject>) {
        for object in held.drain(..) {
            match object {
                HeldObject::Node { node, strength } => self.dec_local(node, strength),
                // A client that dropped more counts than it took may have lost the reference
                // before.
                HeldObject::Ref { reference, strength } => self.dec_ref(reference, strength),
            }
        }
        // Reuses the vector for the next buffer: at most 64 vectors of at most 64 entries are kept,
        // none that a single large message has grown.
        if held.capacity() > 0 && held.capacity() <= 64 && self.spare_held.len() < 64 {
            self.spare_held.push(held);
        }
    }

    /// The process exits and its mapping with it; its nodes and references are released already.
    pub(crate) fn forget_buffers(&mut self, process: ProcessId) {
        let Some(area) = self.processes[process].area.take() else { return };
        self.idle_pages.forget(&area.pages);
        self.discharge_pages(process, area.pages.touched());
        for (_, _, id) in area.ranges.live() {
            let Some(buffer) = self.buffers.remove(id) else { continue };
            self.discharge_message(&buffer);
            let transaction = buffer.transaction;
            if let Some(transaction) = transaction.and_then(|id| self.transactions.get_mut(id)) {
                transaction.buffer = None;
            }
        }
    }
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
