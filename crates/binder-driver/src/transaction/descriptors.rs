//! File descriptors in transactions: taken from the sender when it sends, given to the receiver's
//! thread before it sees the transaction.
//!
//! Giving takes time (the front end may have to stop the thread for it), so a read that took such a
//! transaction is neither answered nor parked: it *gives*, until the front end says how that went.
//! A front end that gives files only between two calls has the read answered without the
//! transaction, which is then *promised* to the thread: it comes with a later read.

use binder_uapi::{BinderBufferObject, BinderFdArrayObject};
use zerocopy::IntoBytes;

use crate::buffer::types::{FileHolder, FileSlot};
use crate::driver::Driver;
use crate::errno::Errno;
use crate::host::{FileToken, Host};
use crate::keys::{ProcessId, ThreadId, TransactionId};
use crate::limits::{MAX_FILES_A_TRANSACTION, ROOM_FOR_ONE};
use crate::transaction::scatter_gather::Gather;
use crate::transaction::types::{Arriving, Giving, Kind, ObjectPlace, Parcel, ReadRequest, Sender};
use crate::write_read::types::{Work, WriteRead};

/// Offset of the descriptor in a `binder_fd_object`.
const FD_OFFSET: u64 = 8;

/// A single descriptor. `EPERM`: the target accepts none; else as [`take_file`](crate::Files).
pub(crate) fn translate_fd<H: Host>(
    host: &mut H,
    sender: Sender,
    parcel: &mut Parcel<'_>,
    at: u64,
) -> Result<(), Errno> {
    take_file(host, sender, parcel, at + FD_OFFSET, FileHolder::Object)?;
    // Until the receiver's number is there, it is none of the sender's either.
    parcel.put(at + FD_OFFSET, &0_u64)
}

/// An array of descriptors in the buffer of an earlier object. `EINVAL`: it is not all there.
pub(crate) fn translate_fd_array<H: Host>(
    host: &mut H,
    sender: Sender,
    gather: &mut Gather,
    parcel: &mut Parcel<'_>,
    place: ObjectPlace,
) -> Result<(), Errno> {
    let array: BinderFdArrayObject = parcel.get(place.at)?;
    let len = array.num_fds.checked_mul(4).ok_or(Errno::EINVAL)?;
    let slot = BinderBufferObject {
        parent: array.parent,
        parent_offset: array.parent_offset,
        ..Default::default()
    };
    let start = gather.parent_slot(parcel, place.index, &slot, len)?;
    if !start.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    for number in 0..array.num_fds {
        take_file(host, sender, parcel, start + 4 * number, FileHolder::Array)?;
    }
    if array.num_fds > 0 {
        gather.fixed_up(parcel.object_at(array.parent)?, array.parent_offset + len);
    }
    Ok(())
}

impl Driver {
    /// The read has taken a transaction; whether its files have to be given first.
    pub(crate) fn carries_files(&self, transaction: TransactionId) -> bool {
        let buffer = self.transactions[transaction].buffer;
        buffer.is_some_and(|buffer| !self.buffers[buffer].files.is_empty())
    }

    /// Keeps a read until its files are given.
    pub(crate) fn begin_giving(
        &mut self,
        request: ReadRequest,
        returns: &[u8],
        arriving: Arriving,
    ) -> WriteRead {
        let entry = &mut self.threads[request.thread];
        entry.need_return = false;
        entry.giving = Some(Box::new(Giving {
            promised: false,
            request,
            transaction: arriving.transaction,
            returns: returns.to_vec(),
            transaction_at: arriving.at,
        }));
        WriteRead::Giving { bwr: request.bwr }
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
        let mut giving = self.threads[thread].giving.take_if(|giving| !giving.promised)?;
        let Giving { mut request, transaction, .. } = *giving;
        let caller = request.caller;
        let stored = self.store_numbers(host, transaction, fds);
        if stored.is_err() {
            host.close_on_return(caller, fds);
            return self.refuse(host, *giving);
        }
        let returns = &mut giving.returns;
        let result = self.hand_over(host, &mut request, returns, Some(transaction));
        if result.is_err() {
            host.close_on_return(caller, fds);
        }
        Some(WriteRead::Done { bwr: request.bwr, result })
    }

    fn store_numbers<H: Host>(
        &mut self,
        host: &mut H,
        transaction: TransactionId,
        fds: &[u32],
    ) -> Result<(), Errno> {
        let buffer = self.transactions[transaction].buffer.ok_or(Errno::EINVAL)?;
        let entry = &mut self.buffers[buffer];
        if entry.files.len() != fds.len() {
            return Err(Errno::EINVAL);
        }
        for (slot, fd) in entry.files.iter().zip(fds) {
            let at = u64::from(entry.offset) + u64::from(slot.at);
            host.store(entry.process, at, fd.as_bytes()).map_err(|_| Errno::ENOMEM)?;
        }
        for (slot, &fd) in std::mem::take(&mut entry.files).iter().zip(fds) {
            if slot.holder == FileHolder::Array {
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
        if giving.promised {
            self.break_promise(host, thread, &giving);
            return None;
        }
        self.refuse(host, *giving)
    }

    /// Nobody reads just now: who waits for a reply finds the word with its next read.
    fn break_promise<H: Host>(&mut self, host: &mut H, thread: ThreadId, giving: &Giving) {
        let is_reply = self.transactions[giving.transaction].kind == Kind::Reply;
        self.transaction_lost(host, giving.transaction);
        if is_reply && !std::mem::replace(&mut self.threads[thread].reply_error, true) {
            self.push_thread_work(thread, Work::ReplyError(binder_uapi::returns::BR_FAILED_REPLY));
        }
    }

    /// The front end will give the files between this read and a later one: answers the read with
    /// what there is beside the transaction, often [`BR_NOOP`](binder_uapi::returns) alone, and
    /// clients read again. `None`: nobody gives there. Afterwards
    /// [`files_arrived`](Self::files_arrived) or [`files_refused`](Self::files_refused) says how it
    /// went; a read that comes before either is [`WriteRead::Giving`] anew.
    pub fn promise_files<H: Host>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        tid: u32,
    ) -> Option<WriteRead> {
        let thread = self.known_thread(process, tid)?;
        let giving = self.threads[thread].giving.as_mut().filter(|giving| !giving.promised)?;
        giving.promised = true;
        let mut request = giving.request;
        let mut before = std::mem::take(&mut giving.returns);
        giving.returns = before.split_off(giving.transaction_at);
        giving.transaction_at = 0;
        let result = self.hand_over(host, &mut request, &mut before, None);
        if result.is_err() {
            let _ = self.files_refused(host, process, tid);
        }
        Some(WriteRead::Done { bwr: request.bwr, result })
    }

    /// The thread has the files of its promised transaction under these numbers. False: none is
    /// promised to it (any more), or the numbers do not fit; then they have to be closed there.
    pub fn files_arrived<H: Host>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        tid: u32,
        fds: &[u32],
    ) -> bool {
        let Some(thread) = self.known_thread(process, tid) else { return false };
        let giving = self.threads[thread].giving.as_ref().filter(|giving| giving.promised);
        let Some(transaction) = giving.map(|giving| giving.transaction) else { return false };
        // From now on it is a transaction like any other: should the thread die, another one of the
        // process may take it, for they have their descriptors in common.
        let stored = self.store_numbers(host, transaction, fds);
        if stored.is_err() {
            let _ = self.files_refused(host, process, tid);
        }
        stored.is_ok()
    }

    /// The thread is about to wait for an answer. What it was promised, and any other thread may
    /// take, is none of its affairs any more.
    pub(crate) fn hand_promise_back(&mut self, thread: ThreadId) {
        let transactions = &self.transactions;
        let for_any_thread = |giving: &mut Box<Giving>| {
            let transaction = &transactions[giving.transaction];
            transaction.kind != Kind::Reply && transaction.to_thread.is_none()
        };
        let entry = &mut self.threads[thread];
        let Some(giving) = entry.giving.take_if(for_any_thread) else { return };
        let process = entry.process;
        self.queues.push(self.processes[process].todo, Work::Transaction(giving.transaction));
        self.wake_process(process);
    }

    /// A read of a thread to which a transaction is promised; `room` for so many bytes.
    pub(crate) fn read_promised<H: Host>(
        &mut self,
        host: &mut H,
        mut request: ReadRequest,
        room: u64,
    ) -> Option<WriteRead> {
        let thread = request.thread;
        let mut giving = self.threads[thread].giving.take()?;
        let mut out = Vec::with_capacity(4 + giving.returns.len());
        if request.bwr.read_consumed == 0 && room >= 4 {
            out.extend_from_slice(binder_uapi::returns::BR_NOOP.as_bytes());
        }
        let at = out.len();
        if room < at as u64 + ROOM_FOR_ONE {
            self.threads[thread].giving = Some(giving);
            let result = self.hand_over(host, &mut request, &mut out, None);
            return Some(WriteRead::Done { bwr: request.bwr, result });
        }
        out.append(&mut giving.returns);
        let transaction = giving.transaction;
        if self.carries_files(transaction) {
            return Some(self.begin_giving(request, &out, Arriving { transaction, at }));
        }
        let result = self.hand_over(host, &mut request, &mut out, Some(transaction));
        Some(WriteRead::Done { bwr: request.bwr, result })
    }

    fn refuse<H: Host>(&mut self, host: &mut H, giving: Giving) -> Option<WriteRead> {
        let Giving { mut request, transaction, mut returns, transaction_at, .. } = giving;
        returns.truncate(transaction_at);
        if self.transactions[transaction].kind == Kind::Reply {
            // The reader is the one who waits for it.
            returns.extend_from_slice(binder_uapi::returns::BR_FAILED_REPLY.as_bytes());
        }
        self.transaction_lost(host, transaction);
        if request.bwr.read_consumed + returns.len() as u64 <= 4 {
            return None;
        }
        let result = self.hand_over(host, &mut request, &mut returns, None);
        Some(WriteRead::Done { bwr: request.bwr, result })
    }
}

/// Takes the file whose number is at this place of the parcel.
fn take_file<H: Host>(
    host: &mut H,
    sender: Sender,
    parcel: &mut Parcel<'_>,
    at: u64,
    holder: FileHolder,
) -> Result<(), Errno> {
    if !parcel.accepts_fds {
        return Err(Errno::EPERM);
    }
    if parcel.files.len() >= MAX_FILES_A_TRANSACTION {
        return Err(Errno::ENOMEM);
    }
    let fd: u32 = parcel.get(at)?;
    let file = host.take_file(sender.caller, fd)?;
    parcel.files.push(FileSlot { file, at: at as u32, holder });
    Ok(())
}
