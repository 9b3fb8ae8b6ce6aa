//! Threads: a caller's tid on one open, its looper state, and its exit.

use std::fmt;

use binder_uapi::returns::BR_OK;
use binder_uapi::{BinderExtendedError, BinderWriteRead};
use serde::{Deserialize, Serialize};

use crate::debug::counters::one_more;
use crate::driver::{Driver, ProcessId, ThreadId, TransactionId};
use crate::host::{Caller, Errno, Host};
use crate::limits::MAX_THREADS_A_PROCESS;
use crate::transaction::descriptors::FdDelivery;
use crate::transaction::prediction::LastParcel;
use crate::write_read::held::ReplyComplete;
use crate::write_read::queue::{QueueId, WorkId};
use crate::write_read::wake::WorkScope;
use crate::write_read::work::{DeliverToRead, Work};

/// Looper state of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looper {
    /// `BC_ENTER_LOOPER`: the application's own thread.
    pub entered: bool,
    /// `BC_REGISTER_LOOPER`: a thread that the driver requested.
    pub registered: bool,
    /// `BC_EXIT_LOOPER`.
    pub exited: bool,
    /// The commands above were combined in a wrong way; recorded, without further effect.
    pub invalid: bool,
}

impl Looper {
    /// Whether the thread is in the pool in one of the two ways.
    pub fn in_pool(self) -> bool {
        self.entered || self.registered
    }
}

impl fmt::Display for Looper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (self.entered, "entered"),
            (self.registered, "registered"),
            (self.exited, "exited"),
            (self.invalid, "invalid"),
        ];
        let names = flags.iter().filter(|(set, _)| *set).map(|(_, name)| *name);
        f.write_str(&names.collect::<Vec<_>>().join("|"))
    }
}

/// A read that waits for work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Parked {
    pub caller: Caller,
    #[serde(with = "crate::state::wire_bytes")]
    pub bwr: BinderWriteRead,
    pub scope: WorkScope,
    /// Distinguishes this wait from earlier ones of the thread.
    pub token: u64,
    /// A wake-up is queued.
    pub woken: bool,
}

/// A thread that has used the open.
#[derive(Debug, Serialize, Deserialize)]
pub struct Thread {
    pub process: ProcessId,
    pub tid: u32,
    pub looper: Looper,
    /// Work for this thread only.
    pub todo: QueueId,
    /// `todo` has an item for which a read returns, not only deferred items.
    pub has_urgent: bool,
    /// Delivered before the items of `todo`.
    pub reply_complete: ReplyComplete,
    /// In [`Driver::holding`](crate::driver::Driver).
    pub is_listed_as_holding: bool,
    /// The innermost call that it is in: an incoming one (`to_thread` is this thread) or an
    /// outgoing one.
    pub stack: Option<TransactionId>,
    /// A [`Work::ReturnError`] or [`Work::Error`] is queued: commands are not run until it was
    /// read.
    pub return_error: bool,
    /// A [`Work::ReplyError`] is queued.
    pub reply_error: bool,
    #[serde(with = "crate::state::wire_bytes")]
    pub extended_error: BinderExtendedError,
    /// Its next ioctl, if it is a read, returns at once: the thread is new, or a descriptor was
    /// closed.
    pub need_return: bool,
    /// The read buffer to which returns were written last, so that the next read need not check it.
    pub good_read_buffer: Option<u64>,
    /// Not serialised: without it, the next parcels are not read ahead.
    #[serde(skip)]
    pub last_parcel: LastParcel,
    pub parked: Option<Parked>,
    pub fd_delivery: Option<Box<FdDelivery>>,
    /// The thread has polled the open.
    pub polls: bool,
}

/// `command` of an extended error when there is no error.
pub const NO_ERROR: u32 = BR_OK;

impl Driver {
    /// The thread with this tid, created if it is new.
    pub(crate) fn thread_of(&mut self, process: ProcessId, tid: u32) -> Result<ThreadId, Errno> {
        let entry = self.processes.get_mut(process).ok_or(Errno::EBADF)?;
        if let Some(&thread) = entry.threads.get(&tid) {
            return Ok(thread);
        }
        if entry.threads.len() >= MAX_THREADS_A_PROCESS {
            return Err(Errno::ENOMEM);
        }
        one_more(&mut self.statistics.made.threads);
        let thread = self.threads.insert(Thread {
            process,
            tid,
            looper: Looper::default(),
            todo: self.queues.create(),
            has_urgent: false,
            reply_complete: ReplyComplete::default(),
            is_listed_as_holding: false,
            stack: None,
            return_error: false,
            reply_error: false,
            extended_error: BinderExtendedError { id: 0, command: NO_ERROR, param: 0 },
            need_return: true,
            good_read_buffer: None,
            last_parcel: LastParcel::default(),
            parked: None,
            fd_delivery: None,
            polls: false,
        });
        entry.threads.insert(tid, thread);
        Ok(thread)
    }

    /// Any ioctl but `BINDER_WRITE_READ`: creates the thread if it is new; its first read then does
    /// not return at once. `EBADF`: no such open; `ENOMEM`: too many threads.
    pub fn note_ioctl(&mut self, caller: Caller) -> Result<(), Errno> {
        let thread = self.thread_of(caller.process, caller.tid)?;
        self.threads[thread].need_return = false;
        Ok(())
    }

    /// The thread with this tid, if it has used the open.
    pub(crate) fn known_thread(&self, process: ProcessId, tid: u32) -> Option<ThreadId> {
        self.processes.get(process)?.threads.get(&tid).copied()
    }

    pub(crate) fn enter_looper(&mut self, thread: ThreadId) {
        let looper = &mut self.threads[thread].looper;
        looper.invalid |= looper.registered;
        looper.entered = true;
    }

    pub(crate) fn register_looper(&mut self, thread: ThreadId) {
        let entry = &mut self.threads[thread];
        let process = &mut self.processes[entry.process];
        if entry.looper.entered || process.requested_threads == 0 {
            entry.looper.invalid = true;
        } else {
            process.requested_threads -= 1;
            process.started_threads += 1;
        }
        entry.looper.registered = true;
    }

    pub(crate) fn exit_looper(&mut self, thread: ThreadId) {
        self.threads[thread].looper.exited = true;
    }

    /// `BINDER_THREAD_EXIT`: as if the thread had died, but its own priority is restored. Whoever
    /// waits in an epoll set that the thread has filled is woken: it polled for a state that has
    /// ended.
    pub fn thread_exit<H: Host>(&mut self, host: &mut H, process: ProcessId, tid: u32) {
        if let Some(thread) = self.known_thread(process, tid) {
            self.wake_thread(thread);
        }
        self.restore_first_priority(host, process, tid);
        self.thread_died(host, process, tid);
    }

    /// The thread died: callers that wait for its reply get `BR_DEAD_REPLY`; its parked read is
    /// dropped.
    pub fn thread_died<H: Host>(&mut self, host: &mut H, process: ProcessId, tid: u32) {
        if let Some(thread) = self.known_thread(process, tid) {
            self.release_thread(host, thread);
        }
    }

    pub(crate) fn release_thread<H: Host>(&mut self, host: &mut H, thread: ThreadId) {
        self.unpark(thread);
        let Some(entry) = self.threads.remove(thread) else { return };
        self.processes[entry.process].threads.remove(&entry.tid);
        self.leave_stack(host, thread, entry.stack);
        if let Some(delivery) = entry.fd_delivery {
            delivery.transaction.cancel(self, host, Some(thread));
        }
        while let Some(work) = self.queues.pop(entry.todo) {
            work.cancel(self, host, Some(thread));
        }
        self.queues.destroy(entry.todo);
        self.wake_for_process_work(entry.process);
    }

    /// Queues an item for which the thread's read returns.
    pub(crate) fn push_thread_work(&mut self, thread: ThreadId, work: Work) {
        self.push_deferred_work(thread, work);
        self.threads[thread].has_urgent = true;
        self.wake_thread(thread);
    }

    /// Queues an item that is delivered only together with another one.
    pub(crate) fn push_deferred_work(&mut self, thread: ThreadId, work: Work) -> WorkId {
        self.queues.push(self.threads[thread].todo, work)
    }

    /// Stores the error of the thread's last failed transaction.
    pub(crate) fn set_extended_error(&mut self, thread: ThreadId, id: u32, word: u32, param: i32) {
        self.threads[thread].extended_error = BinderExtendedError { id, command: word, param };
    }

    /// `BINDER_GET_EXTENDED_ERROR`: returns and clears the calling thread's last error.
    pub fn extended_error(&mut self, caller: Caller) -> Result<BinderExtendedError, Errno> {
        let thread = self.thread_of(caller.process, caller.tid)?;
        let none = BinderExtendedError { id: 0, command: NO_ERROR, param: 0 };
        Ok(std::mem::replace(&mut self.threads[thread].extended_error, none))
    }
}
