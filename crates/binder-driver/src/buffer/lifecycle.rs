//! Buffers: the slices of a receiver's mapping that hold received transactions.

use std::collections::btree_map::Entry;

use crate::buffer::types::{Buffer, BufferRequest, HeldObject, ReceiveArea};
use crate::driver::Driver;
use crate::errno::Errno;
use crate::host::Host;
use crate::keys::{BufferId, ProcessId};
use crate::objects::types::Strength;
use crate::transaction::types::Sender;

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
