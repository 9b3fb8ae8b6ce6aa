//! Threads: a caller's tid on one open, its looper state, and its exit.

use binder_uapi::BinderExtendedError;

use crate::debug::counters::one_more;
use crate::driver::Driver;
use crate::errno::Errno;
use crate::host::{Caller, Host};
use crate::keys::{ProcessId, ThreadId};
use crate::limits::MAX_THREADS_A_PROCESS;
use crate::process::types::{Looper, NO_ERROR, Thread};
use crate::transaction::prediction::LastParcel;
use crate::write_read::deliver::DeliverToRead;
use crate::write_read::held::ReplyComplete;
use crate::write_read::queue::WorkId;
use crate::write_read::types::Work;

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
