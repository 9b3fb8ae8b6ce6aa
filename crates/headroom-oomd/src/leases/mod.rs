//! The coordinator of leases: reserves memory for processes before they use it.
//!
//! The rules are in `memory_ledger::lease`; this module does the I/O, on a socket on which the
//! kernel identifies the peer:
//!
//! * [`clients`](self::clients): lifecycle of a client, and the page shared with it, from which it
//!   takes memory without a request;
//! * [`journal`]: the leases that survive the daemon;
//! * [`grants`](self::grants): decisions about requests, and recall of unused leases.
//!
//! A lease belongs to a process, not to a connection: it ends when the process' pidfd is readable.

mod clients;
mod grants;
pub mod journal;

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::Context;
use client_files::Closers;
use control::lease::{LEASE_SOCKET_NAME, Reply, Request, Status};
use control::listener::{Accepted, Listener};
use control::peer_socket::{PeerSocket, Received as Packet};
use control::server::CpuTime;
use control::{Peer, oomd};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{AccountId, Book, ClientId};
use owners::bounds::{LEASE_ACCEPTS, LEASE_CLIENTS, LEASE_TIME};
use owners::{Owner, Quota, QuotaSize, Rate, TokenBucket, TokenBuckets, reader};
use rustix::event::{Timespec, epoll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::clock::NS_PER_MS;
use crate::oom::OomManager;
use crate::oom::control::of_ref;
use clients::{Client, Remembered};
use grants::{Demand, Waiting};
use journal::Journal;

/// Quota of connections, and of clients.
const CLIENTS: QuotaSize = LEASE_CLIENTS.slots();
/// Every user may connect.
const SOCKET_MODE: u32 = 0o666;
/// Maximum of connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Events per iteration of the event loop: at most one request of each connection that is ready.
const EVENTS_PER_TURN: usize = 64;
/// New connections per iteration of the event loop.
const ACCEPTS_PER_TURN: usize = 16;
/// Microseconds of CPU time.
const OF_AN_OWNER: Rate = LEASE_TIME.of_an_owner();
const OF_ALL: Rate = LEASE_TIME.of_all();
const ACCEPTS_OF_AN_OWNER: Rate = LEASE_ACCEPTS.of_an_owner();
const ACCEPTS: Rate = LEASE_ACCEPTS.of_all();
/// How long a connection whose owner has used up its CPU time is not read, milliseconds.
const WINDOW_MS: u64 = 100;
/// How often deferred requests are retried, milliseconds: memory can be returned without a request.
const WAITING_MS: u64 = 5;
/// How often the balances of idle clients are collected, milliseconds.
const COLLECT_MS: u64 = 5_000;
/// How long after a closed connection its process is checked, milliseconds: most such processes are
/// exiting, and are gone by then.
const ORPHAN_MS: u64 = 50;

/// File name of the journal in the directory of the control socket.
const JOURNAL_NAME: &str = "leases";

/// Values of `epoll_event.data`: the kind in the lowest bits, the number above.
const LISTENER: u64 = 0;
const CONNECTION: u64 = 1;
const PROCESS: u64 = 2;
const KIND_BITS: u64 = 2;

/// All clients and their leases.
pub struct Leases {
    epoll: OwnedFd,
    listener: Listener,
    journal: Journal,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    connection_slots: Quota,
    client_slots: Quota,
    time: TokenBuckets<Owner>,
    time_of_all: TokenBucket,
    accepts_of_owners: TokenBuckets<Owner>,
    accepts: TokenBucket,
    /// New connections exceeded their rate or quota; the listener is not polled until the next
    /// window.
    deaf: bool,
    clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    /// Accounts with a limit only.
    books: BTreeMap<AccountId, Book>,
    /// Version of the ledger for which the clients' accounts and leases are current.
    ledger_version: Option<u64>,
    waiting: VecDeque<Waiting>,
    next_look_ns: u64,
    next_window_ns: u64,
    next_collection_ns: u64,
    /// Requests refused since the start.
    refused: u64,
}

impl Leases {
    /// Listens beside the control socket, and takes over the leases of the last daemon. `closers`
    /// close connections that may carry files.
    pub fn start(
        control_socket: &Path,
        closers: Closers,
        oom: &mut OomManager,
    ) -> anyhow::Result<Self> {
        let folder = control_socket.parent().unwrap_or(Path::new("."));
        let (journal, records) = Journal::open(&folder.join(JOURNAL_NAME))?;
        let path = folder.join(LEASE_SOCKET_NAME);
        let listener = Listener::bind(&path, SOCKET_MODE, BACKLOG, closers)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot make epoll")?;
        let word = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, word, epoll::EventFlags::IN).context("cannot watch")?;
        let mut leases = Self {
            epoll,
            listener,
            journal,
            connections: BTreeMap::new(),
            next_connection: 1,
            connection_slots: Quota::new(CLIENTS),
            client_slots: Quota::new(CLIENTS),
            time: TokenBuckets::new(OF_AN_OWNER),
            time_of_all: TokenBucket::new(OF_ALL, monotonic_ns()),
            accepts_of_owners: TokenBuckets::new(ACCEPTS_OF_AN_OWNER),
            accepts: TokenBucket::new(ACCEPTS, monotonic_ns()),
            deaf: false,
            clients: BTreeMap::new(),
            next_client: 1,
            books: BTreeMap::new(),
            ledger_version: None,
            waiting: VecDeque::new(),
            next_look_ns: 0,
            next_window_ns: 0,
            next_collection_ns: 0,
            refused: 0,
        };
        leases.take_over(records, oom);
        Ok(leases)
    }

    /// Handles everything that is due. Must be called when the fd is readable, when the deadline
    /// has passed, and when limits may have changed.
    pub fn dispatch(&mut self, oom: &mut OomManager) {
        let mut events = [MaybeUninit::uninit(); EVENTS_PER_TURN];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let words: Vec<u64> = match epoll::wait(&self.epoll, &mut events, Some(&now)) {
            Ok((ready, _)) => ready.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        };
        self.follow_limits(oom);
        for account in oom.take_pressed() {
            self.press(account, oom);
        }
        // Exited clients are removed first: their slots and memory can serve the requests.
        let of_kind = |kind: u64| {
            let numbers = words.iter().filter(move |word| **word & ((1 << KIND_BITS) - 1) == kind);
            numbers.map(|word| word >> KIND_BITS).collect::<Vec<u64>>()
        };
        for client in of_kind(PROCESS) {
            self.remove_client(client, oom);
        }
        if words.contains(&LISTENER) {
            self.accept();
        }
        for connection in of_kind(CONNECTION) {
            self.turn(connection, oom);
        }
        self.look_after_time(oom);
    }

    fn look_after_time(&mut self, oom: &mut OomManager) {
        let now_ns = monotonic_ns();
        self.look_after_orphans(now_ns, oom);
        if !self.waiting.is_empty() && now_ns >= self.next_look_ns {
            self.serve_waiting(oom);
            self.next_look_ns = now_ns + WAITING_MS * NS_PER_MS;
        }
        if now_ns >= self.next_window_ns {
            self.begin_window(now_ns);
        }
        if !self.books.is_empty() && now_ns >= self.next_collection_ns {
            self.collect_from_the_idle(oom);
            self.next_collection_ns = now_ns + COLLECT_MS * NS_PER_MS;
        }
    }

    /// When [`dispatch`](Leases::dispatch) is due even if the fd is not readable.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let waiting = (!self.waiting.is_empty()).then_some(self.next_look_ns);
        let muted = self.deaf || self.connections.values().any(|c| c.muted);
        let muted = muted.then_some(self.next_window_ns);
        let idle = (!self.books.is_empty()).then_some(self.next_collection_ns);
        let orphans = self.clients.values().filter_map(|client| client.orphan_since_ns);
        let orphans = orphans.min().map(|since_ns| since_ns + ORPHAN_MS * NS_PER_MS);
        [waiting, muted, idle, orphans].into_iter().flatten().min()
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let now_ns = monotonic_ns();
            if self.listener.is_full() || !self.accepts.is_ready(now_ns) {
                self.deaf = epoll::delete(&self.epoll, &self.listener).is_ok();
                return;
            }
            let begun = CpuTime::now();
            let accepted = self.listener.accept();
            if let Accepted::Nothing = accepted {
                return;
            }
            self.accepts.charge(now_ns, 1);
            let Accepted::Connection(socket, peer) = accepted else { continue };
            let connection = Connection { socket, peer, client: None, muted: false };
            let Peer { owner, uid, .. } = peer;
            if !owner.is_root() && !self.accepts_of_owners.take(owner, now_ns) {
                connection.reply(&Reply::of(Status::TooManyClients), None);
                drop(connection);
                if self.time.is_ready(owner, now_ns) {
                    self.time.charge(owner, now_ns, begun.elapsed_us());
                }
                continue;
            }
            if self.connection_slots.take(owner, uid).is_err() {
                connection.reply(&Reply::of(Status::TooManyClients), None);
                continue;
            }
            let number = self.next_connection;
            self.next_connection += 1;
            let word = epoll::EventData::new_u64(number << KIND_BITS | CONNECTION);
            let watched = epoll::add(&self.epoll, &connection.socket, word, epoll::EventFlags::IN);
            self.connections.insert(number, connection);
            if watched.is_err() {
                self.close(number);
            }
        }
    }

    /// Closes a connection without removing its client.
    fn close(&mut self, number: u64) -> Option<Connection> {
        let connection = self.connections.remove(&number)?;
        self.connection_slots.give_back(connection.peer.owner, connection.peer.uid);
        Some(connection)
    }

    /// Serves one request of a connection, and charges the CPU time to the connection's owner.
    fn turn(&mut self, number: u64, oom: &mut OomManager) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.muted {
            return;
        }
        let owner = connection.peer.owner;
        if !self.has_time(owner) {
            return self.mute(number);
        }
        let begun = CpuTime::now();
        self.take_request(number, oom);
        self.charge(owner, begun);
    }

    fn take_request(&mut self, number: u64, oom: &mut OomManager) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        match connection.receive() {
            Received::Request(request) => self.answer(number, request, oom),
            Received::Nothing => {}
            Received::Closed => self.disconnect(number),
            Received::Garbage => {
                connection.reply(&Reply::of(Status::BadRequest), None);
                self.disconnect(number);
            }
        }
    }

    fn has_time(&mut self, owner: Owner) -> bool {
        let now_ns = monotonic_ns();
        owner.is_root() || (self.time.is_ready(owner, now_ns) && self.time_of_all.is_ready(now_ns))
    }

    fn charge(&mut self, owner: Owner, begun: CpuTime) {
        if !owner.is_root() {
            let (now_ns, used_us) = (monotonic_ns(), begun.elapsed_us());
            self.time.charge(owner, now_ns, used_us);
            self.time_of_all.charge(now_ns, used_us);
        }
    }

    fn mute(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.muted = true;
        // Removed from the epoll set: a closed connection would stay readable and wake the loop
        // forever.
        let _ = epoll::delete(&self.epoll, &connection.socket);
    }

    fn begin_window(&mut self, now_ns: u64) {
        self.next_window_ns = now_ns + WINDOW_MS * NS_PER_MS;
        if std::mem::take(&mut self.deaf) {
            let word = epoll::EventData::new_u64(LISTENER);
            let _ = epoll::add(&self.epoll, &self.listener, word, epoll::EventFlags::IN);
        }
        for (number, connection) in &mut self.connections {
            if std::mem::take(&mut connection.muted) {
                let word = epoll::EventData::new_u64(number << KIND_BITS | CONNECTION);
                let _ = epoll::add(&self.epoll, &connection.socket, word, epoll::EventFlags::IN);
            }
        }
    }

    fn answer(&mut self, number: u64, request: Request, oom: &mut OomManager) {
        let client = self.connections.get(&number).and_then(|connection| connection.client);
        let status = match (request, client) {
            (Request::Hello { version, spent, unspent, base }, None) => {
                if version == control::lease::VERSION {
                    return self.hello(number, Remembered { spent, unspent, base }, oom);
                }
                Status::BadRequest
            }
            (Request::Grow { need, wish, wait_ms }, Some(client)) => {
                return self.grow(client, Demand { need, wish, wait_ms }, oom);
            }
            (Request::Headroom, Some(client)) => {
                let reply = self.headroom_of(client, oom);
                return self.reply(client, &reply);
            }
            (Request::GivenBack, Some(client)) => return self.given_back(client, oom),
            _ => Status::BadRequest,
        };
        match client {
            Some(client) => self.reply(client, &Reply::of(status)),
            None => {
                if let Some(connection) = self.connections.get(&number) {
                    connection.reply(&Reply::of(status), None);
                }
                self.disconnect(number);
            }
        }
    }

    /// Adds the figures of leases to a reply about limits or the daemon's status.
    pub fn complete(&mut self, reply: &mut oomd::Reply, oom: &mut OomManager) {
        if let oomd::Reply::Status(status) = reply {
            (status.leaseholders, status.refused) = (self.clients.len() as u32, self.refused);
        }
        let oomd::Reply::Limits { limits } = reply else { return };
        for limit in limits {
            let Some(account) = of_ref(limit.account) else { continue };
            self.look(account, oom);
            if let Some(book) = self.books.get(&account) {
                limit.leased_bytes = book.reserved();
                limit.leaseholders = book.len() as u32;
            }
        }
    }

    /// Sends a reply to a client. If it cannot be sent, the connection is closed.
    fn reply(&mut self, client: ClientId, reply: &Reply) {
        let Some(number) = self.clients.get(&client).and_then(|client| client.connection) else {
            return;
        };
        if !self.connections.get(&number).is_some_and(|it| it.reply(reply, None)) {
            self.disconnect(number);
        }
    }
}

/// Readable when there is something to [`dispatch`](Leases::dispatch).
impl AsFd for Leases {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// A client's connection. Never blocks.
struct Connection {
    socket: PeerSocket,
    peer: Peer,
    /// Set by the hello request.
    client: Option<ClientId>,
    /// The owner has used up its CPU time; the connection is not read until the next window.
    muted: bool,
}

/// The result of a receive.
enum Received {
    /// A request.
    Request(Request),
    /// A packet that is not a valid request.
    Garbage,
    /// No packet at present.
    Nothing,
    /// The peer has closed the connection, or has sent files.
    Closed,
}

impl Connection {
    /// Receives a packet if there is one.
    fn receive(&self) -> Received {
        // One byte more than a request, so that a longer packet is not taken for a request.
        let mut packet = [0; control::lease::REQUEST_BYTES + 1];
        match self.socket.receive(&mut packet) {
            Packet::Packet(len) => packet
                .get(..len)
                .and_then(Request::decode)
                .map_or(Received::Garbage, Received::Request),
            Packet::Nothing => Received::Nothing,
            Packet::Files | Packet::Closed => Received::Closed,
        }
    }

    /// Sends a reply, with the client's page if given. `false`: the send buffer is full or the
    /// connection is closed.
    fn reply(&self, reply: &Reply, page: Option<&OwnedFd>) -> bool {
        let packet = reply.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut files = SendAncillaryBuffer::new(&mut space);
        let page = page.map(|page| [page.as_fd()]);
        if let Some(page) = &page {
            files.push(SendAncillaryMessage::ScmRights(page));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.socket, &[IoSlice::new(&packet)], &mut files, flags).is_ok()
    }

    /// A pidfd of the process that connected: it refers to this process even if the pid is reused.
    fn pidfd(&self) -> std::io::Result<OwnedFd> {
        reader::peer_pidfd(self.socket.as_fd(), self.peer.pid.unsigned_abs())
    }
}
