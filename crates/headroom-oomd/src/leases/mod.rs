//! The coordinator of leases: promises memory to processes before they use it.
//!
//! The rules are `memory_ledger::lease`; here they meet the world:
//!
//! * [`connection`]: the socket, where the kernel says who speaks;
//! * [`page`]: the page shared with each client, from which it takes without asking;
//! * [`journal`]: what survives the daemon;
//! * [`clients`](self::clients): a client comes, comes back, goes;
//! * [`grants`](self::grants): what is granted, refused, put off, asked back.
//!
//! A lease belongs to a process, not to a connection: it ends when the process' pidfd says so.

mod clients;
pub mod connection;
mod grants;
pub mod journal;
pub mod page;

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::Context;
use control::lease::{LEASE_SOCKET_NAME, Reply, Request, Status};
use control::oomd;
use memory_ledger::{AccountId, Book, ClientId};
use rustix::event::{Timespec, epoll};

use crate::account_ref::of_ref;
use crate::clock::{NS_PER_MS, monotonic_ns};
use crate::oom::OomManager;
use clients::Client;
use connection::{Connection, Listener, Received};
use grants::Waiting;
use journal::Journal;

/// Connections of one user at a time; a process holds one.
const MAX_CONNECTIONS_OF_A_USER: usize = 512;
/// Requests that one client is served before the others have their turn.
const REQUESTS_PER_TURN: u32 = 16;
/// Requests of one connection in a window; more are not read before the next one. Ten times what a
/// program needs that asks for every page.
const REQUESTS_PER_WINDOW: u32 = 10_000;
/// The window, milliseconds.
const WINDOW_MS: u64 = 100;
/// How often those who wait are looked after: others give back without a word, milliseconds.
const WAITING_MS: u64 = 5;
/// How often the balances of idle clients are collected, milliseconds.
const COLLECT_MS: u64 = 5_000;
/// How long after its connection was closed a process is looked at: it has most likely exited, and is
/// gone by then, milliseconds.
const ORPHAN_MS: u64 = 50;

/// Name of the journal in the folder of the control socket.
const JOURNAL_NAME: &str = "leases";

/// epoll's words: the kind in the lowest bits, the number above.
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
    clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    /// Only of accounts with a limit.
    books: BTreeMap<AccountId, Book>,
    waiting: VecDeque<Waiting>,
    next_look_ns: u64,
    next_window_ns: u64,
    next_collection_ns: u64,
    /// Requests that were refused since start.
    refused: u64,
}

impl Leases {
    /// Listens beside the control socket, and takes over the leases that the last daemon has left.
    pub fn start(control_socket: &Path, oom: &mut OomManager) -> anyhow::Result<Self> {
        let folder = control_socket.parent().unwrap_or(Path::new("."));
        let (journal, records) = Journal::open(&folder.join(JOURNAL_NAME))?;
        let listener = Listener::bind(&folder.join(LEASE_SOCKET_NAME))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("cannot make epoll")?;
        let word = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener.fd, word, epoll::EventFlags::IN).context("cannot watch")?;
        let mut leases = Self {
            epoll,
            listener,
            journal,
            connections: BTreeMap::new(),
            next_connection: 1,
            clients: BTreeMap::new(),
            next_client: 1,
            books: BTreeMap::new(),
            waiting: VecDeque::new(),
            next_look_ns: 0,
            next_window_ns: 0,
            next_collection_ns: 0,
            refused: 0,
        };
        leases.take_over(records, oom);
        Ok(leases)
    }

    /// Does all that is due. To be called when the fd is readable, the deadline has passed, or limits
    /// may have changed.
    pub fn dispatch(&mut self, oom: &mut OomManager) {
        let mut events = [MaybeUninit::uninit(); 64];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let words: Vec<u64> = match epoll::wait(&self.epoll, &mut events, Some(&now)) {
            Ok((ready, _)) => ready.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        };
        self.follow_limits(oom);
        for account in oom.take_pressed() {
            self.press(account, oom);
        }
        // Who is gone makes room for who asks.
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

    /// When [`dispatch`](Leases::dispatch) is due though the fd is not readable.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let waiting = (!self.waiting.is_empty()).then_some(self.next_look_ns);
        let muted = self.connections.values().any(|c| c.muted).then_some(self.next_window_ns);
        let idle = (!self.books.is_empty()).then_some(self.next_collection_ns);
        let orphans = self.clients.values().filter_map(|client| client.orphan_since_ns);
        let orphans = orphans.min().map(|since_ns| since_ns + ORPHAN_MS * NS_PER_MS);
        [waiting, muted, idle, orphans].into_iter().flatten().min()
    }

    fn accept(&mut self) {
        while let Some(connection) = self.listener.accept() {
            let uid = connection.peer.uid;
            let same_user = self.connections.values().filter(|c| c.peer.uid == uid).count();
            if self.connections.len() >= journal::MAX_CLIENTS
                || (uid != 0 && same_user >= MAX_CONNECTIONS_OF_A_USER)
            {
                connection.reply(&Reply::of(Status::TooManyClients), None);
                continue;
            }
            let number = self.next_connection;
            self.next_connection += 1;
            let word = epoll::EventData::new_u64(number << KIND_BITS | CONNECTION);
            if epoll::add(&self.epoll, &connection.fd, word, epoll::EventFlags::IN).is_ok() {
                self.connections.insert(number, connection);
            }
        }
    }

    /// One connection's turn.
    fn turn(&mut self, number: u64, oom: &mut OomManager) {
        for _ in 0..REQUESTS_PER_TURN {
            let Some(connection) = self.connections.get_mut(&number) else { return };
            if connection.muted {
                return;
            }
            let request = match connection.receive() {
                Received::Request(request) => request,
                Received::Nothing => return,
                Received::Closed => return self.disconnect(number),
                Received::Garbage => {
                    connection.reply(&Reply::of(Status::BadRequest), None);
                    return self.disconnect(number);
                }
            };
            connection.asked += 1;
            if connection.asked > REQUESTS_PER_WINDOW {
                connection.muted = true;
                let word = epoll::EventData::new_u64(number << KIND_BITS | CONNECTION);
                let none = epoll::EventFlags::empty();
                let _ = epoll::modify(&self.epoll, &connection.fd, word, none);
            }
            self.answer(number, request, oom);
        }
    }

    fn begin_window(&mut self, now_ns: u64) {
        self.next_window_ns = now_ns + WINDOW_MS * NS_PER_MS;
        for (number, connection) in &mut self.connections {
            connection.asked = 0;
            if std::mem::take(&mut connection.muted) {
                let word = epoll::EventData::new_u64(number << KIND_BITS | CONNECTION);
                let _ = epoll::modify(&self.epoll, &connection.fd, word, epoll::EventFlags::IN);
            }
        }
    }

    fn answer(&mut self, number: u64, request: Request, oom: &mut OomManager) {
        let client = self.connections.get(&number).and_then(|connection| connection.client);
        let status = match (request, client) {
            (Request::Hello { version, spent, unspent, base }, None) => {
                if version == control::lease::VERSION {
                    return self.hello(number, spent, unspent, base, oom);
                }
                Status::BadRequest
            }
            (Request::Grow { need, wish, wait_ms }, Some(client)) => {
                return self.grow(client, need, wish, wait_ms, oom);
            }
            (Request::Claim { bytes }, Some(client)) => self.claim(client, bytes, oom),
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

    /// Adds what is leased to an answer about limits, or about the daemon.
    pub fn complete(&mut self, reply: &mut oomd::Reply, oom: &mut OomManager) {
        if let oomd::Reply::Status(status) = reply {
            (status.leaseholders, status.refused) = (self.clients.len() as u32, self.refused);
        }
        let oomd::Reply::Limits { limits } = reply else { return };
        for limit in limits {
            let Some(account) = of_ref(limit.account) else { continue };
            self.look(account, oom);
            if let Some(book) = self.books.get(&account) {
                limit.leased_bytes = book.promised();
                limit.leaseholders = book.len() as u32;
            }
        }
    }

    /// Answers a client; one that does not read its answers loses its connection.
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
