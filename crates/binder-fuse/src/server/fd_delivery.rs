//! Reads whose transaction has file descriptors: submitted to the [`FdInstaller`], and completed
//! with its outcome. Where the reader's calls are trapped, its delivery is deferred, and a [`Trap`]
//! installs the files at its next call.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use binder_driver::{Caller, Errno, ProcessId, WriteRead};
use binder_uapi::BinderWriteRead;
use ioctl_trap::{HeldCalls, Listener};
use rustix::event::epoll::{self, EventData, EventFlags};
use zerocopy::IntoBytes;

use super::call::{Call, CallState, FileRead, PendingIoctl, Signal, Transport};
use super::{FD_DELIVERIES, Server};
use crate::Error;
use crate::client_memory::MemoryWrite;
use crate::files::{
    CallStop, ClientFile, Completion, FdInstaller, Job, Outcome, ReadRoom, Trap, TrapOutcome,
};
use crate::open::{CallKey, OpenKey};

/// What delivers files.
#[derive(Default)]
pub(super) struct FdDeliveries {
    /// Started with the first delivery.
    installer: Option<FdInstaller>,
    /// Created with the first filter.
    pub(super) trap: Option<Trap>,
}

impl FdDeliveries {
    /// Whether an outcome is due: the event loop must not block in the read of a request.
    pub(super) fn awaits_outcome(&self) -> bool {
        self.installer.as_ref().is_some_and(FdInstaller::has_readers)
    }

    /// Whether no descriptor is being installed or closed in a client.
    pub(super) fn is_idle(&self) -> bool {
        self.installer
            .as_ref()
            .is_none_or(|installer| installer.is_idle() && !installer.has_readers())
    }

    /// Whether clients run under filters.
    pub(super) fn has_filters(&self) -> bool {
        self.trap.is_some()
    }

    /// Filters of the session itself, which allow all calls.
    fn known_filters(&self) -> u32 {
        u32::from(self.trap.is_some())
    }

    /// Ends the workers. The next delivery starts others.
    pub(super) fn stop_workers(&mut self) {
        self.installer = None;
    }
}

impl Server {
    fn installer(&mut self) -> io::Result<&mut FdInstaller> {
        if self.fd_deliveries.installer.is_none() {
            let installer =
                FdInstaller::start(Arc::clone(&self.channel), self.host.closers.clone())?;
            let events = EventFlags::IN | EventFlags::ET;
            epoll::add(&self.epoll, installer.signal(), EventData::new_u64(FD_DELIVERIES), events)?;
            self.fd_deliveries.installer = Some(installer);
        }
        self.fd_deliveries.installer.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Serves a seccomp filter that clients run under: files are added to their threads while they
    /// are trapped by the filter, and the threads are not stopped. `held_calls` is shared with the
    /// process that replaces this server once it has exited ([`ioctl_trap::stand_in`]).
    pub fn add_listener(&mut self, listener: Listener, held_calls: HeldCalls) -> Result<(), Error> {
        let trap = self.fd_deliveries.trap.get_or_insert_with(Trap::new);
        trap.listen(listener, held_calls).map_err(Error::io("cannot start a thread that listens"))
    }

    /// A read has taken a transaction with files.
    pub(super) fn begin_fd_delivery(
        &mut self,
        request: PendingIoctl,
        bwr: BinderWriteRead,
    ) -> io::Result<()> {
        let Caller { process, tid, .. } = request.caller;
        if let Some(answer) = self.defer_fd_delivery(request) {
            return self.answer_read(request, answer);
        }
        let files = self.files_for(process, tid);
        let reply = self.reply.ioctl(request.unique(), 0, bwr.as_bytes()).to_vec();
        let room = ReadRoom {
            address: bwr.read_buffer.wrapping_add(bwr.read_consumed),
            len: bwr.read_size.saturating_sub(bwr.read_consumed),
        };
        let read = Box::new(FileRead { bwr, signal: Signal::None });
        let call = self.wait(request, CallState::PassingFiles(read));
        let job = Job {
            delivery: Some(call),
            reader: request.caller,
            call_stop: self.call_stop(request.key),
            known_filters: self.fd_deliveries.known_filters(),
            charge: self.host.charge(request.caller),
            reply,
            room,
            files,
            closes: Vec::new(),
        };
        match self.installer().map(|installer| installer.submit(job)) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let error = io::Error::other("no thread to install descriptors");
                self.finish_fd_delivery(call, Outcome::Unanswered(error))
            }
            Err(error) => self.finish_fd_delivery(call, Outcome::Unanswered(error)),
        }
    }

    /// Handles a signal for a reader that waits for files.
    ///
    /// If a worker executes the delivery, it sends the reply to the reader's request first. A
    /// delivery that waits for other deliveries to the same owner is deferred: the thread's next
    /// read returns its transaction.
    pub(super) fn withdraw_fd_delivery(&mut self, call: CallKey) -> io::Result<()> {
        let installer = self.fd_deliveries.installer.as_mut();
        if !installer.is_some_and(|installer| installer.withdraw(call)) {
            return Ok(());
        }
        let Some(Call { request, .. }) = self.end_wait(call) else { return Ok(()) };
        let Caller { process, tid, .. } = request.caller;
        match self.driver.defer_files(&mut self.host, process, tid) {
            Some(answer) => self.answer_read(request, answer),
            None => self.send_errno(&request, libc::EINTR),
        }
    }

    fn call_stop(&self, key: OpenKey) -> CallStop {
        self.host.opens.get(key).map_or(CallStop::EntryAndExit, |open| open.info.call_stop)
    }

    pub(super) fn files_for(&self, process: ProcessId, tid: u32) -> Vec<Arc<ClientFile>> {
        let tokens = self.driver.files_to_install(process, tid);
        tokens.iter().filter_map(|&token| self.host.files.get(token)).collect()
    }

    /// Defers the delivery to a reader that may be trapped. `None`: the reader has to be stopped.
    fn defer_fd_delivery(&mut self, request: PendingIoctl) -> Option<WriteRead> {
        let Caller { process, tid, .. } = request.caller;
        let trap = self.fd_deliveries.trap.as_ref()?;
        if self.host.opens.get(request.key)?.info.untrapped {
            return None;
        }
        if !trap.defer(tid, process, self.files_for(process, tid)) {
            return None;
        }
        let answer = self.driver.defer_files(&mut self.host, process, tid);
        if !matches!(answer, Some(WriteRead::Done { result: Ok(()), .. })) {
            self.cancel_deferred(tid, process);
        }
        answer
    }

    /// Cancels the deferred delivery to a thread.
    pub(super) fn cancel_deferred(&mut self, tid: u32, process: ProcessId) {
        if let Some(trap) = &self.fd_deliveries.trap {
            trap.withdraw(tid, process);
        }
    }

    /// Collects files that a listener thread has added to a calling thread.
    pub(super) fn collect_deferred(&mut self, key: OpenKey, tid: u32) {
        let trap = self.fd_deliveries.trap.as_ref().filter(|trap| !trap.is_empty());
        let Some((process, outcome)) = trap.and_then(|trap| trap.collect(tid)) else { return };
        let stray = match outcome {
            TrapOutcome::Installed(fds) => {
                let wanted = self.driver.files_arrived(&mut self.host, process, tid, &fds);
                if wanted { Vec::new() } else { fds }
            }
            TrapOutcome::Failed(error, fds) => {
                self.report_refusal(process, tid, &error);
                let _ = self.driver.files_refused(&mut self.host, process, tid);
                fds
            }
            TrapOutcome::Untouched => {
                // The call was not trapped: this open's threads are stopped for their files from
                // now on.
                if let Some(open) = self.host.opens.get_mut(key) {
                    open.info.untrapped = true;
                }
                Vec::new()
            }
        };
        if !stray.is_empty() {
            self.host.closes.entry(tid).or_default().extend(stray);
        }
    }

    /// Serves the outcomes of the workers.
    pub(super) fn serve_fd_deliveries(&mut self) {
        while let Some((call, outcome)) =
            self.fd_deliveries.installer.as_mut().and_then(FdInstaller::outcome)
        {
            if let Err(error) = self.finish_fd_delivery(call, outcome) {
                tracing::warn!("the kernel does not take the answer to a read: {error}");
            }
        }
        self.serve_wakes();
    }

    fn finish_fd_delivery(&mut self, call: CallKey, outcome: Outcome) -> io::Result<()> {
        if let Outcome::Unwritten { reader, resume } = outcome {
            self.fail_unwritten(reader, &resume);
            return Ok(());
        }
        let Some(Call { request, state: CallState::PassingFiles(read) }) = self.end_wait(call)
        else {
            return Ok(());
        };
        let Caller { process, tid, .. } = request.caller;
        match outcome {
            Outcome::Installed(fds) => {
                let driver = &mut self.driver;
                let (answer, returns) = self
                    .host
                    .collect_returns(|host| driver.files_installed(host, process, tid, &fds));
                if answer.is_none() && !self.host.closes.contains_key(&tid) {
                    // The driver no longer knows the read, so these descriptors would never be
                    // closed.
                    self.host.closes.insert(tid, fds);
                }
                self.complete_fd_delivery(call, request, answer, returns);
            }
            Outcome::Stopped(error) => {
                self.report_refusal(process, tid, &error);
                let (answer, returns) = self.refuse_files(process, tid);
                self.complete_fd_delivery(call, request, answer, returns);
            }
            Outcome::Unanswered(error) => {
                self.report_refusal(process, tid, &error);
                match self.driver.files_refused(&mut self.host, process, tid) {
                    Some(answer) => self.answer_read(request, answer)?,
                    None => self.run_write_read(request, read.bwr)?,
                }
                if read.signal == Signal::Arrived
                    && let Some((call, _)) = self.call_of(request.key, tid)
                {
                    // Its read is parked, or waits for its turn.
                    self.interrupt_call(call)?;
                }
            }
            // What its read would have returned is written nowhere.
            Outcome::Lost => {
                self.trace_refusal(process, tid, "it has executed another program, or has ended");
                drop(self.refuse_files(process, tid));
            }
            Outcome::Unwritten { .. } => {}
        }
        Ok(())
    }

    /// Refuses the files of a thread whose ioctl has its reply.
    fn refuse_files(
        &mut self,
        process: ProcessId,
        tid: u32,
    ) -> (Option<WriteRead>, Vec<MemoryWrite>) {
        let driver = &mut self.driver;
        self.host.collect_returns(|host| driver.files_refused(host, process, tid))
    }

    /// The memory of a stopped thread could not be written: the thread does not know of the calls
    /// that it has received.
    fn fail_unwritten(&mut self, reader: Caller, resume: &Sender<Completion>) {
        self.driver.thread_exit(&mut self.host, reader.process, reader.tid);
        let closes = self.host.closes.remove(&reader.tid).unwrap_or_default();
        let result = Some(-Errno::EFAULT.code());
        let _ = resume.send(Completion { writes: Vec::new(), result, closes });
    }

    fn report_refusal(&mut self, process: ProcessId, tid: u32, error: &io::Error) {
        self.trace_refusal(process, tid, &error.to_string());
        self.warn_once("files", || {
            format!(
                "thread {tid} cannot receive file descriptors: {error}; transactions with \
                 descriptors fail for their senders (the thread may be traced by a debugger, or \
                 its table may be full)"
            )
        });
        tracing::debug!("thread {tid} cannot receive files: {error}");
    }

    /// Resumes a stopped reader. `answer` is `None` if the reader has to read again.
    fn complete_fd_delivery(
        &mut self,
        delivery: CallKey,
        request: PendingIoctl,
        answer: Option<WriteRead>,
        mut writes: Vec<MemoryWrite>,
    ) {
        let result = match answer {
            Some(WriteRead::Done { bwr, result }) => {
                if let Transport::Request { argument, .. } = request.from {
                    let bytes = bwr.as_bytes().to_vec();
                    writes.push(MemoryWrite { address: argument, bytes });
                }
                Some(result.map_or_else(|errno| -errno.code(), |()| 0))
            }
            _ => None,
        };
        let closes = self.host.closes.remove(&request.caller.tid).unwrap_or_default();
        if let Some(installer) = &mut self.fd_deliveries.installer {
            installer.complete(delivery, Completion { writes, result, closes });
        }
    }

    /// Replies to a BINDER_WRITE_READ whose caller has to close descriptors at its return. False:
    /// there are none to close.
    pub(super) fn answer_and_close(
        &mut self,
        request: PendingIoctl,
        result: i32,
        bwr: &BinderWriteRead,
    ) -> bool {
        let PendingIoctl { key, caller, .. } = request;
        let Some(closes) = self.host.closes.remove(&caller.tid) else { return false };
        let reply = self.reply.ioctl(request.unique(), result, bwr.as_bytes()).to_vec();
        let job = Job {
            delivery: None,
            reader: caller,
            call_stop: self.call_stop(key),
            known_filters: self.fd_deliveries.known_filters(),
            charge: self.host.charge(caller),
            reply,
            room: ReadRoom::default(),
            files: Vec::new(),
            closes,
        };
        self.installer().is_ok_and(|installer| installer.submit(job))
    }
}
