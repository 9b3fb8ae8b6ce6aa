//! Calls that clients submit by shared memory instead of a request ([`rings`](crate::rings)).
//!
//! While rings are watched, the event loop waits for them, and a thread wakes it when epoll has an
//! event ([`EventWatch`]). A taken call is served like a request: at once if nothing waits,
//! otherwise in its owner's turn. It waits as a call of a request does ([`call`](super::call)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

use binder_driver::{Caller, Errno, HeldReads, Interrupt, WriteRead};
use binder_ring::page::{MAX_FILES, Outcome};
use binder_ring::{Attach, RING_ATTACH, RING_FILES, RING_INTERRUPT, VERSION};
use binder_uapi::BinderWriteRead;
use headroom_linux::features;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::Server;
use super::call::{CallState, PendingIoctl, Stage, Step, Transport};
use crate::futex::{self, Waited};
use crate::interrupt_timer::LoopTimer;
use crate::open::{CallKey, OpenKey};
use crate::owner_budgets::coarse_now_ns;
use crate::rings::{NewRing, RingCall, RingKey, RingResult};
use crate::{Error, identity};

/// Calls after which other events are polled: some hundred microseconds.
const MAX_CALLS: u32 = 16;
/// Wake-ups in a row without a call after which no ring is watched. An event is one, too.
const MAX_WAKES: u32 = 64;
/// How long the event loop waits for rings, nanoseconds: then idle ones are released.
const WAIT_NS: u64 = 20_000_000;
/// Interval at which the wait is interrupted while reads hold confirmations: one is held for one to
/// two intervals. A timeout of each wait would cost 12 us, since the next one programs the timer
/// again.
const HOLD: Duration = Duration::from_micros(500);

/// See the module's documentation.
#[derive(Default)]
pub(super) struct RingCalls {
    /// Started with the first ring that is watched.
    watch: Option<EventWatch>,
    /// Since other events were polled.
    calls: u32,
    /// Wake-ups in a row without a call.
    wakes: u32,
    /// Time when idle rings were released, nanoseconds.
    released_ns: u64,
    /// Interrupts the wait.
    timer: LoopTimer,
}

/// When a call that was taken is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallStart {
    AtOnce,
    InTurn,
}

impl Server {
    /// Stops the timer once no ring is watched.
    pub(super) fn limit_ring_timer(&mut self) {
        if self.ring_calls.timer.runs() && !self.host.rings.is_watching() {
            let _ = self.ring_calls.timer.set_interval(Duration::ZERO);
        }
    }

    /// The ioctls of rings. `None`: it is none of them.
    pub(super) fn ring_ioctl(
        &mut self,
        key: OpenKey,
        caller: Caller,
        cmd: u32,
        data: &[u8],
    ) -> Option<Result<(), Errno>> {
        let number = || u32::read_from_bytes(data).map_err(|_| Errno::EINVAL);
        Some(match cmd {
            RING_ATTACH => Attach::read_from_bytes(data)
                .map_err(|_| Errno::EINVAL)
                .and_then(|attach| self.attach_ring(key, caller, attach)),
            RING_INTERRUPT => self.interrupt_ring(caller.tid),
            RING_FILES => number().and_then(|socket| self.send_ring_files(caller, socket)),
            _ => return None,
        })
    }

    fn attach_ring(&mut self, key: OpenKey, caller: Caller, attach: Attach) -> Result<(), Errno> {
        if attach.version != VERSION || !features::has_futex_waitv() {
            return Err(Errno::EINVAL);
        }
        let opener = self.host.opens.get(key).map(|open| open.info.pid);
        let client = identity::process_of(caller.tid, self.own_namespace);
        if client.map_err(|_| Errno::EPERM)?.pid != opener.unwrap_or(0) {
            return Err(Errno::EPERM);
        }
        self.end_ring(caller.tid);
        let charge = self.host.charge(caller);
        // The client chooses the descriptor, so its close may block: a closer does it.
        let token = self.host.files.take(charge, caller.tid, attach.memfd)?;
        let attached = match self.host.files.get(token) {
            Some(memfd) => {
                let (owner, now_ns) = (charge.owner, coarse_now_ns());
                let new = NewRing { key, caller, owner, token: attach.token, now_ns };
                self.host.rings.attach(new, memfd.as_fd())
            }
            None => return Err(Errno::EBADF),
        };
        self.host.files.drop(token);
        attached.map_err(|refusal| {
            tracing::debug!("thread {}: no ring: {refusal}", caller.tid);
            refusal.errno()
        })?;
        let doorbell = self.host.rings.doorbell_of(caller.tid);
        let doorbell = doorbell.and_then(|it| it.try_clone_to_owned().ok()).ok_or(Errno::ENOMEM);
        let sent = doorbell.and_then(|it| self.send_to(caller, attach.socket, &[it.as_fd()]));
        if sent.is_err() {
            self.end_ring(caller.tid);
        }
        sent
    }

    /// The thread has a signal, or its call lasts long.
    fn interrupt_ring(&mut self, tid: u32) -> Result<(), Errno> {
        if let Some(call) = self.ring_call(tid)
            && let Err(error) = self.interrupt_call(call)
        {
            tracing::warn!("thread {tid}: {error}");
        }
        self.serve_wakes();
        Ok(())
    }

    /// Sends the files of the thread's deferred transaction.
    fn send_ring_files(&mut self, caller: Caller, socket: u32) -> Result<(), Errno> {
        let files = self.host.rings.take_files(caller.tid);
        if files.is_empty() {
            return Err(Errno::ENOENT);
        }
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        self.send_to(caller, socket, &files)
    }

    /// Sends descriptors over a socket of the caller.
    fn send_to(&mut self, caller: Caller, socket: u32, fds: &[BorrowedFd]) -> Result<(), Errno> {
        let charge = self.host.charge(caller);
        let token = self.host.files.take(charge, caller.tid, socket)?;
        let sent = self.host.files.get(token).map(|socket| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(fds));
            let bytes = [io::IoSlice::new(&[0])];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            rustix::net::sendmsg(socket.as_fd(), &bytes, &mut control, flags)
        });
        self.host.files.drop(token);
        match sent {
            Some(Ok(_)) => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Ends the ring of a thread. A pending call is continued by a request.
    pub(super) fn end_ring(&mut self, tid: u32) {
        if let Some((ring, _)) = self.host.rings.in_call(tid) {
            self.withdraw_ring_call(ring, tid);
        }
        self.host.rings.end(tid);
    }

    /// The call of a thread's ring, while it waits.
    fn ring_call(&self, tid: u32) -> Option<CallKey> {
        let (ring, open) = self.host.rings.in_call(tid)?;
        let (key, call) = self.call_of(open, tid)?;
        (call.request.ring() == Some(ring)).then_some(key)
    }

    fn withdraw_ring_call(&mut self, ring: RingKey, tid: u32) {
        let call = self.ring_call(tid).and_then(|key| Some((key, self.calls.get(key)?)));
        let rest = match call.map(|(key, call)| (key, call.request.caller, &call.state)) {
            Some((key, caller, CallState::Parked)) => match self.interrupt_read(key, caller) {
                Interrupt::Ended(bwr) => Some(bwr),
                Interrupt::Woken => return self.serve_wakes(),
                Interrupt::NotParked => None,
            },
            Some((key, _, CallState::Queued(step) | CallState::Delayed(step))) => {
                let bwr = step.bwr;
                self.end_wait(key);
                Some(bwr)
            }
            _ => None,
        };
        self.complete_ring_call(ring, Outcome::Unfinished, 0, rest);
    }

    /// Ends all rings: their threads continue by requests.
    pub(super) fn end_rings(&mut self) {
        for tid in self.host.rings.threads() {
            self.end_ring(tid);
        }
    }

    /// Ends the rings on an open that is released.
    pub(super) fn end_rings_of(&mut self, key: OpenKey) {
        for tid in self.host.rings.threads_of(key) {
            self.end_ring(tid);
        }
    }

    /// Completes a call. Its thread closes the descriptors that it has to close, however the call
    /// ended: the request that follows may wait for long.
    fn complete_ring_call(
        &mut self,
        key: RingKey,
        outcome: Outcome,
        result: i32,
        argument: Option<BinderWriteRead>,
    ) {
        let mut closes = Vec::new();
        if let Some(tid) = self.host.rings.thread(key)
            && let Some(mut fds) = self.host.closes.remove(&tid)
        {
            let rest = fds.split_off(fds.len().min(MAX_FILES));
            if !rest.is_empty() {
                self.host.closes.insert(tid, rest);
            }
            closes = fds;
        }
        self.host.rings.complete(key, RingResult { result, argument, outcome, closes: &closes });
    }

    /// The rest of a call needs access to its thread, which is guaranteed to be there in a request
    /// only: its number may mean another program's otherwise.
    pub(super) fn leave_to_request(&mut self, key: RingKey, rest: BinderWriteRead) {
        self.complete_ring_call(key, Outcome::Unfinished, 0, Some(rest));
    }

    /// Lets the thread of a ring fetch the files of the transaction that its read takes.
    pub(super) fn offer_ring_files(
        &mut self,
        key: RingKey,
        request: PendingIoctl,
    ) -> io::Result<()> {
        let Caller { process, tid, .. } = request.caller;
        let files = self.files_for(process, tid);
        match self.driver.defer_files(&mut self.host, process, tid) {
            Some(WriteRead::Done { bwr, result: Ok(()) }) => {
                self.host.rings.keep_files(key, files);
                let _moved = self.place_woken(tid);
                self.complete_ring_call(key, Outcome::FetchFiles, 0, Some(bwr));
                Ok(())
            }
            Some(answer) => self.answer_read(request, answer),
            None => self.send_errno(&request, libc::EINTR),
        }
    }

    /// Waits for calls of rings and serves them, and other events if there are any.
    pub(super) fn serve_rings(&mut self) -> Result<(), Error> {
        if self.ring_calls.watch.is_none() {
            match EventWatch::start(self.epoll.as_fd()) {
                Ok(watch) => self.ring_calls.watch = Some(watch),
                Err(error) => {
                    self.warn_once("rings", || format!("no thread for rings: {error}"));
                    self.end_rings();
                    return self.serve_events();
                }
            }
        }
        let now_ns = coarse_now_ns();
        let calls = self.take_ring_calls(now_ns);
        self.ring_calls.calls += calls;
        if calls > 0 {
            self.ring_calls.wakes = 0;
        }
        let has_event = self.ring_calls.watch.as_ref().is_some_and(EventWatch::take_signal);
        let has_work = !self.queue.is_empty() || self.is_reclaiming();
        if has_event || has_work || self.ring_calls.calls >= MAX_CALLS {
            self.ring_calls.calls = 0;
            return self.serve_events();
        }
        if now_ns.saturating_sub(self.ring_calls.released_ns) >= WAIT_NS {
            self.ring_calls.released_ns = now_ns;
            self.host.rings.release_idle(now_ns);
        }
        if calls == 0
            && let Some(watch) = &self.ring_calls.watch
        {
            watch.arm();
            if self.driver.held_reads() == HeldReads::Some {
                // Without a timer, they are held until the wait's timeout.
                let _ = self.ring_calls.timer.set_interval(HOLD);
            }
            let Some(watch) = &self.ring_calls.watch else { return Ok(()) };
            match self.host.rings.sleep(watch.signal(), WAIT_NS) {
                // A client that wakes us without a call is not listened to.
                Waited::Woken if self.ring_calls.wakes >= MAX_WAKES => {
                    self.ring_calls.wakes = 0;
                    self.host.rings.release_all();
                }
                Waited::Woken => self.ring_calls.wakes += 1,
                Waited::Interrupted => self.end_ring_interval(),
                Waited::TimedOut => {
                    self.end_ring_interval();
                    return self.serve_events();
                }
            }
        }
        Ok(())
    }

    /// Releases held confirmations; the timer runs as long as there are any.
    fn end_ring_interval(&mut self) {
        self.end_hold_interval();
        if self.driver.held_reads() == HeldReads::None {
            let _ = self.ring_calls.timer.set_interval(Duration::ZERO);
        }
    }

    fn take_ring_calls(&mut self, now_ns: u64) -> u32 {
        let Some(mut call) = self.host.rings.take_call(now_ns) else { return 0 };
        let mut count = 1;
        // A single call is served at once; several are served in the turns of their owners.
        while let Some(next) = self.host.rings.take_call(now_ns) {
            count += 1;
            self.start_ring_call(call, CallStart::InTurn);
            call = next;
            if count >= MAX_CALLS {
                break;
            }
        }
        let is_single = count == 1 && self.queue.is_empty();
        let start = if is_single { CallStart::AtOnce } else { CallStart::InTurn };
        self.start_ring_call(call, start);
        count
    }

    fn start_ring_call(&mut self, call: RingCall, start: CallStart) {
        if let Err(error) = self.begin_ring_call(call, start) {
            tracing::warn!("thread {}: {error}", call.caller.tid);
        }
        self.finish_serving();
    }

    fn begin_ring_call(&mut self, call: RingCall, start: CallStart) -> io::Result<()> {
        let RingCall { key, caller, ring, argument, arrived, is_same } = call;
        let Caller { process, tid, .. } = caller;
        let pending = self.host.opens.get(key).map(|open| open.info.calls.request(tid));
        let can_call = is_same && pending == Some(None);
        let fds = arrived.numbers();
        let are_used = fds.is_empty()
            || can_call && self.driver.files_arrived(&mut self.host, process, tid, fds);
        if !are_used {
            self.host.closes.entry(tid).or_default().extend_from_slice(fds);
        }
        if !can_call {
            // The thread has another uid, has exited, or waits in a request.
            self.end_ring(tid);
            return Ok(());
        }
        let trap = self.fd_deliveries.trap.as_ref();
        if trap.is_some_and(|trap| trap.awaits_call(tid)) {
            // Only a request passes the filter that adds the thread's files.
            self.leave_to_request(ring, argument);
            return Ok(());
        }
        let request = PendingIoctl { key, caller, from: Transport::Ring(ring) };
        self.note_call(&request);
        if start == CallStart::InTurn {
            self.queue_call(request, Box::new(Step { bwr: argument, stage: Stage::Due }));
            return Ok(());
        }
        self.run_write_read(request, argument)
    }

    /// Replies to a BINDER_WRITE_READ.
    pub(super) fn send_result(
        &mut self,
        request: &PendingIoctl,
        result: i32,
        bwr: &BinderWriteRead,
    ) -> io::Result<()> {
        if let Some(ring) = request.ring() {
            self.complete_ring_call(ring, Outcome::Returned, result, Some(*bwr));
            return Ok(());
        }
        self.send_ioctl(request, result, bwr.as_bytes())
    }

    /// Replies to a call with an error; the argument stays as it is.
    pub(super) fn send_errno(&mut self, request: &PendingIoctl, errno: i32) -> io::Result<()> {
        if let Some(ring) = request.ring() {
            self.complete_ring_call(ring, Outcome::Returned, -errno, None);
            return Ok(());
        }
        self.channel.send(self.reply.error(request.unique(), errno))
    }

    /// Replies to a call that came by a request.
    pub(super) fn send_ioctl(
        &mut self,
        request: &PendingIoctl,
        result: i32,
        argument: &[u8],
    ) -> io::Result<()> {
        self.channel.send(self.reply.ioctl(request.unique(), result, argument))
    }

    /// The caller of an answer that the kernel does not take was killed meanwhile.
    pub(super) fn log_unsent(&self, request: &PendingIoctl, sent: io::Result<()>) {
        if let Err(error) = sent {
            tracing::warn!("{}: the kernel does not take the answer: {error}", request.from);
        }
    }
}

const DISARMED: u32 = 0;
const ARMED: u32 = 1;
const ENDED: u32 = 2;

/// What an [`EventWatch`] shares with its thread.
struct WatchState {
    /// The event loop's epoll instance.
    epoll: OwnedFd,
    /// Readable when the thread is to end.
    end: OwnedFd,
    state: AtomicU32,
    /// 1: there are events.
    signal: AtomicU32,
}

/// Wakes the event loop while it waits for rings, which epoll cannot wait for. Dropping it ends its
/// thread.
///
/// The thread polls the loop's epoll instance and sets a word that the loop waits for too. It polls
/// only when the loop has armed it, so it costs nothing while calls use rings alone.
struct EventWatch {
    shared: Arc<WatchState>,
    thread: Option<JoinHandle<()>>,
}

impl EventWatch {
    /// Starts the thread, disarmed.
    fn start(epoll: BorrowedFd<'_>) -> io::Result<Self> {
        let shared = Arc::new(WatchState {
            epoll: epoll.try_clone_to_owned()?,
            end: eventfd(0, EventfdFlags::CLOEXEC)?,
            state: AtomicU32::new(DISARMED),
            signal: AtomicU32::new(0),
        });
        let thread = std::thread::Builder::new().name("event-watch".into());
        let watched = Arc::clone(&shared);
        let thread = thread.spawn(move || watched.watch())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Watches for events again, if it has found some since.
    fn arm(&self) {
        let WatchState { state, .. } = &*self.shared;
        if state.load(SeqCst) == DISARMED {
            state.store(ARMED, SeqCst);
            futex::wake(state);
        }
    }

    /// Not 0: there are events.
    fn signal(&self) -> &AtomicU32 {
        &self.shared.signal
    }

    /// Whether there are events; resets that.
    fn take_signal(&self) -> bool {
        self.shared.signal.load(SeqCst) != 0 && self.shared.signal.swap(0, SeqCst) != 0
    }
}

impl Drop for EventWatch {
    fn drop(&mut self) {
        self.shared.state.store(ENDED, SeqCst);
        futex::wake(&self.shared.state);
        let _ = rustix::io::write(&self.shared.end, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl WatchState {
    fn watch(&self) {
        loop {
            match self.state.load(SeqCst) {
                DISARMED => futex::wait(&self.state, DISARMED),
                ENDED => return,
                _ => self.wait_for_events(),
            }
        }
    }

    fn wait_for_events(&self) {
        let mut fds = [&self.epoll, &self.end].map(|fd| PollFd::new(fd, PollFlags::IN));
        if poll(&mut fds, None).is_err() || fds[0].revents().is_empty() {
            return;
        }
        // Not if it has ended meanwhile.
        let _ = self.state.compare_exchange(ARMED, DISARMED, SeqCst, SeqCst);
        self.signal.store(1, SeqCst);
        futex::wake(&self.signal);
    }
}
