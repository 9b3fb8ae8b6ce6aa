//! Buffers: the slices of a receiver's mapping that hold what was sent to it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::Errno;
use crate::allocator::Allocator;
use crate::call::Sender;
use crate::descriptors::FileSlot;
use crate::driver::Driver;
use crate::host::{Host, Mapping};
use crate::keys::{BufferId, NodeId, ProcessId, RefId, TransactionId};
use crate::limits::MAX_MAPPING;
use crate::pages::AreaPages;
use crate::work::Work;

/// How the parts of a buffer lie: data, offsets, extra (scatter-gather), the sender's security
/// context; each padded to 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub data_size: u64,
    pub offsets_size: u64,
    /// Where the offsets start.
    pub offsets_at: u64,
    /// Where the extra buffers start.
    pub extra_at: u64,
    /// Where they end, and the sender's security context starts.
    pub extra_end: u64,
    pub total: u64,
}

impl Layout {
    /// `EINVAL` when the sizes do not fit in 64 bits together.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldObject {
    /// The receiver's own node.
    Node { node: NodeId, strong: bool },
    /// The receiver's reference.
    Ref { reference: RefId, strong: bool },
}

/// One buffer.
#[derive(Debug)]
pub struct Buffer {
    /// The receiver.
    pub process: ProcessId,
    pub offset: u32,
    pub layout: Layout,
    /// The node that was called; holds a local strong reference. `None` for a reply.
    pub target: Option<NodeId>,
    /// What it belongs to, until that is over.
    pub transaction: Option<TransactionId>,
    pub oneway: bool,
    /// It is its node's one-way call under way: the next one waits until it is freed.
    pub holds_oneway_slot: bool,
    /// `TF_CLEAR_BUF`.
    pub clear: bool,
    /// The receiver knows it and may free it.
    pub delivered: bool,
    pub sender_pid: u32,
    pub held: Vec<HeldObject>,
    /// Files that have not been given yet.
    pub files: Vec<FileSlot>,
    /// The receiver's descriptors that are closed when it frees the buffer.
    pub close_on_free: Vec<u32>,
    /// Where the sender's security context is in the buffer.
    pub context_at: Option<u64>,
}

/// A process's mapping and what is in it.
#[derive(Debug)]
pub struct ReceiveArea {
    pub mapping: Mapping,
    pub ranges: Allocator<BufferId>,
    pub pages: AreaPages,
    /// Bytes that one-way calls may still take; half of the mapping in all.
    pub free_oneway: u32,
    /// What each sender, by pid, has of it.
    pub oneway_shares: BTreeMap<u32, OnewayShare>,
    /// A flood was reported; not again until a tenth of the mapping is free for one-way calls.
    spam_reported: bool,
}

impl ReceiveArea {
    fn new(mapping: Mapping) -> Self {
        // Whole pages, as much as the driver ever uses.
        let size = (mapping.len.min(MAX_MAPPING) & !4095) as u32;
        Self {
            mapping,
            ranges: Allocator::new(size),
            pages: AreaPages::default(),
            free_oneway: size / 2,
            oneway_shares: BTreeMap::new(),
            spam_reported: false,
        }
    }
}

/// One-way buffers of one sender in a mapping. Counted as they come and go: the question who floods is asked with each
/// one-way call while there is little room, and a mapping holds a quarter of a million buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnewayShare {
    pub buffers: u32,
    pub bytes: u32,
}

/// What a new buffer is for.
#[derive(Clone, Copy, Debug)]
pub struct BufferRequest {
    pub process: ProcessId,
    pub layout: Layout,
    pub target: Option<NodeId>,
    pub oneway: bool,
    pub clear: bool,
    pub sender_pid: u32,
}

impl Driver {
    /// Reserves a buffer. `ESRCH`: the receiver has no mapping; `ENOSPC`: no room, or no async
    /// space. The target's local reference stays the caller's on an error.
    pub(crate) fn allocate_buffer<H: Host>(
        &mut self,
        host: &mut H,
        request: BufferRequest,
    ) -> Result<BufferId, Errno> {
        let process = &mut self.processes[request.process];
        if process.area.is_none() {
            let mapping = host.mapping(request.process).ok_or(Errno::ESRCH)?;
            process.area = Some(Box::new(ReceiveArea::new(mapping)));
        }
        let area = process.area.as_mut().ok_or(Errno::ESRCH)?;
        // An empty buffer takes room too, so that its address is its own.
        let len = request.layout.total.max(8);
        let len = u32::try_from(len).map_err(|_| Errno::ENOSPC)?;
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
        Ok(id)
    }

    /// Whether the sender of this new one-way buffer floods the receiver: less than a tenth of the
    /// mapping is left for one-way calls, and more than 50 buffers or a quarter of the mapping are
    /// this sender's. Told once until the space recovers.
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

    /// Gives up a buffer with all that it holds, and starts the node's next one-way call if this
    /// was one.
    pub(crate) fn release_buffer<H: Host>(&mut self, host: &mut H, id: BufferId) {
        let Some(buffer) = self.buffers.remove(id) else { return };
        if let Some(transaction) = buffer.transaction {
            self.transactions[transaction].buffer = None;
        }
        if let (true, Some(node)) = (buffer.holds_oneway_slot, buffer.target) {
            self.next_oneway(node);
        }
        if let Some(node) = buffer.target {
            self.dec_local(node, true);
        }
        self.release_held(buffer.held);
        buffer.files.iter().for_each(|slot| host.drop_file(slot.file));
        let process = &mut self.processes[buffer.process];
        if buffer.clear && !process.dead {
            // A mapping that cannot be cleared belongs to a client that is going away.
            let _ = host.zero(buffer.process, buffer.offset.into(), buffer.layout.total);
            process.touch(buffer.offset, buffer.layout.total);
        }
        let Some(area) = process.area.as_mut() else { return };
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
                HeldObject::Node { node, strong } => self.dec_local(node, strong),
                // A client that dropped more than it took may have lost the reference before.
                HeldObject::Ref { reference, strong } => self.dec_ref(reference, strong),
            }
        }
        // Kept for the next buffer: a handful, and none that a single large message made huge.
        if held.capacity() > 0 && held.capacity() <= 64 && self.spare_held.len() < 64 {
            self.spare_held.push(held);
        }
    }

    /// The node's one-way call is over: the next one may be delivered.
    fn next_oneway(&mut self, node: NodeId) {
        let Some(entry) = self.nodes.get_mut(node) else { return };
        let next = entry.oneway_todo.and_then(|queue| self.queues.pop(queue));
        let (Some(Work::Transaction(next)), Some(owner)) = (next, entry.owner) else {
            entry.has_oneway = false;
            return;
        };
        self.hold_oneway_slot(next);
        self.queues.push(self.processes[owner].todo, Work::Transaction(next));
        self.wake_process(owner);
    }

    pub(crate) fn hold_oneway_slot(&mut self, oneway: TransactionId) {
        if let Some(buffer) = self.transactions[oneway].buffer {
            self.buffers[buffer].holds_oneway_slot = true;
        }
    }

    /// The process dies and its mapping with it; nodes and references of its own are gone already.
    pub(crate) fn forget_buffers(&mut self, process: ProcessId) {
        let Some(area) = self.processes[process].area.take() else { return };
        self.idle_pages.forget(&area.pages);
        for (_, _, id) in area.ranges.live() {
            let transaction = self.buffers.remove(id).and_then(|buffer| buffer.transaction);
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
