//! Quotas of an owner: limits for all its opens together, so that no owner can exhaust the driver
//! or the memory by starting more processes.
//!
//! A message that no thread has received yet is charged to the sender's owner. All other memory of
//! a receive area, its idle pages included, is charged to the receiver's owner.

use owners::Owner;
use serde::{Deserialize, Serialize};

use crate::buffer::Buffer;
use crate::driver::{AccountId, BufferId, Driver, ProcessId};
use crate::host::{Errno, Host};
use crate::limits::{MAX_OBJECTS_OF_AN_OWNER, RECLAIM_BATCH};
use crate::transaction::Transaction;

/// Resources that one owner uses.
#[derive(Debug, Serialize, Deserialize)]
pub struct Account {
    pub owner: Owner,
    pub opens: usize,
    /// Nodes, references, death and freeze notifications of all its opens.
    pub objects: usize,
    /// Bytes of messages that its opens have sent and no thread has received yet, with their
    /// records.
    pub queued_bytes: u64,
    /// Pages of its receive areas that hold memory.
    pub touched_pages: u64,
    /// Bytes of the messages in its receive areas that no thread has received yet.
    pub untaken_bytes: u64,
    /// Messages in its receive areas that a thread has received.
    pub taken_buffers: u64,
}

/// Bytes of the driver's records of a message. They are charged too: a mapping holds half a million
/// messages of 8 bytes.
pub(crate) const RECORD_BYTES: u64 = (size_of::<Buffer>() + size_of::<Transaction>()) as u64;

impl Account {
    pub fn new(owner: Owner) -> Self {
        Self {
            owner,
            opens: 0,
            objects: 0,
            queued_bytes: 0,
            touched_pages: 0,
            untaken_bytes: 0,
            taken_buffers: 0,
        }
    }

    pub(crate) fn memory(&self, page_bytes: u32) -> OwnerMemory {
        let Self { owner, queued_bytes, touched_pages, untaken_bytes, taken_buffers, .. } = *self;
        let pages = (touched_pages * u64::from(page_bytes)).saturating_sub(untaken_bytes);
        let buffer_bytes = pages + taken_buffers * RECORD_BYTES;
        OwnerMemory { owner, queued_bytes, buffer_bytes }
    }

    /// No object refers to the account.
    fn is_unused(&self) -> bool {
        self.opens == 0 && self.queued_bytes == 0
    }
}

/// Memory of the messages of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerMemory {
    /// The owner.
    pub owner: Owner,
    /// Bytes of messages that its processes have sent and no thread has received yet.
    pub queued_bytes: u64,
    /// Bytes of the pages of its receive areas that hold memory, without messages that no thread
    /// has received yet.
    pub buffer_bytes: u64,
}

impl OwnerMemory {
    /// Bytes that count against the quota.
    pub fn total_bytes(self) -> u64 {
        self.queued_bytes + self.buffer_bytes
    }
}

/// Memory of the receive area of one open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaMemory {
    /// The open.
    pub process: ProcessId,
    /// Bytes of the pages that hold memory, without messages that no thread has received yet.
    pub bytes: u64,
}

impl Driver {
    /// Sets the maximum bytes of messages of each owner except root; unlimited by default.
    pub fn set_memory_quota(&mut self, bytes: u64) {
        self.memory_quota = Some(bytes);
    }

    /// Memory of each owner that has opens or queued messages.
    pub fn owner_memory(&self) -> impl Iterator<Item = OwnerMemory> {
        self.accounts.values().map(|account| account.memory(self.page_bytes()))
    }

    /// Memory of each receive area. Messages that no thread has received yet are in
    /// [`owner_memory`](Self::owner_memory) of their senders' owners.
    pub fn area_memory(&self) -> impl Iterator<Item = AreaMemory> {
        self.processes.iter().filter_map(|(process, entry)| {
            let pages = u64::from(entry.area.as_ref()?.pages.touched());
            let touched = pages * u64::from(self.page_bytes());
            Some(AreaMemory { process, bytes: touched.saturating_sub(entry.untaken_bytes) })
        })
    }

    /// Charges an open to this owner.
    pub(crate) fn join_account(&mut self, owner: Owner) -> AccountId {
        let accounts = &mut self.accounts;
        let new = || accounts.insert(Account::new(owner));
        let id = *self.accounts_by_owner.entry(owner).or_insert_with(new);
        self.accounts[id].opens += 1;
        id
    }

    /// An open of the owner was released, with all its objects and its receive area.
    pub(crate) fn leave_account(&mut self, id: AccountId) {
        self.accounts[id].opens -= 1;
        self.drop_unused_account(id);
    }

    fn drop_unused_account(&mut self, id: AccountId) {
        let account = &self.accounts[id];
        if account.is_unused() {
            self.accounts_by_owner.remove(&account.owner);
            self.accounts.remove(id);
        }
    }

    /// Charges an object to the process's owner. `ENOMEM`: it has too many.
    pub(crate) fn charge_object(&mut self, process: ProcessId) -> Result<(), Errno> {
        let account = &mut self.accounts[self.processes[process].account];
        if account.objects >= MAX_OBJECTS_OF_AN_OWNER {
            return Err(Errno::ENOMEM);
        }
        account.objects += 1;
        Ok(())
    }

    /// An object of the process was removed.
    pub(crate) fn discharge_object(&mut self, process: ProcessId) {
        self.accounts[self.processes[process].account].objects -= 1;
    }

    /// Checks the quotas of both sides for a message of `len` bytes, if necessary after reclaiming
    /// a batch of idle pages. `ENOMEM`: it exceeds that of the sender's owner; `ENOSPC`: it exceeds
    /// that of the receiver's owner.
    pub(crate) fn admit_message<H: Host>(
        &mut self,
        host: &mut H,
        sender: ProcessId,
        receiver: ProcessId,
        len: u32,
    ) -> Result<(), Errno> {
        let bytes = u64::from(len) + RECORD_BYTES;
        if self.exceeds_quota(sender, bytes) || self.exceeds_quota(receiver, bytes) {
            self.reclaim(host, RECLAIM_BATCH);
        }
        if self.exceeds_quota(sender, bytes) {
            return Err(Errno::ENOMEM);
        }
        if self.exceeds_quota(receiver, bytes) { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    fn exceeds_quota(&self, process: ProcessId, more_bytes: u64) -> bool {
        let Some(quota) = self.memory_quota else { return false };
        let account = &self.accounts[self.processes[process].account];
        let memory = account.memory(self.page_bytes());
        !account.owner.is_root() && memory.total_bytes() + more_bytes > quota
    }

    /// Charges a message with a buffer to its sender's owner until a thread has received it.
    pub(crate) fn charge_message(&mut self, buffer: BufferId, sender: ProcessId) {
        let account = self.processes[sender].account;
        let entry = &mut self.buffers[buffer];
        entry.queued_for = Some(account);
        let (receiver, bytes) = (entry.process, entry.layout.total);
        self.accounts[account].queued_bytes += bytes + RECORD_BYTES;
        let receiver = &mut self.processes[receiver];
        receiver.untaken_bytes += bytes;
        self.accounts[receiver.account].untaken_bytes += bytes;
    }

    /// A thread has received the message: it is charged to the receiver's owner from now on.
    pub(crate) fn transfer_message(&mut self, buffer: BufferId) {
        let entry = &mut self.buffers[buffer];
        let (receiver, bytes) = (entry.process, entry.layout.total);
        let Some(account) = entry.queued_for.take() else { return };
        self.discharge_queued(account, receiver, bytes);
        self.accounts[self.processes[receiver].account].taken_buffers += 1;
    }

    /// The buffer of a message was released.
    pub(crate) fn discharge_message(&mut self, buffer: &Buffer) {
        match buffer.queued_for {
            Some(account) => {
                self.discharge_queued(account, buffer.process, buffer.layout.total);
            }
            None => self.accounts[self.processes[buffer.process].account].taken_buffers -= 1,
        }
    }

    fn discharge_queued(&mut self, account: AccountId, receiver: ProcessId, bytes: u64) {
        let receiver = &mut self.processes[receiver];
        receiver.untaken_bytes -= bytes;
        self.accounts[receiver.account].untaken_bytes -= bytes;
        self.accounts[account].queued_bytes -= bytes + RECORD_BYTES;
        self.drop_unused_account(account);
    }

    /// Data is about to be stored in part of a live buffer.
    pub(crate) fn touch(&mut self, process: ProcessId, offset: u32, len: u64) {
        let page_size = self.idle_pages.page_size();
        let entry = &mut self.processes[process];
        let Some(area) = &mut entry.area else { return };
        // The buffer lies within the area.
        let touched = area.pages.touch(page_size, offset..offset + len as u32);
        self.accounts[entry.account].touched_pages += u64::from(touched);
    }

    /// Pages of the process's receive area were reclaimed.
    pub(crate) fn discharge_pages(&mut self, process: ProcessId, pages: u32) {
        self.accounts[self.processes[process].account].touched_pages -= u64::from(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Opener;
    use owners::Uid;

    #[test]
    fn an_owner_has_a_number_of_objects_and_others_have_their_own() {
        let mut driver = Driver::new();
        let context = driver.add_context("binder");
        let mut open = |uid| {
            let opener = Opener { pid: 1, euid: Uid(uid), owner: Owner::User(Uid(uid)) };
            driver.open(context, opener).unwrap()
        };
        let (first, second, other) = (open(7), open(7), open(8));
        for process in [first, second].into_iter().cycle().take(MAX_OBJECTS_OF_AN_OWNER) {
            driver.charge_object(process).unwrap();
        }
        assert_eq!(driver.charge_object(second), Err(Errno::ENOMEM));
        assert_eq!(driver.charge_object(other), Ok(()));
        driver.discharge_object(first);
        assert_eq!(driver.charge_object(second), Ok(()));
    }
}
