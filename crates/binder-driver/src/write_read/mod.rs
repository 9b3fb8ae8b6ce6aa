//! `BINDER_WRITE_READ`: commands in, work items out, parked readers and wake-ups.
//!
//! The read half is here: taking work and writing `BR_` returns.

mod commands;
pub mod held;
pub mod queue;
pub mod wake;
pub mod work;

use binder_uapi::BinderWriteRead;
use binder_uapi::returns::{BR_NOOP, BR_SPAWN_LOOPER, BR_TRANSACTION_COMPLETE};
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::driver::{Driver, ProcessId, ThreadId, TransactionId};
use crate::host::{Caller, Errno, Host};
use crate::limits::{MAX_READ_BYTES, ROOM_FOR_ONE};
use crate::transaction::send::Sender;
use crate::write_read::held::ReplyComplete;
use crate::write_read::wake::WorkScope;
use crate::write_read::work::{DeliverToRead, Flow, Reader, Work};

/// Result of a `BINDER_WRITE_READ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteRead {
    /// The ioctl is complete: `bwr` is returned to the client whatever `result` is.
    Done {
        /// The argument with its consumed counts.
        bwr: BinderWriteRead,
        /// The ioctl's result.
        result: Result<(), Errno>,
    },
    /// The commands exceed a slice: serve other clients, then call [`Driver::write_read`] with this
    /// argument. A signal ends the ioctl with `EINTR` and this argument instead.
    Unfinished {
        /// The argument with the counts consumed so far.
        bwr: BinderWriteRead,
    },
    /// Memory of a client is late: call [`Driver::write_read`] with this argument once it answers.
    /// A signal ends the ioctl with `EINTR` and this argument instead.
    Late {
        /// The argument with the counts consumed so far. The command at `write_consumed` has had no
        /// effect, and no work was taken.
        bwr: BinderWriteRead,
    },
    /// No work to read: keep the request and reply to it after a
    /// [`Wake::Reader`](crate::Wake::Reader) ([`Driver::resume`]) or an interrupt, never otherwise.
    Parked,
    /// The read took a transaction with files: install [`Driver::files_to_install`] in the reader,
    /// then call [`Driver::files_installed`] or [`Driver::files_refused`]. Signals have to wait
    /// until then.
    InstallFds {
        /// The argument so far: commands are consumed, no returns are written.
        bwr: BinderWriteRead,
    },
}

/// Whether a read without work may be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The read waits until work arrives.
    Allowed,
    /// `O_NONBLOCK`: the read fails with `EAGAIN` instead.
    Refused,
}

/// A read that is being served.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReadRequest {
    pub caller: Caller,
    pub thread: ThreadId,
    #[serde(with = "crate::state::wire_bytes")]
    pub bwr: BinderWriteRead,
}

/// A transaction that a read has taken.
#[derive(Clone, Copy, Debug)]
pub struct Arriving {
    pub transaction: TransactionId,
    /// Offset of the transaction in the returns of the read.
    pub at: usize,
}

/// Work that a read has taken.
#[derive(Debug, Default)]
struct Taken {
    arriving: Option<Arriving>,
    /// The read ended because of missing room, not of missing work.
    no_room: bool,
}

impl Driver {
    /// `BINDER_WRITE_READ`: runs the commands, then reads or parks. A long list of commands is run
    /// in slices, so that the front end can serve other clients in between
    /// ([`WriteRead::Unfinished`]).
    pub fn write_read<H: Host>(
        &mut self,
        host: &mut H,
        caller: Caller,
        mut bwr: BinderWriteRead,
        waiting: Waiting,
    ) -> WriteRead {
        let thread = match self.thread_of(caller.process, caller.tid) {
            Ok(thread) => thread,
            Err(errno) => return WriteRead::Done { bwr, result: Err(errno) },
        };
        // A thread has one request only: if the front end has lost a parked one, this request
        // replaces it.
        if self.threads[thread].fd_delivery.as_ref().is_some_and(|delivery| !delivery.is_deferred) {
            let _ = self.files_refused(host, caller.process, caller.tid);
        }
        if self.unpark(thread).is_some() {
            self.wake_for_process_work(caller.process);
        }
        if bwr.write_consumed < bwr.write_size {
            match self.run_commands(host, Sender { caller, thread }, &mut bwr) {
                Ok(()) => {}
                Err(Errno::ERESTART) => return WriteRead::Late { bwr },
                Err(errno) => {
                    bwr.read_consumed = 0;
                    return self.answer(thread, bwr, Err(errno));
                }
            }
            if bwr.write_consumed < bwr.write_size && !self.threads[thread].return_error {
                return WriteRead::Unfinished { bwr };
            }
        }
        if bwr.read_size == 0 {
            return self.answer(thread, bwr, Ok(()));
        }
        let request = ReadRequest { caller, thread, bwr };
        match self.check_read_buffer(host, &request) {
            Ok(()) => self.read(host, request, waiting),
            Err(Errno::ERESTART) => WriteRead::Late { bwr },
            Err(errno) => self.answer(thread, bwr, Err(errno)),
        }
    }

    /// Finishes a parked read after [`Wake::Reader`](crate::Wake::Reader). The read may park again
    /// if its work was removed meanwhile; for a thread that is not parked nothing happens
    /// ([`WriteRead::Parked`]: no reply is due).
    pub fn resume<H: Host>(&mut self, host: &mut H, process: ProcessId, tid: u32) -> WriteRead {
        let Some(thread) = self.known_thread(process, tid) else { return WriteRead::Parked };
        let Some(parked) = self.unpark(thread) else { return WriteRead::Parked };
        let request = ReadRequest { caller: parked.caller, thread, bwr: parked.bwr };
        self.read(host, request, Waiting::Allowed)
    }

    /// `EFAULT` if the read buffer is not writable, before any work is taken for it. A buffer that
    /// was writable the last time is not checked again: in a steady state this costs nothing.
    fn check_read_buffer<H: Host>(
        &mut self,
        host: &mut H,
        request: &ReadRequest,
    ) -> Result<(), Errno> {
        let ReadRequest { caller, thread, bwr } = *request;
        let good = self.threads[thread].good_read_buffer == Some(bwr.read_buffer);
        if good || bwr.read_consumed != 0 || bwr.read_size < 4 {
            return Ok(());
        }
        let written = host.write(caller, bwr.read_buffer, BR_NOOP.as_bytes());
        written.map_err(|fault| fault.errno(Errno::EFAULT))?;
        self.threads[thread].good_read_buffer = Some(bwr.read_buffer);
        Ok(())
    }

    fn answer(
        &mut self,
        thread: ThreadId,
        bwr: BinderWriteRead,
        result: Result<(), Errno>,
    ) -> WriteRead {
        self.threads[thread].need_return = false;
        WriteRead::Done { bwr, result }
    }

    fn read<H: Host>(
        &mut self,
        host: &mut H,
        mut request: ReadRequest,
        waiting: Waiting,
    ) -> WriteRead {
        let ReadRequest { caller, thread, bwr } = request;
        let room = bwr.read_size.saturating_sub(bwr.read_consumed).min(MAX_READ_BYTES);
        if let Some(answer) = self.read_deferred(host, request, room) {
            self.threads[thread].need_return = false;
            self.wake_for_process_work(caller.process);
            return answer;
        }
        if waiting == Waiting::Refused {
            self.end_hold(thread);
        }
        let mut out = std::mem::take(&mut self.scratch.returns);
        let answer = loop {
            let scope = self.work_scope(thread);
            if !self.has_work(thread, scope) {
                if waiting == Waiting::Refused {
                    break self.answer(thread, bwr, Err(Errno::EAGAIN));
                }
                self.park(thread, caller, bwr);
                break WriteRead::Parked;
            }
            out.clear();
            if bwr.read_consumed == 0 && room >= 4 {
                out.extend_from_slice(BR_NOOP.as_bytes());
            }
            let mut reader = Reader { process: caller.process, thread, out: &mut out };
            let taken = self.take_work(host, &mut reader, scope, room);
            let only_noop = bwr.read_consumed + out.len() as u64 == 4;
            if only_noop && !taken.no_room && !self.threads[thread].need_return {
                // No item produced a return.
                continue;
            }
            if let Some(arriving) = taken.arriving
                && self.carries_files(arriving.transaction)
            {
                break self.begin_fd_delivery(request, &out, arriving);
            }
            let arriving = taken.arriving.map(|arriving| arriving.transaction);
            let result = self.hand_over(host, &mut request, &mut out, arriving);
            break self.answer(thread, request.bwr, result);
        };
        self.scratch.returns = out;
        self.wake_for_process_work(caller.process);
        answer
    }

    /// Appends the returns for which there is `room`.
    fn take_work<H: Host>(
        &mut self,
        host: &mut H,
        reader: &mut Reader<'_>,
        scope: WorkScope,
        room: u64,
    ) -> Taken {
        let mut taken = Taken::default();
        let Reader { process, thread, .. } = *reader;
        loop {
            let own = self.threads[thread].todo;
            let queue = if self.queues.is_empty(own) && scope == WorkScope::Process {
                self.processes[process].todo
            } else {
                own
            };
            let complete = self.threads[thread].reply_complete != ReplyComplete::Delivered;
            if self.queues.is_empty(queue) && !complete {
                return taken;
            }
            if room.saturating_sub(reader.out.len() as u64) < ROOM_FOR_ONE {
                taken.no_room = true;
                return taken;
            }
            if complete {
                self.threads[thread].reply_complete = ReplyComplete::Delivered;
                Work::TransactionComplete(BR_TRANSACTION_COMPLETE).deliver(self, host, reader);
                continue;
            }
            let Some(work) = self.queues.pop(queue) else { return taken };
            if self.queues.is_empty(own) {
                self.threads[thread].has_urgent = false;
            }
            let at = reader.out.len();
            match work.deliver(self, host, reader) {
                Flow::Continue => {}
                Flow::Return => return taken,
                Flow::ReturnWith(transaction) => {
                    taken.arriving = Some(Arriving { transaction, at });
                    return taken;
                }
            }
        }
    }

    /// Writes the returns to the client; only then a transaction is delivered. On a fault the
    /// transaction fails for its sender, and the read fails with `EFAULT` and nothing consumed.
    pub(crate) fn hand_over<H: Host>(
        &mut self,
        host: &mut H,
        request: &mut ReadRequest,
        out: &mut [u8],
        arriving: Option<TransactionId>,
    ) -> Result<(), Errno> {
        let ReadRequest { caller, thread, ref mut bwr } = *request;
        let spawn = self.wants_looper(caller.process, thread);
        let at = bwr.read_buffer.wrapping_add(bwr.read_consumed);
        let mut written = Ok(());
        if spawn && bwr.read_consumed == 0 && out.len() >= 4 {
            out[..4].copy_from_slice(BR_SPAWN_LOOPER.as_bytes());
        } else if spawn && bwr.read_size >= 4 {
            written = host.write_returns(caller, bwr.read_buffer, BR_SPAWN_LOOPER.as_bytes());
        }
        if written.is_ok() && !out.is_empty() {
            written = host.write_returns(caller, at, out);
        }
        if written.is_err() {
            self.threads[thread].good_read_buffer = None;
            if let Some(transaction) = arriving {
                self.transaction_lost(host, transaction);
            }
            return Err(Errno::EFAULT);
        }
        if spawn && bwr.read_size >= 4 {
            self.processes[caller.process].requested_threads += 1;
        }
        if let Some(transaction) = arriving {
            self.transaction_arrived(host, thread, transaction);
        }
        bwr.read_consumed += out.len() as u64;
        Ok(())
    }

    /// Whether the process should start another looper: no requested looper is missing, no thread
    /// is idle, and the maximum is not reached.
    fn wants_looper(&self, process: ProcessId, thread: ThreadId) -> bool {
        let entry = &self.processes[process];
        entry.requested_threads == 0
            && entry.idle.is_empty()
            && entry.started_threads < entry.max_threads
            && self.threads[thread].looper.in_pool()
    }
}
