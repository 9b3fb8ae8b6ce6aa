//! File descriptors in transactions: taken from the sender when it sends, given to the receiver's
//! thread before it sees the transaction.
//!
//! Giving takes time (the front end may have to stop the thread for it), so a read that took such a
//! transaction is neither answered nor parked: it *gives*, until the front end says how that went.

use binder_uapi::{BinderBufferObject, BinderFdArrayObject, BinderWriteRead};
use zerocopy::IntoBytes;

use crate::Errno;
use crate::call::Sender;
use crate::driver::{Driver, WriteRead};
use crate::host::{Caller, FileToken, Host};
use crate::keys::{BufferId, ProcessId, ThreadId, TransactionId};
use crate::limits::MAX_FILES_A_TRANSACTION;
use crate::objects::Parcel;
use crate::scatter_gather::Gather;
use crate::transaction::Kind;

/// A file in a buffer that has not been given yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSlot {
    pub file: FileToken,
    /// Where in the buffer the receiver's number goes.
    pub at: u32,
    /// It is of an array, whose descriptors are closed with the buffer.
    pub of_array: bool,
}

/// A read whose transaction carries files, until the reader has them.
#[derive(Debug)]
pub struct Giving {
    caller: Caller,
    bwr: BinderWriteRead,
    pub transaction: TransactionId,
    /// What the read returns, and where in it the transaction starts.
    returns: Vec<u8>,
    transaction_at: usize,
}

/// Offset of the descriptor in a `binder_fd_object`.
const FD_OFFSET: u64 = 8;

impl Driver {
    /// A single descriptor. `EPERM`: the target accepts none; else as [`take_file`](crate::Files).
    pub(crate) fn translate_fd<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        parcel: &mut Parcel<'_>,
        at: u64,
    ) -> Result<(), Errno> {
        take_file(host, sender, parcel, at + FD_OFFSET, false)?;
        // Until the receiver's number is there, it is none of the sender's either.
        parcel.put(at + FD_OFFSET, &0_u64)
    }

    /// An array of descriptors in the buffer of an earlier object. `EINVAL`: it is not all there.
    pub(crate) fn translate_fd_array<H: Host>(
        &mut self,
        host: &mut H,
        sender: Sender,
        gather: &mut Gather,
        parcel: &mut Parcel<'_>,
        index: u64,
        at: u64,
    ) -> Result<(), Errno> {
        let array: BinderFdArrayObject = parcel.get(at)?;
        let len = array.num_fds.checked_mul(4).ok_or(Errno::EINVAL)?;
        let slot = BinderBufferObject {
            parent: array.parent,
            parent_offset: array.parent_offset,
            ..Default::default()
        };
        let start = gather.parent_slot(parcel, index, &slot, len)?;
        if !start.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        for number in 0..array.num_fds {
            take_file(host, sender, parcel, start + 4 * number, true)?;
        }
        if array.num_fds > 0 {
            gather.fixed_up(parcel.object_at(array.parent)?, array.parent_offset + len);
        }
        Ok(())
    }

    /// The read has taken a transaction; whether its files have to be given first.
    pub(crate) fn carries_files(&self, transaction: TransactionId) -> bool {
        let buffer = self.transactions[transaction].buffer;
        buffer.is_some_and(|buffer| !self.buffers[buffer].files.is_empty())
    }

    /// Keeps a read until its files are given.
    pub(crate) fn begin_giving(
        &mut self,
        caller: Caller,
        thread: ThreadId,
        bwr: BinderWriteRead,
        returns: &[u8],
        (transaction, transaction_at): (TransactionId, usize),
    ) -> WriteRead {
        let returns = returns.to_vec();
        let giving = Giving { caller, bwr, transaction, returns, transaction_at };
        let entry = &mut self.threads[thread];
        entry.need_return = false;
        entry.giving = Some(Box::new(giving));
        WriteRead::Giving { bwr }
    }

    /// The files that a read in [`WriteRead::Giving`] gives, in the order of their numbers.
    pub fn files_to_give(&self, process: ProcessId, tid: u32) -> Vec<FileToken> {
        let thread = self.known_thread(process, tid).map(|thread| &self.threads[thread]);
        let giving = thread.and_then(|thread| thread.giving.as_ref());
        let buffer = giving.and_then(|giving| self.transactions[giving.transaction].buffer);
        let files = buffer.map(|buffer| self.buffers[buffer].files.iter());
        files.map(|files| files.map(|slot| slot.file).collect()).unwrap_or_default()
    }

    /// The reader has its files under these numbers: answers the read. `None`: nobody gives there
    /// (any more).
    pub fn files_given<H: Host>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        tid: u32,
        fds: &[u32],
    ) -> Option<WriteRead> {
        let thread = self.known_thread(process, tid)?;
        let mut giving = self.threads[thread].giving.take()?;
        let Giving { caller, mut bwr, transaction, .. } = *giving;
        let buffer = self.transactions[transaction].buffer?;
        let stored = self.store_numbers(host, buffer, fds);
        if stored.is_err() {
            host.close_on_return(caller, fds);
            return self.refuse(host, thread, *giving);
        }
        let returns = &mut giving.returns;
        let result = self.hand_over(host, caller, thread, &mut bwr, returns, Some(transaction));
        if result.is_err() {
            host.close_on_return(caller, fds);
        }
        Some(WriteRead::Done { bwr, result })
    }

    fn store_numbers<H: Host>(
        &mut self,
        host: &mut H,
        buffer: BufferId,
        fds: &[u32],
    ) -> Result<(), Errno> {
        let entry = &mut self.buffers[buffer];
        if entry.files.len() != fds.len() {
            return Err(Errno::EINVAL);
        }
        for (slot, fd) in entry.files.iter().zip(fds) {
            let at = u64::from(entry.offset) + u64::from(slot.at);
            host.store(entry.process, at, fd.as_bytes()).map_err(|_| Errno::ENOMEM)?;
        }
        for (slot, &fd) in std::mem::take(&mut entry.files).iter().zip(fds) {
            if slot.of_array {
                entry.close_on_free.push(fd);
            }
            host.drop_file(slot.file);
        }
        Ok(())
    }

    /// The reader could not be given its files: the transaction fails for its sender. What else the
    /// read has to tell; `None`: nothing, or nobody gives there. Then the reader has to read again,
    /// with the argument of [`WriteRead::Giving`].
    pub fn files_refused<H: Host>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        tid: u32,
    ) -> Option<WriteRead> {
        let thread = self.known_thread(process, tid)?;
        let giving = self.threads[thread].giving.take()?;
        self.refuse(host, thread, *giving)
    }

    fn refuse<H: Host>(
        &mut self,
        host: &mut H,
        thread: ThreadId,
        giving: Giving,
    ) -> Option<WriteRead> {
        let Giving { caller, mut bwr, transaction, mut returns, transaction_at } = giving;
        returns.truncate(transaction_at);
        if self.transactions[transaction].kind == Kind::Reply {
            // The reader is the one who waits for it.
            returns.extend_from_slice(binder_uapi::returns::BR_FAILED_REPLY.as_bytes());
        }
        self.transaction_lost(host, transaction);
        if bwr.read_consumed + returns.len() as u64 <= 4 {
            return None;
        }
        let result = self.hand_over(host, caller, thread, &mut bwr, &mut returns, None);
        Some(WriteRead::Done { bwr, result })
    }

    /// All files that are on their way.
    #[doc(hidden)]
    pub fn files_on_their_way(&self) -> Vec<FileToken> {
        self.buffers.values().flat_map(|buffer| buffer.files.iter().map(|slot| slot.file)).collect()
    }
}

/// Takes the file whose number is at this place of the parcel.
fn take_file<H: Host>(
    host: &mut H,
    sender: Sender,
    parcel: &mut Parcel<'_>,
    at: u64,
    of_array: bool,
) -> Result<(), Errno> {
    if !parcel.accepts_fds {
        return Err(Errno::EPERM);
    }
    if parcel.files.len() >= MAX_FILES_A_TRANSACTION {
        return Err(Errno::ENOMEM);
    }
    let fd: u32 = parcel.get(at)?;
    let file = host.take_file(sender.caller, fd)?;
    parcel.files.push(FileSlot { file, at: at as u32, of_array });
    Ok(())
}
