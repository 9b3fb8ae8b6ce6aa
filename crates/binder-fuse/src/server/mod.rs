//! The event loop: one thread that owns the driver and all state around it.

mod call;
mod call_chain;
mod delayed_calls;
mod device;
mod fd_delivery;
mod files;
mod held_memory;
mod interval_timer;
mod ioctl;
mod request_queue;
mod ring_calls;
mod trace;
mod upgrade;

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use binder_driver::{Driver, snapshot::Snapshot};
use headroom_linux::clock::Timer;
use headroom_linux::features;
use owners::Uid;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use self::call::{Call, CallState, CallTable, Stage, Step};
pub use self::held_memory::{BufferHolder, HeldMemory};
use self::interval_timer::IntervalTimer;
pub(crate) use self::ioctl::name_of;
use self::request_queue::{Account, Due, RequestQueue, Requester};
pub use self::trace::TracePart;
pub use self::upgrade::{Obstacle, PausedServer, ServerState, VerifiedState};
use crate::Error;
use crate::channel::{self, Agreement, Channel, Incoming, RequestBuffer, StoredRequest};
use crate::client_access::LoopThreads;
use crate::fixed::Logs;
use crate::guardian::Guardian;
use crate::host::ClientHost;
use crate::mapping::{MappingChoice, MappingKind, machine_page_size};
use crate::mount::{Mount, MountNamespace};
use crate::nonblock::NonblockLookups;
use crate::open::{CallKey, OpenKey};
use crate::owner_budgets::coarse_now_ns;
use crate::page_server::PageServer;
use crate::task_watch::{self, TaskKind, TaskWatch};
use crate::tree::{self, Tree};
use crate::wire::request::{opcode_name, refusal};
use crate::wire::{Operation, ParseError, ReplyBuffer, Request};

/// Number of requests that are read before queued ones are served.
const READS_PER_TURN: usize = 64;
/// Number of turns in a row that read one request only, before one that reads all: until then an
/// owner can be served out of turn.
const MAX_SINGLE_TURNS: u32 = 8;
/// How long queued requests are served before events and new requests are polled: the upper bound
/// of the time until another client's new request is in the queue.
const TURN: Duration = Duration::from_micros(100);
/// Mode of the devices that the server starts with, as Android's ueventd sets it: clients run as
/// any user, and the service manager controls access to names. No other program sets the mode.
const DEVICE_MODE: u32 = 0o666;
/// Mode of a device that is added later, as in binderfs: its creator changes it.
const ADDED_DEVICE_MODE: u32 = 0o600;

const FUSE: u64 = 0;
const BACKLOG: u64 = 1;
const THREAD_TIMER: u64 = 2;
const FREEZE_TIMER: u64 = 3;
const FD_DELIVERIES: u64 = 4;
const NONBLOCK_LOOKUPS: u64 = 5;
const HOLD_TIMER: u64 = 6;
const DELAYED_CALLS: u64 = 7;
const RETURNED_ACCESSES: u64 = 9;
const TICK_TIMER: u64 = 10;
const EXTERNAL: u64 = 1 << 32;
const THREAD: u64 = 2 << 32;
const OPENER: u64 = 3 << 32;
const KIND: u64 = !0 << 32;

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The mount point; created if it is missing.
    pub mount: PathBuf,
    /// The source of the mount in `/proc/mounts`, which has no other meaning.
    pub source: String,
    /// The mount namespace to serve in. Leaving it takes a process of one thread.
    pub mount_namespace: MountNamespace,
    /// Devices to start with.
    pub devices: Vec<String>,
    /// How receive buffers reach clients.
    pub mapping: MappingChoice,
    /// Maximum number of devices, those of `devices` included (`max=` of binderfs); by default the
    /// server's own maximum.
    pub max_devices: Option<u32>,
    /// Adds a folder `binder_logs` (`stats=global` of binderfs). Every user that sees the mount can
    /// read there which processes call each other.
    pub logs: bool,
    /// Mode of all devices; by default 0666 for those of `devices` and 0600 for added ones.
    pub device_mode: Option<u32>,
    /// Owner of all devices; the server's own user by default.
    pub device_owner: Option<DeviceOwner>,
    /// Maximum bytes of messages of one owner other than root: messages that it has sent and no
    /// thread has received, and the memory of its receive buffers. Unlimited by default.
    pub owner_quota_bytes: Option<u64>,
    /// Whether clients may attach rings; refused by default.
    pub rings: RingPolicy,
    /// The bus is for one user and has no privileges by design: functions that need root are not
    /// reported as missing.
    pub session: bool,
}

impl Config {
    /// The three devices of Android, with the best mapping that is available.
    pub fn new(mount: impl Into<PathBuf>) -> Self {
        let devices = ["binder", "hwbinder", "vndbinder"].map(str::to_owned).to_vec();
        Self {
            mount: mount.into(),
            source: crate::mount::SOURCE.to_owned(),
            mount_namespace: MountNamespace::Keep,
            devices,
            mapping: MappingChoice::Auto,
            max_devices: None,
            logs: false,
            device_mode: None,
            device_owner: None,
            owner_quota_bytes: None,
            rings: RingPolicy::Refused,
            session: false,
        }
    }
}

/// Whether clients may submit calls by shared memory ([`rings`](crate::rings)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingPolicy {
    /// All calls are requests.
    Refused,
    /// Where the kernel can wait for several words (Linux 5.16).
    Accepted,
}

/// Owner of the device files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOwner {
    /// The user.
    pub uid: Uid,
    /// The group; the server's own by default.
    pub gid: Option<u32>,
}

/// Why [`Server::next_event`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The external descriptor of this token is ready for reading.
    External(u32),
    /// The filesystem was unmounted, or its connection aborted, by another process. There is
    /// nothing left to serve.
    Unmounted,
}

/// A mounted device filesystem with its driver. Dropping it unmounts; pending calls of clients fail
/// with `ECONNABORTED`, later ones with `ENOTCONN`.
///
/// The process that serves must never access the mount itself, not even by stat(2).
pub struct Server {
    // Fields are dropped in this order: the mount disappears, then the clients' opens, then (with
    // its last user) the connection.
    mount: Mount,
    driver: Driver,
    host: ClientHost,
    tree: Tree,
    threads: TaskWatch,
    /// Running processes that have opened a device.
    openers: TaskWatch,
    pages: Arc<PageServer>,
    agreement: Agreement,
    degraded: Vec<String>,
    /// Sentences of `degraded` that no later program can find out by itself.
    connection_limits: Vec<String>,
    own_namespace: u64,
    own_users: u64,
    calls: CallTable,
    fd_deliveries: fd_delivery::FdDeliveries,
    freeze_timer: Timer,
    nonblock: NonblockLookups,
    hold_timer: IntervalTimer,
    tick_timer: IntervalTimer,
    chain: call_chain::CallChain,
    direct_read: call_chain::DirectRead,
    rings: RingPolicy,
    ring_calls: ring_calls::RingCalls,
    queue: RequestQueue,
    delayed: delayed_calls::DelayedCalls,
    /// `None`: the program does not run by [`serve`](crate::serve).
    loop_threads: Option<Arc<LoopThreads>>,
    /// Turns in a row that read one request only.
    single_turns: u32,
    reply: ReplyBuffer,
    buffer: Option<RequestBuffer>,
    externals: Vec<u32>,
    /// Idle pages that remain to be reclaimed.
    pages_to_reclaim: u64,
    owner_quota_bytes: u64,
    /// Mode of devices that are added by `binder-control`.
    added_mode: u32,
    /// Present while a reader polls the trace.
    tracer: Option<Box<trace::Tracer>>,
    /// Number of records of all traces so far.
    traced: u64,
    /// Topics of warnings that were logged.
    warned: HashSet<&'static str>,
    logs: files::OpenLogs,
    closed: bool,
    epoll: OwnedFd,
    channel: Arc<Channel>,
    /// Dropped last, when no call is left that could hang.
    guardian: Option<Guardian>,
}

impl Server {
    /// Mounts and starts the session; no request is served before [`next_event`](Self::next_event).
    pub fn new(config: &Config) -> Result<Self, Error> {
        let channel = Arc::new(Channel::open()?);
        let mount = Mount::new(&config.mount, &config.source, &channel, config.mount_namespace)?;
        Self::with_mount(config, channel, mount)
    }

    /// Like [`new`](Self::new), but mounts in namespaces of a helper process if this process may
    /// not mount. This process must have one thread.
    pub(crate) fn new_anywhere(config: &Config) -> Result<Self, Error> {
        if features::has_capability(rustix::thread::CapabilitySet::SYS_ADMIN) {
            return Self::new(config);
        }
        let (mount, connection) = Mount::in_helper(&config.mount)?;
        let mapping = MappingChoice::Only(MappingKind::NotifyStore);
        let config = Config { mapping, ..config.clone() };
        let mut server =
            Self::with_mount(&config, Arc::new(Channel::from_device(connection)), mount)?;
        server.degraded.extend(crate::mount::lacking());
        Ok(server)
    }

    fn with_mount(config: &Config, channel: Arc<Channel>, mount: Mount) -> Result<Self, Error> {
        let mut connection_limits = Vec::new();
        let agreement = channel::start_session(&channel, config.mapping, &mut connection_limits)?;
        let mut server = Self::assemble(config, channel, mount, agreement, connection_limits)?;
        for name in &config.devices {
            server.add_first_device(name, config.device_mode.unwrap_or(DEVICE_MODE))?;
        }
        Ok(server)
    }

    /// A server without devices on a connection that is established.
    fn assemble(
        config: &Config,
        channel: Arc<Channel>,
        mount: Mount,
        agreement: Agreement,
        connection_limits: Vec<String>,
    ) -> Result<Self, Error> {
        task_watch::prepare_descriptors();
        let mut degraded = connection_limits.clone();
        let guardian = Guardian::start(&mount).map_err(|error| {
            degraded.push(format!(
                "no guardian ({error}): should the server be killed with SIGKILL, its mount stays, \
                 and clients may hang until an administrator writes to \
                 /sys/fs/fuse/connections/{}/abort",
                mount.device().minor
            ));
        });
        let pages = Arc::new(PageServer::new(Arc::clone(&channel))?);
        let watch = |kind| TaskWatch::new(kind).map_err(Error::io("cannot make a timer"));
        let (threads, openers) = (watch(TaskKind::Thread)?, watch(TaskKind::Process)?);
        if !threads.is_immediate() {
            degraded.push(
                "no thread pidfds (Linux 6.9 has them): the exit of a client's thread is seen up \
                 to a second late"
                    .into(),
            );
        }
        degraded.extend(crate::files::lacking());
        if !config.session && !crate::priority::can_change() {
            degraded.push(
                "no CAP_SYS_NICE: calls are served with the server's own priority, not the \
                 caller's"
                    .into(),
            );
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Error::io("cannot make an epoll instance"))?;
        let created = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
        let host = ClientHost::new(Arc::clone(&pages), mount.device());
        let uid = Uid(rustix::process::geteuid().as_raw());
        let gid = rustix::process::getegid().as_raw();
        let device_owner = config.device_owner.unwrap_or(DeviceOwner { uid, gid: None });
        let owner_quota_bytes = config.owner_quota_bytes.unwrap_or(u64::MAX);
        let mut driver = Driver::new();
        driver.set_memory_quota(owner_quota_bytes);
        driver.set_page_size(machine_page_size());
        let server = Self {
            mount,
            driver,
            host,
            tree: Tree::new(tree::Options {
                uid,
                gid,
                device_uid: device_owner.uid,
                device_gid: device_owner.gid.unwrap_or(gid),
                max_devices: config.max_devices,
                logs: if config.logs { Logs::Present } else { Logs::Absent },
                created,
            }),
            threads,
            openers,
            pages,
            agreement,
            degraded,
            connection_limits,
            own_namespace: crate::identity::own_pid_namespace(),
            own_users: crate::identity::own_user_namespace(),
            calls: CallTable::default(),
            fd_deliveries: fd_delivery::FdDeliveries::default(),
            freeze_timer: Timer::new().map_err(Error::io("cannot make a timer"))?,
            nonblock: NonblockLookups::new().map_err(Error::io("cannot make an eventfd"))?,
            chain: call_chain::CallChain::new(),
            direct_read: call_chain::DirectRead::default(),
            rings: config.rings,
            ring_calls: ring_calls::RingCalls::default(),
            hold_timer: IntervalTimer::new(interval_timer::HOLD_INTERVAL)
                .map_err(Error::io("cannot make a timer"))?,
            tick_timer: IntervalTimer::new(interval_timer::TICK)
                .map_err(Error::io("cannot make a timer"))?,
            queue: RequestQueue::new(),
            delayed: delayed_calls::DelayedCalls::new()
                .map_err(Error::io("cannot make a timer"))?,
            loop_threads: LoopThreads::of_this_loop(),
            single_turns: 0,
            reply: ReplyBuffer::default(),
            buffer: Some(RequestBuffer::new()),
            externals: Vec::new(),
            pages_to_reclaim: 0,
            owner_quota_bytes,
            added_mode: config.device_mode.unwrap_or(ADDED_DEVICE_MODE),
            tracer: None,
            traced: 0,
            warned: HashSet::new(),
            logs: files::OpenLogs::new(),
            closed: false,
            epoll,
            channel,
            guardian: guardian.ok(),
        };
        server.watch(server.channel.as_fd(), FUSE)?;
        server.watch(server.pages.signal(), BACKLOG)?;
        server.watch(server.threads.timer(), THREAD_TIMER)?;
        server.watch(server.freeze_timer.as_fd(), FREEZE_TIMER)?;
        server.watch(server.delayed.timer(), DELAYED_CALLS)?;
        if let Some(threads) = &server.loop_threads {
            server.watch(threads.returned(), RETURNED_ACCESSES)?;
        }
        server.watch(server.nonblock.signal(), NONBLOCK_LOOKUPS)?;
        server.watch_edges(server.hold_timer.fd(), HOLD_TIMER)?;
        server.watch_edges(server.tick_timer.fd(), TICK_TIMER)?;
        for sentence in &server.degraded {
            tracing::warn!("{sentence}");
        }
        Ok(server)
    }

    fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Error> {
        self.watch_for(fd, token, epoll::EventFlags::IN)
    }

    fn watch_edges(&self, fd: BorrowedFd<'_>, token: u64) -> Result<(), Error> {
        self.watch_for(fd, token, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    fn watch_for(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        events: epoll::EventFlags,
    ) -> Result<(), Error> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), events)
            .map_err(Error::io("cannot watch a descriptor"))
    }

    fn add_first_device(&mut self, name: &str, mode: u32) -> Result<(), Error> {
        self.tree.check_name(name).map_err(|errno| Error::DeviceName {
            name: name.to_owned(),
            reason: match errno {
                libc::EEXIST => "another device has it",
                libc::ENAMETOOLONG => "longer than 255 bytes",
                libc::ENOSPC => "too many devices",
                _ => "not a file name, which is neither empty nor contains a slash",
            },
        })?;
        let context = self.driver.add_context(name);
        self.tree.add(name, context, mode);
        Ok(())
    }

    /// Watches one more descriptor for reading; [`next_event`](Self::next_event) returns its token
    /// whenever it is ready. It must stay open as long as the server lives.
    pub fn add_external(&mut self, fd: BorrowedFd<'_>, token: u32) -> Result<(), Error> {
        self.watch(fd, EXTERNAL | u64::from(token))
    }

    /// Stops watching a descriptor.
    pub fn remove_external(&mut self, fd: BorrowedFd<'_>) {
        // A descriptor that was never added is no error.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Like [`add_external`](Self::add_external), for a descriptor that signals by `POLLPRI`, as a
    /// pressure trigger does.
    pub fn add_urgent_external(&mut self, fd: BorrowedFd<'_>, token: u32) -> Result<(), Error> {
        self.watch_for(fd, EXTERNAL | u64::from(token), epoll::EventFlags::PRI)
    }

    /// Serves clients until an event occurs that the caller has to handle.
    pub fn next_event(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(token) = self.externals.pop() {
                return Ok(Event::External(token));
            }
            if self.closed {
                return Ok(Event::Unmounted);
            }
            self.turn()?;
        }
    }

    fn turn(&mut self) -> Result<(), Error> {
        self.limit_direct_reads();
        self.limit_ring_timer();
        if self.host.rings.is_watching() {
            self.serve_rings()?;
        } else if self.direct_read.reads_next() {
            self.read_directly()?;
        } else {
            self.serve_events()?;
        }
        self.serve_queue();
        self.nonblock.submit_due(|call| self.calls.get(call).is_some());
        self.limit_held_reads();
        self.await_tick();
        if self.is_reclaiming() {
            self.continue_reclaim();
        }
        Ok(())
    }

    /// Waits for events and serves them. Exits of threads and openers are handled before requests,
    /// because a request may come from a new thread with the id of one that has exited.
    fn serve_events(&mut self) -> Result<(), Error> {
        let mut events = [MaybeUninit::uninit(); 64];
        let busy = self.is_reclaiming()
            || !self.queue.is_empty()
            || self.direct_read.is_on()
            || self.host.rings.is_watching();
        let timeout = if busy { Some(Duration::ZERO) } else { self.nonblock.next_in() };
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let ready = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(Error::io("cannot wait for events")(errno)),
        };
        if self.direct_read.is_on() {
            self.direct_read.note_poll();
            self.end_hold_interval();
        }
        let mut requests = false;
        for event in ready.iter() {
            let token = event.data.u64();
            match (token & KIND, token) {
                (THREAD, _) => {
                    if let Some(exit) = self.threads.exited(token as u32) {
                        self.thread_gone(exit);
                    }
                }
                (OPENER, _) => {
                    if let Some(exit) = self.openers.exited(token as u32) {
                        self.opener_gone(exit);
                    }
                }
                (EXTERNAL, _) => self.externals.push(token as u32),
                (_, THREAD_TIMER) => {
                    self.threads.check().into_iter().for_each(|exit| self.thread_gone(exit));
                }
                (_, FD_DELIVERIES) => self.serve_fd_deliveries(),
                (_, FREEZE_TIMER) => self.serve_freeze_timeouts(),
                (_, DELAYED_CALLS) => self.serve_delayed_calls(),
                (_, RETURNED_ACCESSES) => self.serve_returned_accesses(),
                (_, NONBLOCK_LOOKUPS) => self.end_nonblocking_reads(),
                (_, HOLD_TIMER) => self.end_hold_timer(),
                (_, TICK_TIMER) => self.end_tick(),
                (_, BACKLOG) => self.serve_backlog(),
                _ => requests = true,
            }
        }
        if requests || !self.externals.is_empty() {
            // Reads until there is no further request, and system calls of the caller, must not
            // block or be interrupted.
            self.end_direct_reads();
        }
        if requests {
            self.read_requests()?;
            self.begin_direct_reads();
        }
        Ok(())
    }

    /// Accepts requests that the page server has read in place of the event loop.
    fn serve_backlog(&mut self) {
        while let Some(kept) = self.pages.take() {
            self.accept(kept.request.bytes());
            if kept.interrupted
                && let Err(error) = self.interrupt(kept.unique)
            {
                let unique = kept.unique;
                tracing::warn!("request {unique}: the kernel does not take the answer: {error}");
            }
        }
    }

    /// Reads requests. While the queue is empty, the first request is served at once, as no other
    /// request can be delayed by it: on an idle machine that applies to every call. There the next
    /// poll replaces the read that would find no other request.
    fn read_requests(&mut self) -> Result<(), Error> {
        let Some(mut buffer) = self.buffer.take() else { return Ok(()) };
        let mut at_once = self.queue.is_empty();
        let single = at_once && self.single_turns < MAX_SINGLE_TURNS;
        let most = if single { 1 } else { READS_PER_TURN };
        let mut found = 0;
        let mut result = Ok(());
        for _ in 0..most {
            match self.channel.read(&mut buffer) {
                Ok(Incoming::Request(len)) if std::mem::take(&mut at_once) => {
                    self.serve(buffer.bytes(len));
                }
                Ok(Incoming::Request(len)) => self.accept(buffer.bytes(len)),
                Ok(Incoming::Nothing) => break,
                Ok(Incoming::Closed) => self.closed = true,
                Err(error) => result = Err(Error::io("cannot read requests")(error)),
            }
            if result.is_err() || self.closed {
                break;
            }
            found += 1;
        }
        if single {
            self.single_turns += 1;
        } else {
            self.single_turns = if found > 1 { MAX_SINGLE_TURNS } else { 0 };
        }
        self.buffer = Some(buffer);
        result
    }

    /// Queues a request. Requests without a reply are served at once, and so are those that a
    /// client whose request is being served may wait for. A signal for a call takes a turn of the
    /// call's owner: it costs as much as a call, and threads can be signalled without pause.
    ///
    /// An owner with too many requests in the queue gets no more in, but signals and closes, of
    /// which a thread has one: what is left unread in the kernel waits in front of other owners'.
    fn accept(&mut self, bytes: &[u8]) {
        let Ok(request) = Request::parse(bytes) else { return self.serve(bytes) };
        let (mut call, mut is_close) = (None, false);
        let fh = match &request.operation {
            Operation::Interrupt { unique } => {
                let call = self.calls.of_request(*unique).and_then(|key| self.calls.get(key));
                return match call.map(|call| self.requester_of(&call.request)) {
                    Some(requester) => self.queue.push(requester, StoredRequest::new(bytes)),
                    None => self.serve(bytes),
                };
            }
            Operation::Read(_)
            | Operation::Forget { .. }
            | Operation::BatchForget(_)
            | Operation::Destroy => return self.serve(bytes),
            Operation::Ioctl(ioctl, data) => {
                call = self.arrived_call(&request.header, ioctl, data);
                Some(ioctl.fh)
            }
            Operation::Poll(poll) => Some(poll.fh),
            Operation::Flush(flush) => {
                is_close = true;
                Some(flush.fh)
            }
            Operation::Release(release) => {
                is_close = true;
                Some(release.fh)
            }
            _ => None,
        };
        let requester = self.requester(Uid(request.header.uid), fh.map(OpenKey::from_fh));
        if !is_close && let Err(why) = self.queue.check(requester) {
            let unique = request.header.unique;
            self.warn_exhausted(requester.owner(), "requests that wait", why, "EAGAIN");
            // A caller that was killed meanwhile takes no answer.
            let _ = self.channel.send(self.reply.error(unique, libc::EAGAIN));
            return;
        }
        let Some((request, bwr)) = call else {
            return self.queue.push(requester, StoredRequest::new(bytes));
        };
        let level = self.host.real_time_level(request.caller.tid);
        let step = Step { bwr, stage: Stage::Arrived(requester) };
        let key = self.wait(request, CallState::Queued(Box::new(step)));
        self.queue.push_arrived(level, requester, key);
    }

    /// Who is charged for a request of this uid, on this open.
    fn requester(&self, uid: Uid, open: Option<OpenKey>) -> Requester {
        let of_filesystem = Requester { account: Account::Filesystem, uid };
        open.and_then(|key| self.host.opens.get(key)).map_or(of_filesystem, Requester::of)
    }

    /// Serves queued requests in round-robin order.
    fn serve_queue(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let start = Instant::now();
        while !self.closed
            && let Some((next, out_of_turn)) = self.queue.pop(coarse_now_ns())
        {
            let begun = out_of_turn.map(|_| Instant::now());
            match next {
                Due::Request(request) => self.serve(request.bytes()),
                Due::Call(call) => self.serve_call(call),
            }
            if let (Some(owner), Some(begun)) = (out_of_turn, begun) {
                self.queue.charge(owner, coarse_now_ns(), begun.elapsed());
            }
            if start.elapsed() >= TURN {
                break;
            }
        }
    }

    /// Starts a call whose turn has come, or runs its next slice.
    fn serve_call(&mut self, key: CallKey) {
        if !self.calls.get(key).is_some_and(|call| matches!(call.state, CallState::Queued(_))) {
            // It has ended meanwhile.
            return;
        }
        let Some(Call { request, state: CallState::Queued(step) }) = self.end_wait(key) else {
            return;
        };
        let served = match step.stage {
            Stage::Arrived(_) => self.start_call(request, step.bwr),
            Stage::Touched => self.run_now(request, step.bwr),
            Stage::Unpaid | Stage::Due => self.run_write_read(request, step.bwr),
        };
        self.log_unsent(&request, served);
        self.finish_serving();
    }

    /// Serves one request. If the kernel refuses the reply, the caller gets an EIO; other callers
    /// are not affected.
    fn serve(&mut self, bytes: &[u8]) {
        let failed = match Request::parse(bytes) {
            Ok(request) => {
                let unique = request.header.unique;
                self.dispatch(&request).err().map(|error| (unique, libc::EIO, error.to_string()))
            }
            Err(error @ ParseError::Body { unique, .. }) => {
                Some((unique, libc::EINVAL, error.to_string()))
            }
            Err(error @ ParseError::Short { .. }) => {
                tracing::warn!("{error}, ignoring it");
                None
            }
        };
        if let Some((unique, errno, why)) = failed {
            tracing::warn!("request {unique}: {why}; it fails");
            // FORGET has no reply, and a request has one reply only: both errors are expected here.
            let _ = self.channel.send(self.reply.error(unique, errno));
        }
        self.finish_serving();
    }

    /// Follow-up work after each request that was served.
    fn finish_serving(&mut self) {
        self.serve_wakes();
        if self.tracer.is_some() {
            self.continue_trace();
        }
    }

    /// Logs a warning about an error of a client once: otherwise a client could flood the log.
    fn warn_once(&mut self, topic: &'static str, text: impl FnOnce() -> String) {
        if self.warned.insert(topic) {
            tracing::warn!("{} (logged once)", text());
        }
    }

    fn dispatch(&mut self, request: &Request<'_>) -> std::io::Result<()> {
        let header = &request.header;
        match &request.operation {
            Operation::Ioctl(ioctl, data) => self.ioctl(header, ioctl, data),
            Operation::Poll(poll) => self.poll(header, poll),
            Operation::Interrupt { unique } => self.interrupt(*unique),
            Operation::Read(_) => self.pages.answer_read(&mut self.reply, request),
            Operation::Lookup { name } => self.lookup(header, name),
            Operation::Forget { nlookup } => {
                self.tree.forget(header.nodeid, *nlookup);
                Ok(())
            }
            Operation::BatchForget(list) => {
                list.iter().for_each(|one| self.tree.forget(one.nodeid, one.nlookup));
                Ok(())
            }
            Operation::Getattr => self.send_attr(header),
            Operation::Setattr(change) => self.setattr(header, change),
            Operation::Open(open) => self.open(header, open),
            Operation::Flush(flush) => self.flush(header, flush.fh),
            Operation::Release(release) => self.release(header, release.fh),
            Operation::Opendir => self.opendir(header),
            Operation::Readdir(read) => self.readdir(header, read),
            Operation::Unlink { name } => self.unlink(header, name),
            Operation::Rename { old, new, new_parent, flags } => {
                self.rename(header, old, (*new_parent, new), *flags)
            }
            Operation::Statfs => self.statfs(header),
            Operation::Releasedir => self.send_ok(header),
            Operation::Write => self.pages.refuse_write(&mut self.reply, request),
            Operation::Destroy => {
                self.closed = true;
                self.send_ok(header)
            }
            Operation::Init(..) => self.send_error(header, libc::EIO),
            Operation::Other => {
                tracing::debug!("{} is not served", opcode_name(header.opcode));
                self.send_error(header, refusal(header.opcode))
            }
        }
    }

    /// The mount point, absolute.
    pub fn mount_point(&self) -> &Path {
        self.mount.path()
    }

    /// How receive buffers reach clients on this machine.
    pub fn mapping(&self) -> MappingKind {
        self.agreement.mapping
    }

    /// What does not work on this machine and which function is lost by it, a sentence each; each
    /// was logged at the start.
    pub fn degraded(&self) -> &[String] {
        &self.degraded
    }

    /// Gives the thread that ends blocked accesses the priority of the calling thread, which serves
    /// the bus: to be called after the caller's has changed.
    pub fn share_priority(&self) {
        self.pages.share_priority();
    }

    /// Adds what the program around the server lacks to [`degraded`](Self::degraded), and logs a
    /// warning.
    pub fn note_degraded(&mut self, sentence: String) {
        tracing::warn!("{sentence}");
        self.degraded.push(sentence);
    }

    /// Number of devices that have a name.
    pub fn device_count(&self) -> usize {
        self.tree.device_count()
    }

    /// Number of opens of all devices.
    pub fn open_count(&self) -> usize {
        self.host.opens.len()
    }

    /// Threads of clients that have rings.
    pub fn ring_count(&self) -> usize {
        self.host.rings.count()
    }

    /// Number of calls and one-way calls that were delivered since the start.
    pub fn transactions(&self) -> u64 {
        self.driver.transactions_delivered()
    }

    /// Whether an open of this device was refused since its file is bound by itself and is open.
    pub fn file_is_bound(&self, device: &str) -> bool {
        self.tree.is_bound(device)
    }

    /// All state of the driver.
    pub fn snapshot(&self) -> Snapshot {
        self.driver.snapshot()
    }
}
