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
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::Context;
use control::lease::{LEASE_SOCKET_NAME, Reply, Request, Status};
use control::listener::Listener;
use control::peer_socket::Received;
use control::server::{CpuTime, Protocol, Turn};
use control::{Listeners, RequestId, Server, oomd};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{AccountId, Book, ClientId, NS_PER_MS};
use owners::Quota;
use owners::bounds::{LEASE_ACCEPTS, LEASE_CLIENTS, LEASE_TIME};
use owners::client_files::Closers;
use rustix::event::{Timespec, epoll};

use crate::oom::OomManager;
use crate::oom::control::of_ref;
use clients::{Client, Remembered};
use grants::{Demand, Waiting};
use journal::Journal;

const PROTOCOL: Protocol = Protocol {
    connections: &LEASE_CLIENTS,
    time: &LEASE_TIME,
    accepts: &LEASE_ACCEPTS,
    refusal: |_| vec![Reply::of(Status::TooManyClients).encode().to_vec()],
};
/// Every user may connect.
const SOCKET_MODE: u32 = 0o666;
/// Maximum of connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Exited clients that are removed per iteration of the event loop.
const EXITS_PER_TURN: usize = 64;
/// Requests per iteration of the event loop.
const REQUESTS_PER_TURN: [(Turn, usize); 2] = [(Turn::Root, 32), (Turn::Others, 32)];
/// How often deferred requests are retried, milliseconds: memory can be returned without a request.
const WAITING_MS: u64 = 5;
/// How often the balances of idle clients are collected, milliseconds.
const COLLECT_MS: u64 = 5_000;
/// How long after a closed connection its process is checked, milliseconds: most such processes are
/// exiting, and are gone by then.
const ORPHAN_MS: u64 = 50;

/// File name of the journal in the directory of the control socket.
const JOURNAL_NAME: &str = "leases";

/// Event data of epoll for the connections; clients have higher numbers.
const CONNECTIONS: u64 = 0;

/// All clients and their leases.
pub struct Leases {
    epoll: OwnedFd,
    server: Server,
    /// Clients by connection, from the first request on.
    connected: BTreeMap<RequestId, ClientId>,
    journal: Journal,
    client_slots: Quota,
    clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    /// Accounts with a limit only.
    books: BTreeMap<AccountId, Book>,
    /// Version of the ledger for which the clients' accounts and leases are current.
    ledger_version: Option<u64>,
    waiting: VecDeque<Waiting>,
    next_look_ns: u64,
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
        let listener = Listener::bind(&path, SOCKET_MODE, BACKLOG, closers.clone())?;
        let listeners = Listeners { all: listener, root: None };
        let server = Server::new(listeners, closers, PROTOCOL)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot make epoll")?;
        let word = epoll::EventData::new_u64(CONNECTIONS);
        epoll::add(&epoll, &server, word, epoll::EventFlags::IN).context("cannot watch")?;
        let mut leases = Self {
            epoll,
            server,
            connected: BTreeMap::new(),
            journal,
            client_slots: Quota::new(LEASE_CLIENTS.slots()),
            clients: BTreeMap::new(),
            next_client: 1,
            books: BTreeMap::new(),
            ledger_version: None,
            waiting: VecDeque::new(),
            next_look_ns: 0,
            next_collection_ns: 0,
            refused: 0,
        };
        leases.take_over(records, oom);
        Ok(leases)
    }

    /// Handles everything that is due. Must be called when the fd is readable, when the deadline
    /// has passed, and when limits may have changed.
    pub fn dispatch(&mut self, oom: &mut OomManager) {
        let mut events = [MaybeUninit::uninit(); EXITS_PER_TURN];
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
        for client in words.into_iter().filter(|word| *word != CONNECTIONS) {
            self.remove_client(client, oom);
        }
        self.serve_connections(oom);
        self.look_after_time(oom);
    }

    /// Serves requests, and charges the CPU time to the connections' owners.
    fn serve_connections(&mut self, oom: &mut OomManager) {
        self.server.poll();
        for (turn, requests) in REQUESTS_PER_TURN {
            for _ in 0..requests {
                let Some((connection, peer)) = self.server.next(turn) else { break };
                let begun = CpuTime::now();
                self.take_request(connection, oom);
                self.server.charge(peer.owner, begun);
            }
        }
        self.server.end_turn();
    }

    fn look_after_time(&mut self, oom: &mut OomManager) {
        let now_ns = monotonic_ns();
        self.look_after_orphans(now_ns, oom);
        if !self.waiting.is_empty() && now_ns >= self.next_look_ns {
            self.serve_waiting(oom);
            self.next_look_ns = now_ns + WAITING_MS * NS_PER_MS;
        }
        if !self.books.is_empty() && now_ns >= self.next_collection_ns {
            self.collect_from_the_idle(oom);
            self.next_collection_ns = now_ns + COLLECT_MS * NS_PER_MS;
        }
    }

    /// When [`dispatch`](Leases::dispatch) is due even if the fd is not readable.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let waiting = (!self.waiting.is_empty()).then_some(self.next_look_ns);
        let idle = (!self.books.is_empty()).then_some(self.next_collection_ns);
        let orphans = self.clients.values().filter_map(|client| client.orphan_since_ns);
        let orphans = orphans.min().map(|since_ns| since_ns + ORPHAN_MS * NS_PER_MS);
        [waiting, idle, orphans].into_iter().flatten().min()
    }

    fn take_request(&mut self, connection: RequestId, oom: &mut OomManager) {
        let Some((socket, _)) = self.server.connection(connection) else { return };
        // One byte more than a request, so that a longer packet is not taken for a request.
        let mut packet = [0; control::lease::REQUEST_BYTES + 1];
        match socket.receive(&mut packet) {
            Received::Packet(len) => match packet.get(..len).and_then(Request::decode) {
                Some(request) => self.answer(connection, request, oom),
                None => self.refuse(connection, Status::BadRequest),
            },
            Received::Nothing => {}
            Received::Files | Received::Closed => self.disconnect(connection),
        }
        self.server.await_packet(connection);
    }

    /// Replies this and closes the connection.
    fn refuse(&mut self, connection: RequestId, status: Status) {
        self.send(connection, &Reply::of(status), None);
        self.disconnect(connection);
    }

    fn answer(&mut self, connection: RequestId, request: Request, oom: &mut OomManager) {
        let client = self.connected.get(&connection).copied();
        let status = match (request, client) {
            (Request::Hello { version, spent, unspent, base }, None) => {
                if version == control::lease::VERSION {
                    return self.hello(connection, Remembered { spent, unspent, base }, oom);
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
            None => self.refuse(connection, status),
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
        let connection = self.clients.get(&client).and_then(|client| client.connection);
        if let Some(connection) = connection
            && !self.send(connection, reply, None)
        {
            self.disconnect(connection);
        }
    }

    /// Sends a reply, with the client's page if given. `false`: the send buffer is full or the
    /// connection is closed.
    fn send(&self, to: RequestId, reply: &Reply, page: Option<BorrowedFd<'_>>) -> bool {
        let connection = self.server.connection(to);
        connection.is_some_and(|(socket, _)| socket.send(&reply.encode(), page).is_ok())
    }
}

/// Readable when there is something to [`dispatch`](Leases::dispatch).
impl AsFd for Leases {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
