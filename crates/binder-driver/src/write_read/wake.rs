//! Parking and waking: which reader is woken for which work.

use std::collections::VecDeque;

use binder_uapi::BinderWriteRead;
use serde::{Deserialize, Serialize};

use crate::driver::{Driver, FreezeId, ProcessId, ThreadId};
use crate::host::{Caller, Errno};
use crate::process::thread::Parked;
use crate::write_read::held::ReplyComplete;

/// An action that the front end has to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// Call [`Driver::resume`] for this parked reader.
    Reader {
        /// The open.
        process: ProcessId,
        /// The parked thread.
        tid: u32,
    },
    /// The open may have become readable for a thread that polled it.
    Poll {
        /// The open.
        process: ProcessId,
    },
    /// A [`Freeze::Waiting`](crate::Freeze::Waiting) has ended: reply to its request.
    Freeze {
        /// Id of the freeze.
        id: FreezeId,
        /// The ioctl's result.
        result: Result<(), Errno>,
    },
}

/// Result of a signal for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Interrupt {
    /// Its wait has ended: the ioctl fails with `EINTR` and returns this argument.
    Ended(BinderWriteRead),
    /// Its read returns a held confirmation: a [`Wake::Reader`] follows.
    Woken,
    /// It is not parked: its read has returned already.
    NotParked,
}

/// The queues from which a thread takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkScope {
    /// The thread's own queue.
    Thread,
    /// The thread's own queue and that of its process.
    Process,
}

/// Wake-ups for the front end; that of a reader is valid only while the same wait lasts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Wakes {
    queue: VecDeque<Pending>,
    next_token: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Pending {
    Reader { thread: ThreadId, token: u64 },
    Poll(ProcessId),
    Freeze(FreezeId),
}

impl Wakes {
    /// A pending freeze has to be checked.
    pub fn freeze(&mut self, id: FreezeId) {
        self.queue.push_back(Pending::Freeze(id));
    }
}

impl Driver {
    /// A thread takes work of its process only while it has none of its own and is in no call.
    pub(crate) fn work_scope(&self, thread: ThreadId) -> WorkScope {
        let entry = &self.threads[thread];
        if entry.stack.is_none()
            && entry.reply_complete != ReplyComplete::Due
            && self.queues.is_empty(entry.todo)
        {
            WorkScope::Process
        } else {
            WorkScope::Thread
        }
    }

    /// Whether there is work for which the thread's read returns.
    pub(crate) fn has_work(&self, thread: ThreadId, scope: WorkScope) -> bool {
        let entry = &self.threads[thread];
        entry.need_return
            || entry.reply_complete == ReplyComplete::Due
            || entry.fd_delivery.is_some()
            || (entry.has_urgent && !self.queues.is_empty(entry.todo))
            || (scope == WorkScope::Process
                && !self.queues.is_empty(self.processes[entry.process].todo))
    }

    /// Parks a read until work arrives.
    pub(crate) fn park(&mut self, thread: ThreadId, caller: Caller, bwr: BinderWriteRead) {
        self.limit_hold(thread);
        let scope = self.work_scope(thread);
        let token = self.wakes.next_token;
        self.wakes.next_token += 1;
        self.threads[thread].parked = Some(Parked { caller, bwr, scope, token, woken: false });
        if scope == WorkScope::Process {
            self.processes[caller.process].idle.push(thread);
        }
    }

    /// Ends the thread's wait, if there is one.
    pub(crate) fn unpark(&mut self, thread: ThreadId) -> Option<Parked> {
        let parked = self.threads.get_mut(thread)?.parked.take()?;
        self.leave_idle(parked.caller.process, thread);
        Some(parked)
    }

    fn leave_idle(&mut self, process: ProcessId, thread: ThreadId) {
        let idle = &mut self.processes[process].idle;
        if let Some(at) = idle.iter().rposition(|&other| other == thread) {
            idle.remove(at);
        }
    }

    /// Queues a wake-up for the thread if it is parked, or for the pollers if it has polled.
    pub(crate) fn wake_thread(&mut self, thread: ThreadId) {
        let entry = &mut self.threads[thread];
        let process = entry.process;
        match &mut entry.parked {
            Some(parked) if !parked.woken => {
                parked.woken = true;
                let token = parked.token;
                self.leave_idle(process, thread);
                self.wakes.queue.push_back(Pending::Reader { thread, token });
            }
            None if entry.polls => self.wake_poll(process),
            _ => {}
        }
    }

    fn wake_poll(&mut self, process: ProcessId) {
        // Consecutive items cause one wake-up of the pollers: none of them runs in between.
        let is_queued =
            matches!(self.wakes.queue.back(), Some(Pending::Poll(last)) if *last == process);
        if self.processes[process].polled && !is_queued {
            self.wakes.queue.push_back(Pending::Poll(process));
        }
    }

    /// Selects an idle thread for work that is queued for it directly.
    pub(crate) fn select_idle(&mut self, process: ProcessId) -> Option<ThreadId> {
        self.processes[process].idle.last().copied()
    }

    /// Work was queued for the whole process: wakes one idle thread, or the pollers.
    pub(crate) fn wake_process(&mut self, process: ProcessId) {
        match self.select_idle(process) {
            Some(thread) => self.wake_thread(thread),
            None => self.wake_poll(process),
        }
    }

    /// A thread has stopped reading while the process's queue has work: another one has to take it.
    pub(crate) fn wake_for_process_work(&mut self, process: ProcessId) {
        let Some(entry) = self.processes.get(process) else { return };
        if !entry.dead && !self.queues.is_empty(entry.todo) {
            self.wake_process(process);
        }
    }

    /// A parked reader has a signal: ends its wait. A held confirmation is delivered instead, as a
    /// server that requests work again after an `EINTR` would wait for it.
    pub fn interrupt(&mut self, process: ProcessId, tid: u32) -> Interrupt {
        let Some(thread) = self.known_thread(process, tid) else { return Interrupt::NotParked };
        if self.threads[thread].parked.is_some() && self.end_hold(thread) {
            // The front end may have taken an earlier wake-up of this wait without resuming it.
            if let Some(parked) = &mut self.threads[thread].parked {
                parked.woken = false;
            }
            self.wake_thread(thread);
            return Interrupt::Woken;
        }
        let Some(parked) = self.unpark(thread) else { return Interrupt::NotParked };
        self.wake_for_process_work(process);
        Interrupt::Ended(parked.bwr)
    }

    /// Whether the open is readable for this thread. From now on each item that no waiting reader
    /// takes causes a [`Wake::Poll`], also while the open is readable: an edge-triggered poller
    /// depends on it. A stale open and one with too many threads are always readable: the read
    /// returns the error.
    pub fn poll(&mut self, caller: Caller) -> bool {
        let Ok(thread) = self.thread_of(caller.process, caller.tid) else { return true };
        self.threads[thread].polls = true;
        self.processes[caller.process].polled = true;
        self.end_hold(thread);
        self.has_work(thread, self.work_scope(thread))
    }

    /// Next action for the front end; call it after any other method, until it returns `None`. A
    /// parked reader is returned once until it is resumed.
    pub fn next_wake(&mut self) -> Option<Wake> {
        loop {
            match self.wakes.queue.pop_front()? {
                Pending::Poll(process) if self.processes.contains_key(process) => {
                    return Some(Wake::Poll { process });
                }
                Pending::Reader { thread, token } => {
                    let Some(entry) = self.threads.get(thread) else { continue };
                    if entry.parked.is_some_and(|parked| parked.token == token) {
                        return Some(Wake::Reader { process: entry.process, tid: entry.tid });
                    }
                }
                Pending::Freeze(id) => {
                    if let Some(result) = self.resume_freeze(id) {
                        return Some(Wake::Freeze { id, result });
                    }
                }
                Pending::Poll(_) => {}
            }
        }
    }
}
