//! File descriptors in transactions: taken from the sender when it sends, installed in the
//! receiver's thread before it reads the transaction.
//!
//! Installing takes time (the front end may have to stop the thread), so a read that took such a
//! transaction neither returns nor parks until the front end reports the result. A front end that
//! installs files only between two ioctls lets the read return without the transaction, whose
//! delivery is then *deferred*: a later read of the thread returns it.

use binder_uapi::returns::{BR_FAILED_REPLY, BR_NOOP};
use binder_uapi::{BinderBufferObject, BinderFdArrayObject};
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::buffer::{FileHolder, FileSlot};
use crate::driver::{Driver, ProcessId, ThreadId, TransactionId};
use crate::host::{Errno, FileToken, Host};
use crate::limits::{MAX_FILES_A_TRANSACTION, ROOM_FOR_ONE};
use crate::transaction::Kind;
use crate::transaction::parcel::{ObjectPlace, Parcel};
use crate::transaction::scatter_gather::Gather;
use crate::transaction::send::Sender;
use crate::write_read::work::Work;
use crate::write_read::{Arriving, ReadRequest, WriteRead};

/// Offset of the descriptor in a `binder_fd_object`.
const FD_OFFSET: u64 = 8;

/// A read whose transaction has file descriptors, until they are installed in the reader.
#[derive(Debug, Serialize, Deserialize)]
pub struct FdDelivery {
    /// The read returned without the transaction.
    pub is_deferred: bool,
    pub request: ReadRequest,
    pub transaction: TransactionId,
    /// The returns of the read, and the offset of the transaction in them.
    pub returns: Vec<u8>,
    pub transaction_at: usize,
}

/// Translates a single descriptor. `EPERM`: the target accepts none; also the errors of
/// [`take_file`](crate::Files).
pub(crate) fn translate_fd<H: Host>(
    host: &mut H,
    sender: Sender,
    parcel: &mut Parcel<'_>,
    at: u64,
) -> Result<(), Errno> {
    take_file(host, sender, parcel, at + FD_OFFSET, FileHolder::Object)?;
    // The sender's number is cleared until the receiver's number is stored.
    parcel.put(at + FD_OFFSET, &0_u64)
}

/// Translates an array of descriptors in the buffer of an earlier object. `EINVAL`: it is not
/// wholly inside.
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
    /// Whether files have to be installed before the reader receives the transaction.
    pub(crate) fn carries_files(&self, transaction: TransactionId) -> bool {
        let buffer = self.transactions[transaction].buffer;
        buffer.is_some_and(|buffer| !self.buffers[buffer].files.is_empty())
    }

    /// Suspends a read until its files are installed.
    pub(crate) fn begin_fd_delivery(
        &mut self,
        request: ReadRequest,
        returns: &[u8],
        arriving: Arriving,
    ) -> WriteRead {
        let entry = &mut self.threads[request.thread];
        entry.need_return = false;
        entry.fd_delivery = Some(Box::new(FdDelivery {
            is_deferred: false,
            request,
            transaction: arriving.transaction,
            returns: returns.to_vec(),
            transaction_at: arriving.at,
        }));
        WriteRead::InstallFds { bwr: request.bwr }
    }

    /// The files of a read in [`WriteRead::InstallFds`], in the order in which their numbers are
    /// expected.
    pub fn files_to_install(&self, process: ProcessId, tid: u32) -> Vec<FileToken> {
        let thread = self.known_thread(process, tid).map(|thread| &self.threads[thread]);
        let delivery = thread.and_then(|thread| thread.fd_delivery.as_ref());
        let buffer = delivery.and_then(|delivery| self.transactions[delivery.transaction].buffer);
        let files = buffer.map(|buffer| self.buffers[buffer].files.iter());
        files.map(|files| files.map(|slot| slot.file).collect()).unwrap_or_default()
    }

    /// Debug id of the call whose files a reader waits for; `None`: it waits for those of a reply,
    /// or for none.
    pub fn call_with_files(&self, process: ProcessId, tid: u32) -> Option<u32> {
        let thread = self.known_thread(process, tid)?;
        let delivery = self.threads[thread].fd_delivery.as_ref()?;
        let transaction = &self.transactions[delivery.transaction];
        (transaction.kind != Kind::Reply).then_some(transaction.id)
    }

    /// The files are installed in the reader under these numbers: completes the read. `None`: the
    /// thread has no such delivery (any more).
    pub fn files_installed<H: Host>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        tid: u32,
        fds: &[u32],
    ) -> Option<WriteRead> {
        let thread = self.known_thread(process, tid)?;
        let mut delivery =
            self.threads[thread].fd_delivery.take_if(|delivery| !delivery.is_deferred)?;
        let FdDelivery { mut request, transaction, .. } = *delivery;
        let caller = request.caller;
        let stored = self.store_numbers(host, transaction, fds);
        if stored.is_err() {
            host.close_on_return(caller, fds);
            return self.refuse(host, *delivery);
        }
        let returns = &mut delivery.returns;
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

    /// The files could not be installed: the transaction fails for its sender. Returns the rest of
    /// the read. `None`: the rest is empty, or the thread has no delivery; then the reader has to
    /// read again, with the argument of [`WriteRead::InstallFds`].
    pub fn files_refused<H: Host>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        tid: u32,
    ) -> Option<WriteRead> {
        let thread = self.known_thread(process, tid)?;
        let delivery = self.threads[thread].fd_delivery.take()?;
        if delivery.is_deferred {
            self.fail_deferred(host, thread, &delivery);
            return None;
        }
        self.refuse(host, *delivery)
    }

    /// Fails a transaction while the thread is not in a read: if the thread waits for this reply,
    /// its next read returns the error.
    fn fail_deferred<H: Host>(&mut self, host: &mut H, thread: ThreadId, delivery: &FdDelivery) {
        let is_reply = self.transactions[delivery.transaction].kind == Kind::Reply;
        self.transaction_lost(host, delivery.transaction);
        if is_reply && !std::mem::replace(&mut self.threads[thread].reply_error, true) {
            self.push_thread_work(thread, Work::ReplyError(BR_FAILED_REPLY));
        }
    }

    /// The front end will install the files between this read and a later one: completes the read
    /// without the transaction, often with [`BR_NOOP`] alone, after which clients read again.
    /// `None`: the thread has no delivery. The front end reports the result by
    /// [`files_arrived`](Self::files_arrived) or [`files_refused`](Self::files_refused); a read
    /// before that is [`WriteRead::InstallFds`] again.
    pub fn defer_files<H: Host>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        tid: u32,
    ) -> Option<WriteRead> {
        let thread = self.known_thread(process, tid)?;
        let delivery =
            self.threads[thread].fd_delivery.as_mut().filter(|delivery| !delivery.is_deferred)?;
        delivery.is_deferred = true;
        let mut request = delivery.request;
        let mut before = std::mem::take(&mut delivery.returns);
        delivery.returns = before.split_off(delivery.transaction_at);
        delivery.transaction_at = 0;
        let result = self.hand_over(host, &mut request, &mut before, None);
        if result.is_err() {
            let _ = self.files_refused(host, process, tid);
        }
        Some(WriteRead::Done { bwr: request.bwr, result })
    }

    /// The files of the thread's deferred transaction are installed under these numbers. False: the
    /// thread has no deferred transaction (any more), or the numbers do not match; then the thread
    /// has to close them.
    pub fn files_arrived<H: Host>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        tid: u32,
        fds: &[u32],
    ) -> bool {
        let Some(thread) = self.known_thread(process, tid) else { return false };
        let delivery =
            self.threads[thread].fd_delivery.as_ref().filter(|delivery| delivery.is_deferred);
        let Some(transaction) = delivery.map(|delivery| delivery.transaction) else { return false };
        // From now on it is a normal transaction: if the thread dies, another one of the process
        // may receive it, because they share their descriptor table.
        let stored = self.store_numbers(host, transaction, fds);
        if stored.is_err() {
            let _ = self.files_refused(host, process, tid);
        }
        stored.is_ok()
    }

    /// The thread is about to wait for a reply: a deferred transaction that any thread of its
    /// process may receive goes back to the process's queue.
    pub(crate) fn requeue_deferred(&mut self, thread: ThreadId) {
        let transactions = &self.transactions;
        let for_any_thread = |delivery: &mut Box<FdDelivery>| {
            let transaction = &transactions[delivery.transaction];
            transaction.kind != Kind::Reply && transaction.to_thread.is_none()
        };
        let entry = &mut self.threads[thread];
        let Some(delivery) = entry.fd_delivery.take_if(for_any_thread) else { return };
        let process = entry.process;
        self.queues.push(self.processes[process].todo, Work::Transaction(delivery.transaction));
        self.wake_process(process);
    }

    /// A read of a thread that has a deferred transaction. `room`: bytes left in the read buffer.
    pub(crate) fn read_deferred<H: Host>(
        &mut self,
        host: &mut H,
        mut request: ReadRequest,
        room: u64,
    ) -> Option<WriteRead> {
        let thread = request.thread;
        let mut delivery = self.threads[thread].fd_delivery.take()?;
        let mut out = Vec::with_capacity(4 + delivery.returns.len());
        if request.bwr.read_consumed == 0 && room >= 4 {
            out.extend_from_slice(BR_NOOP.as_bytes());
        }
        let at = out.len();
        if room < at as u64 + ROOM_FOR_ONE {
            self.threads[thread].fd_delivery = Some(delivery);
            let result = self.hand_over(host, &mut request, &mut out, None);
            return Some(WriteRead::Done { bwr: request.bwr, result });
        }
        out.append(&mut delivery.returns);
        let transaction = delivery.transaction;
        if self.carries_files(transaction) {
            return Some(self.begin_fd_delivery(request, &out, Arriving { transaction, at }));
        }
        let result = self.hand_over(host, &mut request, &mut out, Some(transaction));
        Some(WriteRead::Done { bwr: request.bwr, result })
    }

    fn refuse<H: Host>(&mut self, host: &mut H, delivery: FdDelivery) -> Option<WriteRead> {
        let FdDelivery { mut request, transaction, mut returns, transaction_at, .. } = delivery;
        returns.truncate(transaction_at);
        if self.transactions[transaction].kind == Kind::Reply {
            // The reader waits for this reply.
            returns.extend_from_slice(BR_FAILED_REPLY.as_bytes());
        }
        self.transaction_lost(host, transaction);
        if request.bwr.read_consumed + returns.len() as u64 <= 4 {
            return None;
        }
        let result = self.hand_over(host, &mut request, &mut returns, None);
        Some(WriteRead::Done { bwr: request.bwr, result })
    }
}

/// Takes the file whose descriptor is at this offset of the parcel.
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
