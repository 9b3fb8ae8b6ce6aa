//! Serves page faults while the event loop is inside a call that may wait for one.
//!
//! The event loop copies from and to client memory and stores into the page cache of our own files.
//! Both may have to wait until a page of one of **our own** files has been read: a client may map
//! `features/…` and pass an address in that mapping as its write buffer, or drop a page of its
//! receive buffer and access it again while we store there. The kernel requests the page from us,
//! and the event loop would wait for itself. So the loop announces such calls
//! ([`PageServer::enter`]), and when one lasts longer than [`RESCUE_AFTER`], a helper thread reads
//! requests in its place: it replies to READs and WRITEs (an invalidation waits for the write-back
//! of a page that its client has modified), and keeps the others for the loop in their order.
//!
//! If an access to a client's memory is blocked then, it is charged to the client's owner; if it
//! still is after [`LATE_AFTER`], another thread takes the event loop over
//! ([`LoopThreads`]). An access that only waits for a CPU, or copies much, is not blocked.
//!
//! The cost of an announcement is three atomic stores, and one `timerfd_settime` each
//! [`RESCUE_AFTER`] at most.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headroom_linux::clock::Timer;
use headroom_linux::sched::SchedAttr;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::process::Pid;

use crate::channel::{Blocking, Channel, Incoming, RequestBuffer, StoredRequest};
use crate::client_access::{LoopThreads, SuspendedAccess};
use crate::mapping::Truth;
use crate::sync::{Announcement, HelperTimer, lock};
use crate::wire::{Operation, ReplyBuffer, Request};
use crate::{Error, fixed};

/// Interval at which the helper checks whether an announced call is blocked, while there are calls.
/// The event loop serves no client during a blocked one.
pub(crate) const RESCUE_AFTER: Duration = Duration::from_millis(2);
/// An access that the helper finds blocked is late if it still is after this time.
pub(crate) const LATE_AFTER: Duration = Duration::from_millis(1);
/// Interval of the helper's checks during a blocked call.
const RESCUE_INTERVAL: Duration = Duration::from_micros(500);
/// A call that lasts this long, because it cannot be aborted, is reported.
const COMPLAIN_AFTER: Duration = Duration::from_secs(2);

/// See the module's documentation.
pub(crate) struct PageServer {
    shared: Arc<Shared>,
    helper: Mutex<Option<Helper>>,
}

struct Helper {
    thread: JoinHandle<()>,
    tid: Pid,
}

struct Shared {
    channel: Arc<Channel>,
    /// The call that the event loop is inside.
    announcement: Announcement,
    /// The last call whose access the helper has found blocked.
    blocked_call: AtomicU32,
    /// Threads that can take the event loop over; `None`: it is no coroutine.
    loop_threads: Option<Arc<LoopThreads>>,
    stop: AtomicBool,
    /// The helper reads requests.
    reading: AtomicBool,
    timer: Timer,
    /// Readable while the backlog has requests.
    signal: OwnedFd,
    backlog: Mutex<Backlog>,
    truths: Mutex<HashMap<u64, Arc<Mutex<Truth>>>>,
    /// Texts of opens, by their file handle.
    texts: Mutex<HashMap<u64, Arc<str>>>,
}

/// Requests that the helper has read and the event loop has not served yet.
#[derive(Default)]
struct Backlog {
    requests: VecDeque<Kept>,
    /// Unique ids of `requests`.
    ids: HashSet<u64>,
    /// Unique ids of requests whose caller has a signal.
    interrupted: HashSet<u64>,
}

/// A request that was read in place of the event loop.
pub(crate) struct Kept {
    pub(crate) request: StoredRequest,
    pub(crate) unique: u64,
    /// The kernel has sent an INTERRUPT for it.
    pub(crate) interrupted: bool,
}

/// Guard of a call that may wait for a page of our own files.
pub(crate) struct Inside<'a> {
    shared: &'a Shared,
    call: u32,
}

impl Inside<'_> {
    /// The helper has found the access of this call blocked.
    pub(crate) fn was_blocked(&self) -> bool {
        self.shared.blocked_call.load(Relaxed) == self.call
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.shared.announcement.leave();
    }
}

impl PageServer {
    /// Starts the helper.
    pub(crate) fn new(channel: Arc<Channel>) -> Result<Self, Error> {
        let timer = Timer::blocking().map_err(Error::io("cannot make a timer"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let signal =
            rustix::event::eventfd(0, flags).map_err(Error::io("cannot make an eventfd"))?;
        let shared = Arc::new(Shared {
            channel,
            announcement: Announcement::new(),
            blocked_call: AtomicU32::new(0),
            loop_threads: LoopThreads::of_this_loop(),
            stop: AtomicBool::new(false),
            reading: AtomicBool::new(false),
            timer,
            signal,
            backlog: Mutex::default(),
            truths: Mutex::default(),
            texts: Mutex::default(),
        });
        let this = Self { shared, helper: Mutex::default() };
        this.start_helper().map_err(Error::io("cannot start the page server"))?;
        Ok(this)
    }

    /// Starts the helper if it does not run.
    pub(crate) fn start_helper(&self) -> io::Result<()> {
        let mut helper = lock(&self.helper);
        if helper.is_none() {
            self.shared.stop.store(false, SeqCst);
            let shared = Arc::clone(&self.shared);
            let (started, tid) = mpsc::channel();
            let thread = std::thread::Builder::new().name("page-server".into());
            let thread = thread.spawn(move || {
                let _ = started.send(rustix::thread::gettid());
                shared.help();
            })?;
            // The thread sends before all else.
            *helper = tid.recv().ok().map(|tid| Helper { thread, tid });
        }
        Ok(())
    }

    /// Gives the helper the scheduling policy and priority of the calling thread, the event loop's:
    /// while the helper waits for a CPU, a blocked access ends later, and the event loop may wait
    /// for its lock.
    pub(crate) fn share_priority(&self) {
        let Some(helper) = &*lock(&self.helper) else { return };
        if let Err(error) = SchedAttr::of(None).and_then(|own| own.apply(Some(helper.tid))) {
            tracing::debug!("the page server keeps an ordinary priority: {error}");
        }
    }

    /// Ends the helper. It must run again before the next call is announced.
    pub(crate) fn stop_helper(&self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.timer.expire_in(Duration::ZERO);
        if let Some(helper) = lock(&self.helper).take() {
            let _ = helper.thread.join();
        }
    }

    /// Announces a call that may wait for a page of our own files.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.enter_access(0)
    }

    /// Announces a call that accesses memory of `tid`'s process.
    pub(crate) fn enter_access(&self, tid: u32) -> Inside<'_> {
        let shared = &*self.shared;
        let (call, timer) = shared.announcement.enter(tid);
        if timer == HelperTimer::ToBeArmed {
            shared.timer.expire_in(RESCUE_AFTER);
        }
        Inside { shared, call }
    }

    /// Serves READs of `node` from `truth`.
    pub(crate) fn add(&self, node: u64, truth: Arc<Mutex<Truth>>) {
        lock(&self.shared.truths).insert(node, truth);
    }

    /// Undoes [`add`](Self::add).
    pub(crate) fn remove(&self, node: u64) {
        lock(&self.shared.truths).remove(&node);
    }

    /// Serves READs of the open `fh` from `text`.
    pub(crate) fn add_text(&self, fh: u64, text: String) {
        lock(&self.shared.texts).insert(fh, text.into());
    }

    /// All texts with the file handles of their opens.
    pub(crate) fn save_texts(&self) -> Vec<(u64, String)> {
        let texts = lock(&self.shared.texts);
        texts.iter().map(|(&fh, text)| (fh, text.to_string())).collect()
    }

    /// Undoes [`add_text`](Self::add_text).
    pub(crate) fn remove_text(&self, fh: u64) {
        lock(&self.shared.texts).remove(&fh);
    }

    /// Readable while [`take`](Self::take) has something.
    pub(crate) fn signal(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }

    /// Takes the oldest request that the helper kept. `None` also clears the signal.
    pub(crate) fn take(&self) -> Option<Kept> {
        let mut backlog = lock(&self.shared.backlog);
        let Some(mut kept) = backlog.requests.pop_front() else {
            let _ = rustix::io::read(&self.shared.signal, &mut [0; 8]);
            return None;
        };
        backlog.ids.remove(&kept.unique);
        kept.interrupted = backlog.interrupted.remove(&kept.unique);
        Some(kept)
    }

    /// Whether [`take`](Self::take) has nothing.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.shared.backlog).requests.is_empty()
    }

    /// Whether the helper reads requests now. If not, it makes the connection non-blocking before
    /// it begins.
    pub(crate) fn is_reading(&self) -> bool {
        self.shared.reading.load(SeqCst)
    }

    /// Records an INTERRUPT for a request that the helper keeps; otherwise it is dropped.
    pub(crate) fn interrupt_kept(&self, unique: u64) {
        let mut backlog = lock(&self.shared.backlog);
        if backlog.ids.contains(&unique) {
            backlog.interrupted.insert(unique);
        }
    }

    /// Refuses a WRITE: `write(2)`, or the write-back of a page that a client has modified, whose
    /// data is discarded.
    pub(crate) fn refuse_write(
        &self,
        reply: &mut ReplyBuffer,
        request: &Request<'_>,
    ) -> std::io::Result<()> {
        self.shared.refuse_write(reply, request)
    }

    /// Replies to a READ.
    pub(crate) fn answer_read(
        &self,
        reply: &mut ReplyBuffer,
        request: &Request<'_>,
    ) -> std::io::Result<()> {
        self.shared.answer_read(reply, request)
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.stop_helper();
    }
}

/// An access of the event loop, as the helper sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessState {
    /// There is none, or it makes progress.
    Running,
    /// Since this time.
    Blocked(Instant),
    /// Another thread has been started to run the event loop.
    TakenOver,
}

impl Shared {
    /// Runs the helper thread.
    fn help(&self) {
        let mut buffer = RequestBuffer::new();
        let mut reply = ReplyBuffer::default();
        while !self.stop.load(SeqCst) {
            if !self.timer.take_expiry() {
                continue;
            }
            if self.announcement.on_timer() {
                self.reading.store(true, SeqCst);
                // The event loop may block in its reads; it checks `reading` before it begins.
                let _ = self.channel.set_blocking(Blocking::No);
                self.rescue(&mut buffer, &mut reply);
                self.reading.store(false, SeqCst);
            }
        }
    }

    /// Reads requests until the event loop has left its call.
    fn rescue(&self, buffer: &mut RequestBuffer, reply: &mut ReplyBuffer) {
        let mut start = Instant::now();
        let (mut complained, mut call) = (false, self.announcement.call());
        let mut access = AccessState::Running;
        loop {
            let tid = self.announcement.tid();
            if tid == 0 || self.stop.load(SeqCst) {
                return;
            }
            let now_in = self.announcement.call();
            if now_in != call {
                (call, start, access) = (now_in, Instant::now(), AccessState::Running);
            }
            access = self.check_access(call, access);
            if !complained && start.elapsed() > COMPLAIN_AFTER {
                complained = true;
                tracing::warn!(
                    "memory of thread {tid} has not answered for {COMPLAIN_AFTER:?}; every client \
                     waits until it does or its process is killed"
                );
            }
            // Locked before the read: if the event loop then reads an INTERRUPT for this request,
            // it finds the request in the backlog.
            let backlog = lock(&self.backlog);
            match self.channel.read(buffer) {
                Ok(Incoming::Request(len)) => self.rescue_request(backlog, buffer, len, reply),
                Ok(Incoming::Nothing) => {
                    drop(backlog);
                    let tv_nsec = RESCUE_INTERVAL.subsec_nanos().into();
                    let wait = Timespec { tv_sec: 0, tv_nsec };
                    let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
                    let _ = rustix::event::poll(&mut fds, Some(&wait));
                }
                Ok(Incoming::Closed) | Err(_) => return,
            }
        }
    }

    /// Checks whether the access of this call is blocked, and makes another thread take the event
    /// loop over if it is late.
    fn check_access(&self, call: u32, state: AccessState) -> AccessState {
        if state == AccessState::TakenOver {
            return state;
        }
        let Some(threads) = &self.loop_threads else { return AccessState::Running };
        let access = threads.suspended_access().filter(SuspendedAccess::is_blocked);
        // A later call would have been counted before its access.
        let Some(access) = access.filter(|_| self.announcement.call() == call) else {
            return AccessState::Running;
        };
        let since = match state {
            AccessState::Blocked(since) => since,
            _ => Instant::now(),
        };
        self.blocked_call.store(call, Relaxed);
        if since.elapsed() >= LATE_AFTER && threads.take_over(access).is_ok() {
            return AccessState::TakenOver;
        }
        AccessState::Blocked(since)
    }

    fn rescue_request(
        &self,
        mut backlog: MutexGuard<'_, Backlog>,
        buffer: &RequestBuffer,
        len: usize,
        reply: &mut ReplyBuffer,
    ) {
        let bytes = buffer.bytes(len);
        let mut id = 0;
        if let Ok(request) = Request::parse(bytes) {
            id = request.header.unique;
            match request.operation {
                Operation::Read(_) => {
                    drop(backlog);
                    let _ = self.answer_read(reply, &request);
                    return;
                }
                Operation::Write => {
                    drop(backlog);
                    let _ = self.refuse_write(reply, &request);
                    return;
                }
                Operation::Interrupt { unique } if backlog.ids.contains(&unique) => {
                    backlog.interrupted.insert(unique);
                    return;
                }
                _ => {}
            }
        }
        let request = StoredRequest::new(bytes);
        backlog.ids.insert(id);
        backlog.requests.push_back(Kept { request, unique: id, interrupted: false });
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
    }

    fn refuse_write(&self, reply: &mut ReplyBuffer, request: &Request<'_>) -> std::io::Result<()> {
        let truth = lock(&self.truths).get(&request.header.nodeid).cloned();
        if let Some(truth) = truth {
            lock(&truth).note_client_write();
        }
        self.channel.send(reply.error(request.header.unique, libc::EINVAL))
    }

    fn answer_read(&self, reply: &mut ReplyBuffer, request: &Request<'_>) -> std::io::Result<()> {
        let (node, unique) = (request.header.nodeid, request.header.unique);
        let Operation::Read(read) = &request.operation else {
            return self.channel.send(reply.error(unique, libc::EINVAL));
        };
        if fixed::is_feature(node) {
            let content = fixed::read_feature(read.offset, read.size);
            return self.channel.send(reply.bytes(unique, content));
        }
        let text = lock(&self.texts).get(&read.fh).cloned();
        if let Some(text) = text {
            let content = fixed::part(text.as_bytes(), read.offset, read.size);
            return self.channel.send(reply.bytes(unique, content));
        }
        let truth = lock(&self.truths).get(&node).cloned();
        match truth {
            Some(truth) => {
                // A page fault requests whole pages, up to the readahead that INIT allows (none).
                let mut page = vec![0; (read.size as usize).min(1 << 20)];
                lock(&truth).read(read.offset, &mut page);
                self.channel.send(reply.bytes(unique, &page))
            }
            None => self.channel.send(reply.error(unique, libc::EINVAL)),
        }
    }
}
