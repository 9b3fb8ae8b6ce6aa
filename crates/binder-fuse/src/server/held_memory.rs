//! The memory of receive buffers, by the processes and owners that it is charged to.

use binder_driver::AreaMemory;
use headroom_linux::mountinfo::Device;
use owners::{Owner, Uid};

use super::Server;
use crate::host::OpenerState;
use crate::mapping::MappingKind;

/// Memory that the server holds for an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldMemory {
    /// The owner that it is charged to.
    pub owner: Owner,
    /// Bytes.
    pub bytes: u64,
    /// The process that it is held for; `None`: messages of the owner's processes that no thread
    /// has received yet.
    pub holder: Option<BufferHolder>,
}

/// A process that has a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferHolder {
    /// The opener of the device; `None`: it has exited.
    pub pid: Option<u32>,
    /// Its effective uid.
    pub euid: Uid,
    /// Device and inode number of the file by which it maps the buffer.
    pub file: (Device, u64),
}

impl Server {
    /// The memory of all messages, in entries of at least `smallest_bytes`. Without passthrough it
    /// is in the page cache, and not held.
    pub fn held_memory(&self, smallest_bytes: u64) -> impl Iterator<Item = HeldMemory> {
        let is_held = self.agreement.mapping == MappingKind::Passthrough;
        let is_entry = move |bytes| is_held && bytes >= smallest_bytes;
        let queued = self.driver.owner_memory().filter(move |memory| is_entry(memory.queued_bytes));
        let queued = queued.map(|memory| HeldMemory {
            owner: memory.owner,
            bytes: memory.queued_bytes,
            holder: None,
        });
        let areas = self.driver.area_memory().filter(move |area| is_entry(area.bytes));
        queued.chain(areas.filter_map(|area| self.held_for_open(area)))
    }

    fn held_for_open(&self, AreaMemory { process, bytes }: AreaMemory) -> Option<HeldMemory> {
        let open = self.host.opens.get(self.host.key_of(process)?)?;
        let pid = (open.opener == OpenerState::Alive).then_some(open.pid);
        let file = (self.host.device(), open.node);
        let holder = BufferHolder { pid, euid: open.euid, file };
        Some(HeldMemory { owner: open.owner, bytes, holder: Some(holder) })
    }
}
