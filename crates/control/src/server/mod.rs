//! The server: one file descriptor to watch, never blocked by a client.
//!
//! Clients may be hostile, and their cost is bounded per *owner* (see the crate `owners`):
//!
//! * connections by a quota, a part of which is reserved for root, which has a socket of its own as
//!   well, so that others cannot fill the queue in front of it;
//! * subscriptions, which last as long as a desktop session, by another one;
//! * the time of the event loop by a token bucket: the requests of an owner that has used its share
//!   are not read until the bucket is filled again, so a flood costs nothing;
//! * new connections by a rate: those beyond it are refused at the cost of the owner's time;
//! * the order of requests by round robin over owners, then uids;
//! * an iteration of the event loop by the number of requests and new connections in it.

mod budget;

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use owners::bounds::{Bound, CONTROL_ACCEPTS, CONTROL_CONNECTIONS, CONTROL_TIME};
use owners::client_files::Closers;
use owners::{Exhausted, Owner, Quota, QuotaSize};
use rustix::event::epoll;
use rustix::io::Errno;
use serde::{Serialize, de::DeserializeOwned};

use crate::frame::{self, Decoder};
use crate::listener::{Accepted, Listener};
use crate::peer_socket::{PeerSocket, Received};
use crate::{ControlError, Peer};
use budget::Budget;
pub use budget::{CpuTime, Turn};

/// Maximum of concurrent subscribers.
const SUBSCRIPTIONS: QuotaSize = owners::bounds::CONTROL_SUBSCRIPTIONS.slots();
/// Maximum of connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// New connections per iteration of the event loop, from each socket.
const ACCEPTS_PER_TURN: usize = 16;
/// Packets read per iteration of the event loop: a packet of root waits for one of others.
const PACKETS_PER_TURN: [(Turn, usize); 2] = [(Turn::Root, 4), (Turn::Others, 1)];
/// Maximum of packets queued for a subscriber, besides those in its socket; one more and it is
/// disconnected.
const MAX_BEHIND: usize = 64;
/// Event data of epoll; connections have higher numbers.
const LISTENER: u64 = 0;
const ROOT_LISTENER: u64 = 1;
const TIMER: u64 = 2;
const FIRST_CONNECTION: u64 = 3;

/// What the clients of a socket may use, and what clients get whose connection is refused.
#[derive(Clone, Copy)]
pub struct Protocol {
    /// Concurrent connections.
    pub connections: &'static Bound,
    /// CPU time of the event loop.
    pub time: &'static Bound,
    /// New connections.
    pub accepts: &'static Bound,
    /// Packets for a client whose connection is refused, for this reason.
    pub refusal: fn(String) -> Vec<Vec<u8>>,
}

const CONTROL: Protocol = Protocol {
    connections: &CONTROL_CONNECTIONS,
    time: &CONTROL_TIME,
    accepts: &CONTROL_ACCEPTS,
    refusal: |message| frame::encode(&Refusal::Error { message }).unwrap_or_default(),
};

/// A listening control socket.
///
/// Put [`fd`](AsFd::as_fd) into the daemon's event loop and call [`serve`](Server::serve) when it
/// is readable. The socket files are removed on drop.
pub struct Server {
    epoll: OwnedFd,
    listener: Listener,
    /// `None` if only root may connect.
    root_listener: Option<Listener>,
    /// For connections that may carry files.
    closers: Closers,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Connections without a subscription.
    slots: Quota,
    /// Connections with a subscription.
    subscriptions: Quota,
    budget: Budget,
    protocol: Protocol,
}

/// The listening sockets of a server, as `F`.
#[derive(Clone, Copy, Debug)]
pub struct Listeners<F> {
    /// For all users.
    pub all: F,
    /// For root, if others may connect to `all`.
    pub root: Option<F>,
}

/// A request that was received.
#[derive(Debug)]
pub struct Request<Q> {
    /// Id for a reply that is sent later.
    pub id: RequestId,
    /// The sender.
    pub peer: Peer,
    /// The request, or the reason why it is invalid.
    pub body: Result<Q, String>,
}

/// Identifies a connection, and its request until it is replied to; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(u64);

/// How a request is answered.
#[derive(Debug)]
pub enum Answer<R> {
    /// Send this reply.
    Now(R),
    /// Send this reply; from then on the client receives [published](Server::publish) messages.
    Subscribed(R),
    /// The reply is sent by [`Server::reply`]. The client's next request waits for it.
    Later,
}

/// Sent to a client whose connection is refused; both daemons' replies have this variant.
#[derive(Serialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
enum Refusal {
    Error { message: String },
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Server {
    /// Listens on `path`, which gets the permission bits `mode` (connecting needs write
    /// permission). The folder is created if it is missing; a socket that a dead daemon left is
    /// replaced.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, ControlError> {
        let closers = Closers::for_connections();
        let listener = Listener::bind(path, mode, BACKLOG, closers.clone())?;
        let others_may_connect = mode & 0o022 != 0;
        let root_listener = if others_may_connect {
            Some(Listener::bind(&root_socket(path), 0o600, BACKLOG, closers.clone())?)
        } else {
            None
        };
        Self::new(Listeners { all: listener, root: root_listener }, closers, CONTROL)
    }

    /// Continues with the [listeners](Self::listeners) of a server in the program that this one
    /// replaces. Its connections are closed, unless they are [adopted](Self::adopt).
    pub fn from_listeners(
        path: &Path,
        Listeners { all, root }: Listeners<OwnedFd>,
    ) -> Result<Self, ControlError> {
        let closers = Closers::for_connections();
        let root = root.map(|fd| Listener::from_fd(&root_socket(path), fd, closers.clone()));
        let all = Listener::from_fd(path, all, closers.clone());
        Self::new(Listeners { all, root }, closers, CONTROL)
    }

    /// Serves a protocol on these sockets, whose connections that may carry files are closed by
    /// `closers`. One that is not made of the requests and replies of [`serve`](Self::serve) is
    /// served by [`poll`](Self::poll), [`next`](Self::next) and [`end_turn`](Self::end_turn).
    pub fn new(
        Listeners { all: listener, root: root_listener }: Listeners<Listener>,
        closers: Closers,
        protocol: Protocol,
    ) -> Result<Self, ControlError> {
        let path = listener.path().to_owned();
        let fail = |doing| {
            let path = path.clone();
            move |errno| ControlError::Io { path, doing, errno }
        };
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(fail("cannot make epoll"))?;
        let budget = Budget::new(protocol.time, protocol.accepts);
        let budget = budget.map_err(fail("cannot make a timer"))?;
        let watch = |fd: BorrowedFd<'_>, number| {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN).map_err(fail("cannot watch"))
        };
        watch(listener.as_fd(), LISTENER)?;
        if let Some(root_listener) = &root_listener {
            watch(root_listener.as_fd(), ROOT_LISTENER)?;
        }
        watch(budget.timer(), TIMER)?;
        Ok(Self {
            epoll,
            listener,
            root_listener,
            closers,
            connections: BTreeMap::new(),
            next: FIRST_CONNECTION,
            slots: Quota::new(protocol.connections.slots()),
            subscriptions: Quota::new(SUBSCRIPTIONS),
            budget,
            protocol,
        })
    }

    /// The listening sockets.
    pub fn listeners(&self) -> Listeners<BorrowedFd<'_>> {
        let root = self.root_listener.as_ref().map(AsFd::as_fd);
        Listeners { all: self.listener.as_fd(), root }
    }

    /// The threads that close connections, for further sockets of the daemon.
    pub fn closers(&self) -> Closers {
        self.closers.clone()
    }

    /// The connection of a request. `None`: it is closed.
    pub fn connection(&self, RequestId(number): RequestId) -> Option<(&PeerSocket, Peer)> {
        self.connections.get(&number).map(|it| (&it.socket, it.peer))
    }

    /// Takes over a connection with a request that is answered [later](Answer::Later). `None`: the
    /// client has exited.
    pub fn adopt(&mut self, connection: OwnedFd) -> Option<RequestId> {
        let accepted = self.listener.take_over(connection);
        let number = self.welcome(accepted)?;
        self.connections.get_mut(&number)?.stage = Stage::Answering;
        Some(RequestId(number))
    }

    /// Whether the connection of this request still exists.
    pub fn is_connected(&self, RequestId(number): RequestId) -> bool {
        self.connections.contains_key(&number)
    }

    /// Path of the control socket.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Serves a bounded number of requests without ever blocking. `answer` gets a request, or the
    /// error of one that is invalid.
    pub fn serve<Q: DeserializeOwned, R: Serialize>(
        &mut self,
        mut answer: impl FnMut(Peer, Result<Q, String>) -> R,
    ) {
        self.serve_requests(|request: Request<Q>| Answer::Now(answer(request.peer, request.body)));
    }

    /// As [`serve`](Server::serve); a client that gets a reply for which `subscribes` holds
    /// receives [published](Server::publish) messages from then on.
    pub fn serve_subscribers<Q: DeserializeOwned, R: Serialize>(
        &mut self,
        mut answer: impl FnMut(Peer, Result<Q, String>) -> R,
        subscribes: fn(&R) -> bool,
    ) {
        self.serve_requests(|request: Request<Q>| {
            let reply = answer(request.peer, request.body);
            if subscribes(&reply) { Answer::Subscribed(reply) } else { Answer::Now(reply) }
        });
    }

    /// As [`serve`](Server::serve), for requests that may be answered later.
    pub fn serve_requests<Q: DeserializeOwned, R: Serialize>(
        &mut self,
        mut answer: impl FnMut(Request<Q>) -> Answer<R>,
    ) {
        self.poll();
        for (turn, packets) in PACKETS_PER_TURN {
            for _ in 0..packets {
                let Some((id, peer)) = self.next(turn) else { break };
                let begun = CpuTime::now();
                if self.take_packet(id.0, &mut answer).is_err() {
                    self.close(id);
                }
                self.charge(peer.owner, begun);
            }
        }
        self.end_turn();
    }

    /// Accepts connections and schedules those that are readable.
    pub fn poll(&mut self) {
        let mut events = [MaybeUninit::uninit(); 32];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return };
        for event in ready.iter() {
            match event.data.u64() {
                LISTENER => self.accept_from_others(),
                ROOT_LISTENER => self.accept_from_root(),
                TIMER => self.budget.timer_expired(),
                number => self.ready(number),
            }
        }
    }

    /// The connection from which to receive a packet next. The caller [charges](Self::charge) the
    /// owner, and [waits](Self::await_packet) for the next packet or [closes](Self::close) it.
    pub fn next(&mut self, turn: Turn) -> Option<(RequestId, Peer)> {
        while let Some(number) = self.budget.next(turn) {
            if let Some(connection) = self.connections.get(&number) {
                return Some((RequestId(number), connection.peer));
            }
        }
        None
    }

    /// Waits for the next packet of a connection, unless it is closed.
    pub fn await_packet(&mut self, RequestId(number): RequestId) {
        // Cannot fail: the connection is in the set.
        let _ = self.watch(number);
    }

    /// Whether the owner, and all owners together, have CPU time left.
    pub fn has_time(&mut self, owner: Owner) -> bool {
        self.budget.has_time(owner)
    }

    /// Charges the CPU time used since `begun` to the owner.
    pub fn charge(&mut self, owner: Owner, begun: CpuTime) {
        self.budget.charge(owner, begun);
    }

    /// Ends an iteration: sets the timer to when the next connection can be served or accepted.
    pub fn end_turn(&mut self) {
        if self.budget.accepts_again(&self.closers) {
            self.listen(epoll::EventFlags::IN);
        }
        self.budget.set_timer();
    }

    fn listen(&self, events: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(LISTENER);
        // Cannot fail: the listener is in the set.
        let _ = epoll::modify(&self.epoll, self.listener.as_fd(), data, events);
    }

    fn accept_from_root(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = &self.root_listener else { return };
            match listener.accept() {
                Accepted::Nothing => return,
                accepted => self.welcome(accepted),
            };
        }
    }

    fn accept_from_others(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            // The owner is known only after accepting: all of them together have a rate as well.
            if !self.budget.may_accept(&self.closers) {
                return self.listen(epoll::EventFlags::empty());
            }
            let begun = CpuTime::now();
            let accepted = self.listener.accept();
            if let Accepted::Nothing = accepted {
                return;
            }
            self.budget.accepted();
            if let Accepted::Connection(socket, peer) = &accepted
                && !self.budget.admits(peer.owner)
            {
                let owner = peer.owner;
                let message = format!("{owner} connects to the daemon too often: try again later");
                self.refuse(socket, message);
                drop(accepted);
                self.budget.charge_refusal(owner, begun);
                continue;
            }
            self.welcome(accepted);
        }
    }

    /// Sends the reason of the refusal, as far as it fits into the socket.
    fn refuse(&self, socket: &PeerSocket, message: String) {
        let packets = (self.protocol.refusal)(message);
        let _ = packets.iter().try_for_each(|packet| socket.send(packet, None));
    }

    /// Adds a connection; returns its number.
    fn welcome(&mut self, accepted: Accepted) -> Option<u64> {
        let Accepted::Connection(socket, peer) = accepted else { return None };
        if let Err(exhausted) = self.slots.take(peer.owner, peer.uid) {
            self.refuse(&socket, refusal("connections", peer.owner, exhausted));
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.connections.insert(number, Connection::new(socket, peer));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let data = epoll::EventData::new_u64(number);
        let connection = &self.connections[&number];
        if epoll::add(&self.epoll, connection.as_fd(), data, flags).is_err() {
            self.close(RequestId(number));
            return None;
        }
        Some(number)
    }

    /// Closes a connection.
    pub fn close(&mut self, RequestId(number): RequestId) {
        // Dropping the fd removes it from the epoll set.
        if let Some(connection) = self.connections.remove(&number) {
            let quota =
                if connection.subscribed { &mut self.subscriptions } else { &mut self.slots };
            quota.give_back(connection.peer.owner, connection.peer.uid);
        }
    }

    /// Handles an epoll event: the connection is readable or writable, as it was watched for.
    fn ready(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        match connection.stage {
            Stage::Reading => self.enqueue(number),
            Stage::Writing => {
                if connection.flush().and_then(|()| self.watch(number)).is_err() {
                    self.close(RequestId(number));
                }
            }
            // epoll watches for nothing in these stages.
            Stage::Queued | Stage::Answering => {}
        }
    }

    fn enqueue(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.stage = Stage::Queued;
        self.budget.enqueue(connection.peer, number);
    }

    /// Sets epoll to watch for the event that the connection waits for.
    fn watch(&mut self, number: u64) -> Result<(), ()> {
        let connection = self.connections.get_mut(&number).ok_or(())?;
        let (wanted, stage) = if connection.outbox.is_empty() {
            (epoll::EventFlags::IN, Stage::Reading)
        } else {
            (epoll::EventFlags::OUT, Stage::Writing)
        };
        connection.stage = stage;
        let data = epoll::EventData::new_u64(number);
        let flags = wanted | epoll::EventFlags::ONESHOT;
        epoll::modify(&self.epoll, connection.as_fd(), data, flags).map_err(|_| ())
    }

    /// Reads a packet of the scheduled client, and answers the request that it completes; `Err`
    /// closes the connection.
    fn take_packet<Q: DeserializeOwned, R: Serialize>(
        &mut self,
        number: u64,
        answer: &mut impl FnMut(Request<Q>) -> Answer<R>,
    ) -> Result<(), ()> {
        let connection = self.connections.get_mut(&number).ok_or(())?;
        // Messages published meanwhile. A client that does not read costs at most what its socket
        // holds.
        connection.flush()?;
        if !connection.outbox.is_empty() {
            return self.watch(number);
        }
        let body = match connection.receive() {
            Incoming::Request(body) => body,
            Incoming::Part => {
                self.enqueue(number);
                return Ok(());
            }
            Incoming::Nothing => return self.watch(number),
            Incoming::Closed => return Err(()),
        };
        let request = Request { id: RequestId(number), peer: connection.peer, body };
        let reply = match answer(request) {
            Answer::Now(reply) => reply,
            Answer::Subscribed(reply) => match self.subscribe(number) {
                Ok(()) => reply,
                Err(message) => return self.send(number, &Refusal::Error { message }),
            },
            Answer::Later => {
                connection.stage = Stage::Answering;
                return Ok(());
            }
        };
        self.send(number, &reply)
    }

    /// Makes a connection one of a subscriber, which is counted by its own quota.
    fn subscribe(&mut self, number: u64) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        let Peer { owner, uid, .. } = connection.peer;
        if !connection.subscribed {
            self.subscriptions
                .take(owner, uid)
                .map_err(|exhausted| refusal("subscriptions", owner, exhausted))?;
            self.slots.give_back(owner, uid);
            connection.subscribed = true;
        }
        Ok(())
    }

    fn send(&mut self, number: u64, reply: &impl Serialize) -> Result<(), ()> {
        let connection = self.connections.get_mut(&number).ok_or(())?;
        connection.outbox.extend(frame::encode(reply).map_err(|_| ())?);
        connection.flush()?;
        if connection.outbox.is_empty() {
            // Another request may be available already; it is scheduled after those of others.
            self.enqueue(number);
        } else {
            self.watch(number)?;
        }
        Ok(())
    }

    /// Sends the reply to a request answered with [`Answer::Later`]. Does nothing if the client has
    /// closed the connection.
    pub fn reply(&mut self, id: RequestId, reply: &impl Serialize) {
        let RequestId(number) = id;
        let answering = |connection: &Connection| connection.stage == Stage::Answering;
        if !self.connections.get(&number).is_some_and(answering) {
            return;
        }
        if self.send(number, reply).is_err() {
            self.close(RequestId(number));
        }
        self.budget.set_timer();
    }

    /// Sends a message to the subscribers that may see it, without waiting: a client that is too
    /// far behind is disconnected.
    pub fn publish(&mut self, message: &impl Serialize, may_see: impl Fn(Peer) -> bool) {
        let Ok(packets) = frame::encode(message) else { return };
        let subscribed = |(number, connection): (&u64, &Connection)| {
            (connection.subscribed && may_see(connection.peer)).then_some(*number)
        };
        for number in self.connections.iter().filter_map(subscribed).collect::<Vec<u64>>() {
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            connection.outbox.extend(packets.iter().cloned());
            let sent = match connection.stage {
                _ if connection.outbox.len() > MAX_BEHIND => Err(()),
                Stage::Reading => connection.flush().and_then(|()| self.watch(number)),
                // Flushed on the next epoll event, or when the connection is scheduled.
                Stage::Writing | Stage::Queued | Stage::Answering => Ok(()),
            };
            if sent.is_err() {
                self.close(RequestId(number));
            }
        }
    }

    /// Whether any client receives published messages.
    pub fn has_subscribers(&self) -> bool {
        self.connections.values().any(|connection| connection.subscribed)
    }
}

/// Path of the socket for root, besides the control socket itself: `oomd-root.sock` beside
/// `oomd.sock`.
pub(crate) fn root_socket(path: &Path) -> PathBuf {
    let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_os_string();
    let mut name = part(path.file_stem());
    name.push("-root.");
    name.push(part(path.extension()));
    path.with_file_name(name)
}

fn refusal(what: &str, owner: Owner, exhausted: Exhausted) -> String {
    match exhausted {
        Exhausted::Owner => format!(
            "{owner} has as many {what} to the daemon as it may have: close one, or try again"
        ),
        Exhausted::All => {
            format!("all {what} that users may have are in use: try again in a moment")
        }
    }
}

/// Maximum length of a request, bytes.
const MAX_REQUEST: usize = 64 * 1024;

/// State of a connection: what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A packet; epoll watches for it.
    Reading,
    /// To be scheduled: a packet may be there. epoll watches for nothing, so a client that must
    /// wait does not wake the event loop.
    Queued,
    /// A reply that is not known yet; epoll watches for nothing.
    Answering,
    /// Space in its socket; epoll watches for it.
    Writing,
}

/// Result of reading a packet.
enum Incoming<Q> {
    /// A complete request, or the reason why it is invalid.
    Request(Result<Q, String>),
    /// A part of a request.
    Part,
    /// No packet is available.
    Nothing,
    /// The client has closed the connection, or has sent files.
    Closed,
}

/// A client's connection.
struct Connection {
    socket: PeerSocket,
    peer: Peer,
    stage: Stage,
    decoder: Decoder,
    /// Packets that the client has not received yet. While it is not empty, the client's next
    /// request is not read, so a client that does not read costs at most one reply.
    outbox: VecDeque<Vec<u8>>,
    /// Whether the client receives published messages.
    subscribed: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    fn new(socket: PeerSocket, peer: Peer) -> Self {
        let (decoder, outbox) = (Decoder::default(), VecDeque::new());
        Self { socket, peer, stage: Stage::Reading, decoder, outbox, subscribed: false }
    }

    /// Receives one packet.
    fn receive<Q: DeserializeOwned>(&mut self) -> Incoming<Q> {
        let mut packet = vec![0; frame::MAX_PACKET];
        let len = match self.socket.receive(&mut packet) {
            Received::Packet(len) => len,
            Received::Nothing => return Incoming::Nothing,
            Received::Files | Received::Closed => return Incoming::Closed,
        };
        match self.decoder.push(&packet[..len], MAX_REQUEST) {
            Ok(None) => Incoming::Part,
            Ok(Some(request)) => Incoming::Request(Ok(request)),
            Err(error) => Incoming::Request(Err(error.to_string())),
        }
    }

    /// Sends as many packets as the socket has space for.
    fn flush(&mut self) -> Result<(), ()> {
        while let Some(packet) = self.outbox.front() {
            match self.socket.send(packet, None) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => break,
                Err(_) => return Err(()),
            }
        }
        Ok(())
    }
}
