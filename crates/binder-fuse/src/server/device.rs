//! Opens of devices: open, close, exit, poll, and pending requests.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use binder_driver::{
    Caller, ContextId, Errno, Interrupt, Opener, ProcessId, Waiting, Wake, WriteRead,
};
use binder_uapi::BinderWriteRead;
use owners::{Exhausted, NamespaceLevel, Owner, Uid};

use super::call::{Call, CallState, LateRead, PendingIoctl, Stage};
use super::{OPENER, Server, THREAD};
use crate::access_limits::Start;
use crate::files::CallStop;
use crate::fixed::{DeviceId, Place};
use crate::identity::{self, Client, Disposition, UserView};
use crate::mapping::{Backing, MappingKind, NotifyStore, Passthrough};
use crate::nonblock::FlagHistory;
use crate::open::{Calls, Open, OpenInfo, OpenKey, OpenerState, Poll, Views, Warned};
use crate::placement::{self, Move, Moved};
use crate::task_watch::Exit;
use crate::wire::types::{
    FOPEN_DIRECT_IO, InHeader, OpenIn, OpenOut, POLL_SCHEDULE_NOTIFY, PollIn, PollOut,
};

/// Whether the daemon, not the client, has run out of descriptors.
fn out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// The errno that open(2) returns for an error of the server.
fn open_errno(error: &io::Error) -> i32 {
    if out_of_descriptors(error) {
        return libc::ENFILE;
    }
    error.raw_os_error().unwrap_or(libc::ENOMEM)
}

impl Server {
    pub(super) fn open(&mut self, header: &InHeader, open: &OpenIn) -> io::Result<()> {
        let opened = match self.tree.place(header.nodeid) {
            Some(Place::Device(device)) => self.open_device(header, open, device),
            Some(Place::Control | Place::Feature) => {
                Ok(OpenOut { open_flags: FOPEN_DIRECT_IO, ..OpenOut::default() })
            }
            Some(Place::Log(log)) => self.open_log(header, log),
            Some(Place::Root | Place::Features | Place::Logs | Place::Processes) => {
                Err(libc::EISDIR)
            }
            None => Err(libc::ENOENT),
        };
        match opened {
            Ok(out) => self.channel.send(self.reply.body(header.unique, &out)),
            Err(errno) => self.send_error(header, errno),
        }
    }

    /// Errno (positive) on failure.
    fn open_device(
        &mut self,
        header: &InHeader,
        open: &OpenIn,
        device: DeviceId,
    ) -> Result<OpenOut, i32> {
        // Pid 0: a process of a pid namespace that is not visible here. Its memory is not
        // accessible.
        let client = identity::process_of(header.pid, self.own_namespace);
        let client = client
            .map_err(|error| if out_of_descriptors(&error) { libc::ENFILE } else { libc::EPERM })?;
        let pid = client.pid;
        let context = self.tree.context(device).ok_or(libc::ENOENT)?;
        self.tree.claim(header.nodeid).inspect_err(|_| self.note_bound_file(device, pid))?;
        let opened = self.add_open(header, open, context, client);
        if opened.is_err() {
            self.tree.unclaim(header.nodeid);
        }
        let name = self.tree.name(device);
        tracing::debug!("pid {pid} opens {name} as node {}: {opened:?}", header.nodeid);
        opened
    }

    /// Logs once per device why an open got `EBUSY`.
    fn note_bound_file(&mut self, device: DeviceId, pid: u32) {
        let Some(name) = self.tree.mark_bound(device) else { return };
        let name = name.to_owned();
        let folder = self.mount_point().display();
        let sentence = format!(
            "{folder}/{name}: pid {pid} got EBUSY: the file is bound by itself, or opened through \
             /proc/PID/fd, and is open already (FUSE gives one file one mapping); bind the folder \
             {folder} instead and link to its files"
        );
        self.connection_limits.push(sentence.clone());
        self.note_degraded(sentence);
    }

    fn add_open(
        &mut self,
        header: &InHeader,
        open: &OpenIn,
        context: ContextId,
        Client { pid, view: pid_view, sigtrap }: Client,
    ) -> Result<OpenOut, i32> {
        let euid = Uid(header.uid);
        // The calling thread's namespace: the main thread may have ended, and has none then.
        let owner = owner_of(header.pid, euid).map_err(|error| open_errno(&error))?;
        self.host.check_open(owner).map_err(|why| {
            self.warn_exhausted(owner, "opens of devices", why, "EMFILE");
            libc::EMFILE
        })?;
        let backing = self.make_backing(header.nodeid).map_err(|error| {
            self.warn_once("backing", || format!("pid {pid}: no buffer for its open: {error}"));
            open_errno(&error)
        })?;
        let opener = Opener { pid, euid, owner };
        let process = self.driver.open(context, opener).map_err(Errno::code)?;
        if let Some(exit) = self.openers.stale(pid) {
            self.opener_gone(exit);
        }
        let token = OPENER | u64::from(pid);
        if let Err(error) = self.openers.watch(pid, process, self.epoll.as_fd(), token) {
            self.warn_once("openers", || format!("pid {pid} cannot be watched: {error}"));
            self.driver.release(&mut self.host, process);
            return Err(open_errno(&error));
        }
        let (open_flags, backing_id) = backing.open_reply();
        let info = OpenInfo {
            process,
            node: header.nodeid,
            pid,
            opener: OpenerState::Alive,
            euid,
            sender_euid: euid,
            owner,
            views: Views { pid: pid_view, user: UserView::of(header.pid, self.own_users) },
            nonblock: open.flags & libc::O_NONBLOCK as u32 != 0,
            flag_history: FlagHistory::AsOpened,
            calls: Calls::default(),
            poll: None,
            call_stop: match sigtrap {
                Disposition::Other => CallStop::Step,
                Disposition::Ignored => CallStop::EntryAndExit,
            },
            untrapped: false,
            warned: Warned::default(),
        };
        let key = self.host.insert(Open { info, address_space: None, backing });
        Ok(OpenOut { fh: key.to_fh(), open_flags, backing_id })
    }

    /// Warns that an owner gets no more of `things`, at the rate of its warnings.
    pub(super) fn warn_exhausted(
        &mut self,
        owner: Owner,
        things: &str,
        why: Exhausted,
        errno: &str,
    ) {
        if !self.host.warnings.admit(owner) {
            return;
        }
        match why {
            Exhausted::Owner => {
                tracing::warn!("{owner}: too many {things}, refusing more ({errno})")
            }
            Exhausted::All => {
                tracing::warn!(
                    "{owner}: too few {things} are left for all, refusing more ({errno})"
                );
            }
        }
    }

    fn make_backing(&self, node: u64) -> io::Result<Box<dyn Backing>> {
        Ok(match self.agreement.mapping {
            MappingKind::Passthrough => Box::new(Passthrough::new(&self.channel)?),
            MappingKind::NotifyStore => {
                let bypass = self.agreement.cache_bypass;
                Box::new(NotifyStore::new(&self.channel, &self.pages, node, bypass))
            }
        })
    }

    pub(super) fn flush(&mut self, header: &InHeader, fh: u64) -> io::Result<()> {
        if let Some(open) = self.host.opens.get(OpenKey::from_fh(fh)) {
            self.driver.flush(open.info.process);
        }
        self.send_ok(header)
    }

    pub(super) fn release(&mut self, header: &InHeader, fh: u64) -> io::Result<()> {
        self.close_log(fh);
        let key = OpenKey::from_fh(fh);
        self.end_rings_of(key);
        if let Some(open) = self.host.opens.get(key) {
            let process = open.info.process;
            self.driver.release(&mut self.host, process);
        }
        if let Some(open) = self.host.remove(key) {
            for (tid, call) in open.info.calls.iter() {
                self.threads.unwatch(tid, open.info.process);
                self.cancel_deferred(tid, open.info.process);
                // The kernel releases a file after its last call: only a worker may be at one.
                if let Some(call) = call
                    && let Err(error) = self.interrupt_call(call)
                {
                    tracing::warn!("thread {tid}: the kernel does not take the answer: {error}");
                }
            }
            self.openers.unwatch(open.info.pid, open.info.process);
            self.tree.unclaim(open.info.node);
        }
        self.send_ok(header)
    }

    /// A process that had opened devices has exited. Its opens that other processes have inherited
    /// remain; those that only messages hold end, as nothing stays queued for them.
    pub(super) fn opener_gone(&mut self, exit: Exit) {
        for process in exit.processes {
            let key = self.host.key_of(process);
            let Some(open) = key.and_then(|key| self.host.opens.get_mut(key)) else { continue };
            open.info.opener = OpenerState::Exited;
            // Its threads have exited, too. What was queued for one of them goes to the process.
            let tids: Vec<u32> = open.info.calls.iter().map(|(tid, _)| tid).collect();
            for tid in tids {
                if let Some(exit) = self.threads.stale(tid) {
                    self.thread_gone(exit);
                }
            }
            self.driver.opener_exited(&mut self.host, process);
        }
        self.serve_wakes();
    }

    /// Refreshes the effective uid that receivers see, at the request of a thread of the opener's
    /// process: it is that of the main thread. The filesystem uid of a request is the effective one
    /// unless setfsuid(2) was used. No request of another process has an effect: the opener may
    /// have executed a setuid program, which did not make the call.
    pub(super) fn refresh_opener_euid(&mut self, key: OpenKey, tid: u32, fsuid: Uid) {
        let Some(open) = self.host.opens.get(key) else { return };
        let (pid, process) = (open.info.pid, open.info.process);
        if open.info.sender_euid == fsuid {
            return;
        }
        let euid = if tid == pid { Some(fsuid) } else { identity::euid_of(pid) };
        // After the read: a thread that waits in its request ends when its process executes a
        // program, so the main thread has executed none before.
        let Some(euid) = euid.filter(|_| identity::is_thread_of(pid, tid)) else { return };
        // Another process may have this pid by now.
        if let Some(exit) = self.openers.stale(pid) {
            self.opener_gone(exit);
        }
        if let Some(open) = self.host.opens.get_mut(key)
            && open.info.opener == OpenerState::Alive
        {
            open.info.sender_euid = euid;
            self.driver.set_opener_euid(process, euid);
        }
    }

    /// Records a thread that makes a call on an open.
    ///
    /// Errno (positive) if its owner has too many, as if the kernel's driver had no memory.
    pub(super) fn note_thread(&mut self, key: OpenKey, tid: u32) -> Result<(), i32> {
        let Some(open) = self.host.opens.get_mut(key) else { return Ok(()) };
        if open.info.calls.knows(tid) {
            return Ok(());
        }
        let (process, owner) = (open.info.process, open.info.owner);
        let token = THREAD | u64::from(tid);
        if let Some(exit) = self.threads.stale(tid) {
            self.thread_gone(exit);
        }
        self.host.add_thread(key, tid).map_err(|why| {
            self.warn_exhausted(owner, "threads that call", why, "ENOMEM");
            libc::ENOMEM
        })?;
        if let Err(error) = self.threads.watch(tid, process, self.epoll.as_fd(), token) {
            tracing::debug!("thread {tid} cannot be watched: {error}");
        }
        Ok(())
    }

    /// A client's thread has exited.
    pub(super) fn thread_gone(&mut self, exit: Exit) {
        self.end_ring(exit.id);
        for process in exit.processes {
            self.driver.thread_died(&mut self.host, process, exit.id);
            self.cancel_deferred(exit.id, process);
            self.host.forget_thread(process, exit.id);
        }
        self.serve_wakes();
    }

    pub(super) fn poll(&mut self, header: &InHeader, poll: &PollIn) -> io::Result<()> {
        let key = OpenKey::from_fh(poll.fh);
        let (revents, _moved) = match self.host.opens.get(key) {
            Some(open) if header.pid != 0 => {
                let caller =
                    Caller { process: open.info.process, tid: header.pid, euid: Uid(header.uid) };
                if let Err(errno) = self.note_thread(key, header.pid) {
                    return self.send_error(header, errno);
                }
                let readable = self.driver.poll(caller);
                if poll.flags & POLL_SCHEDULE_NOTIFY != 0
                    && let Some(open) = self.host.opens.get_mut(key)
                {
                    open.info.poll = Some(Poll { handle: poll.kh, thread: Some(header.pid) });
                }
                self.chain.request(header.pid, Instant::now());
                let moved = self.place_woken(header.pid);
                (if readable { libc::POLLIN | libc::POLLRDNORM } else { 0 }, moved)
            }
            Some(_) => (libc::POLLERR, None),
            // An ENOSYS would disable polling for the devices too.
            None => (libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM, None),
        };
        let out = PollOut { revents: revents as u32, padding: 0 };
        self.channel.send(self.reply.body(header.unique, &out))
    }

    /// Ends the reads of descriptors that are nonblocking by now.
    pub(super) fn end_nonblocking_reads(&mut self) {
        for read in self.nonblock.take_nonblocking() {
            let Some(&Call { request, .. }) = self.calls.get(read.call) else { continue };
            if let Some(open) = self.host.opens.get_mut(request.key) {
                open.info.flag_history = FlagHistory::Changed;
            }
            let sent = self.end_parked(read.call, Errno::EAGAIN);
            self.log_unsent(&request, sent);
        }
        self.serve_wakes();
    }

    /// Acts on the driver's result for a BINDER_WRITE_READ.
    pub(super) fn answer_read(
        &mut self,
        request: PendingIoctl,
        answer: WriteRead,
    ) -> io::Result<()> {
        match answer {
            WriteRead::Done { bwr, result } => self.finish(request, &bwr, result),
            WriteRead::Unfinished { bwr } => {
                self.continue_call(request, bwr);
                Ok(())
            }
            WriteRead::Late { bwr } => {
                match request.ring() {
                    Some(ring) => self.leave_to_request(ring, bwr),
                    None => self.delay_call(request, bwr, Stage::Due),
                }
                Ok(())
            }
            WriteRead::Parked => {
                self.park(request);
                Ok(())
            }
            WriteRead::InstallFds { bwr } => match request.ring() {
                Some(ring) => self.offer_ring_files(ring, request),
                None => self.begin_fd_delivery(request, bwr),
            },
        }
    }

    /// Runs a read as if its caller had made the ioctl again.
    pub(super) fn run_write_read(
        &mut self,
        request: PendingIoctl,
        bwr: BinderWriteRead,
    ) -> io::Result<()> {
        // A call of a ring accesses no memory of its client.
        let start = match request.ring() {
            Some(_) => Start::Now,
            None => self.host.start_of_call(request.caller),
        };
        match start {
            Start::Now => return self.run_now(request, bwr),
            Start::Touched => self.touch_and_delay(request, bwr),
            Start::Later => self.delay_call(request, bwr, Stage::Due),
        }
        Ok(())
    }

    pub(super) fn run_now(
        &mut self,
        request: PendingIoctl,
        bwr: BinderWriteRead,
    ) -> io::Result<()> {
        let Some(open) = self.host.opens.get(request.key) else {
            return self.send_errno(&request, libc::EBADF);
        };
        let waiting = if open.info.nonblock { Waiting::Refused } else { Waiting::Allowed };
        let answer = self.driver.write_read(&mut self.host, request.caller, bwr, waiting);
        self.answer_read(request, answer)
    }

    /// Replies to a BINDER_WRITE_READ: the argument is returned whatever the result is.
    pub(super) fn finish(
        &mut self,
        request: PendingIoctl,
        bwr: &BinderWriteRead,
        result: Result<(), Errno>,
    ) -> io::Result<()> {
        self.host.restore_priority_of(request.caller.tid);
        if let Some(access) = self.host.take_late_returns()
            && result.is_ok()
        {
            let read = Box::new(LateRead { bwr: *bwr, access });
            self.wait(request, CallState::Returning(read));
            return Ok(());
        }
        let result = result.map_or_else(|errno| -errno.code(), |()| 0);
        let is_request = request.ring().is_none();
        if is_request && !self.host.closes.is_empty() && self.answer_and_close(request, result, bwr)
        {
            self.chain.wake(request.caller.tid);
            return Ok(());
        }
        let _moved = self.place_woken(request.caller.tid);
        self.send_result(&request, result, bwr)
    }

    /// Handles the wake-ups of the driver.
    pub(super) fn serve_wakes(&mut self) {
        while let Some(wake) = self.driver.next_wake() {
            let sent = match wake {
                Wake::Reader { process, tid } => self.resume(process, tid),
                Wake::Poll { process } => self.wake_pollers(process),
                Wake::Freeze { id, result } => self.freeze_ended(id, result),
            };
            if let Err(error) = sent {
                tracing::warn!("{wake:?}: the kernel does not take the answer: {error}");
            }
        }
        self.host.restore_priorities();
    }

    fn resume(&mut self, process: ProcessId, tid: u32) -> io::Result<()> {
        if self.delay_parked(process, tid) {
            return Ok(());
        }
        let answer = self.driver.resume(&mut self.host, process, tid);
        if answer == WriteRead::Parked {
            return Ok(());
        }
        let Some((key, request)) = self.parked(process, tid) else { return Ok(()) };
        self.end_wait(key);
        self.answer_read(request, answer)
    }

    /// Makes a thread that is woken next wake up on the CPU of the event loop, as long as the calls
    /// form one chain.
    pub(super) fn place_woken(&mut self, tid: u32) -> Option<Moved> {
        self.chain.wake(tid);
        if !self.chain.wants_one_cpu() {
            return None;
        }
        match placement::move_here(tid) {
            Move::Moved(moved) => Some(moved),
            Move::Bound => {
                self.chain.is_bound();
                None
            }
            Move::Refused => None,
        }
    }

    /// Ends a parked read and starts it again later, if memory of its client cannot be accessed
    /// now. False: it can.
    fn delay_parked(&mut self, process: ProcessId, tid: u32) -> bool {
        if self.host.is_unlimited() {
            return false;
        }
        let Some((key, request)) = self.parked(process, tid) else { return false };
        let start = self.host.start_of_call(request.caller);
        if start == Start::Now {
            return false;
        }
        match (self.interrupt_read(key, request.caller), start) {
            (Interrupt::Ended(bwr), Start::Touched) => self.touch_and_delay(request, bwr),
            (Interrupt::Ended(bwr), _) => self.delay_call(request, bwr, Stage::Due),
            // The wake-up that follows ends it.
            (Interrupt::Woken, _) => {}
            (Interrupt::NotParked, _) => return false,
        }
        true
    }

    fn wake_pollers(&mut self, process: ProcessId) -> io::Result<()> {
        let open = self.host.key_of(process).and_then(|key| self.host.opens.get(key));
        let Some(Poll { handle, thread }) = open.and_then(|open| open.info.poll) else {
            return Ok(());
        };
        let _moved = thread.and_then(|tid| self.place_woken(tid));
        self.channel.send(self.reply.notify_poll(handle))
    }
}

/// The owner of a process that is in a call to our filesystem.
pub(super) fn owner_of(tid: u32, euid: Uid) -> io::Result<Owner> {
    Ok(Owner::of(euid, &user_namespaces(tid)?))
}

/// The user namespaces that a process or thread is in, innermost first.
pub(super) fn user_namespaces(tid: u32) -> io::Result<Vec<NamespaceLevel>> {
    match owners::reader::namespaces(Path::new("/proc"), tid) {
        // A server without privileges serves only processes in its own namespace, or in namespaces
        // below that of its own user.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Vec::new()),
        levels => levels,
    }
}
