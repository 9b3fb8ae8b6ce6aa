//! Pauses the server while another program replaces this one, and continues in that program
//! (`docs/design/upgrade.md`).
//!
//! Each module saves and restores its own part of the state; [`ServerState::verify`] checks that
//! the parts agree with each other and with the driver.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use binder_driver::slab::Slab;
use binder_driver::state::{SavedDriver, StateError};
use binder_driver::{Driver, ProcessId};
use headroom_linux::descriptors::{KeptFd, check_descriptors};
use owners::Owner;
use serde::{Deserialize, Serialize};

use super::call::{Call, CallState, CallTable};
use super::{Config, OPENER, Server, THREAD};
use crate::Error;
use crate::channel::{Agreement, Channel};
use crate::files::SavedFiles;
use crate::guardian::Guardian;
use crate::host::SavedHostBudgets;
use crate::mapping::{
    Backing, MappingKind, NotifyStore, Passthrough, SavedBacking, machine_page_size,
};
use crate::maps::SavedAddressSpace;
use crate::mount::{Mount, SavedMount};
use crate::open::{CallKey, OpenKey, SavedOpen};
use crate::task_watch::SavedTask;
use crate::tree::Tree;

/// How long operations that have begun may take until the server is paused. No client is served
/// meanwhile.
const LIMIT: Duration = Duration::from_millis(500);
/// Interval of checking whether operations of other threads have ended.
const CHECK_EVERY: Duration = Duration::from_millis(1);

/// Why a server cannot be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Threads of clients are held by filters of `headroom run --fd-passing seccomp`.
    #[error(
        "clients run under seccomp filters, which another program cannot serve: end these clients, \
         and start them without --fd-passing seccomp"
    )]
    SeccompFilters,
    /// A helper process has made the mount.
    #[error("the bus was mounted for a test by an unprivileged user: start a new one")]
    HelperMount,
    /// Another program has unmounted the bus.
    #[error("the bus was unmounted: start a new daemon")]
    Unmounted,
    /// Calls have not ended in time.
    #[error("calls take too long: try again")]
    Calls,
    /// Clients do not stop to receive file descriptors.
    #[error(
        "file descriptors are being passed to a client that does not run: try again, or end it"
    )]
    FdDeliveries,
    /// Memory of a client of this owner blocks a thread.
    #[error("{0}: memory of a client does not answer: wait until it does, or end the client")]
    BlockedAccess(Owner),
    /// The flags of a descriptor of a client of this owner block a thread.
    #[error("{0}: a descriptor of a client is still being looked up: try again, or end the client")]
    Flags(Owner),
    /// The close of a file that a client of this owner has passed blocks a thread.
    #[error("{0}: a file of a client is still being closed: try again, or end the client")]
    Close(Owner),
    /// No thread can be started.
    #[error("no thread can be started: try again when fewer threads run")]
    NoThread,
}

/// A server without requests in progress and without threads that use it. Dropping it continues to
/// serve.
pub struct PausedServer<'a> {
    server: &'a mut Server,
    mount: SavedMount,
    guardian: GuardianState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuardianState {
    Unchanged,
    Ended,
}

impl PausedServer<'_> {
    /// The state to be written. Its descriptors stay open in the next program if they are
    /// [inherited](KeptFd::set_inherited).
    pub fn state(&self) -> ServerState<&Driver> {
        let server = &*self.server;
        let saved = SavedServer {
            connection: KeptFd::of(&*server.channel),
            mount: self.mount.clone(),
            agreement: server.agreement,
            connection_limits: server.connection_limits.clone(),
            tree: server.tree.clone(),
            opens: server.host.save_opens(),
            files: server.host.files.save(),
            closes: server.host.closes.clone(),
            threads: server.threads.save(),
            openers: server.openers.save(),
            texts: server.pages.save_texts(),
            next_text: server.logs.next,
            traced: server.traced,
            pages_to_reclaim: server.pages_to_reclaim,
        };
        let budgets = SavedBudgets {
            host: server.host.save_budgets(),
            nonblock: server.nonblock.balances(),
            slices: server.delayed.budgets.balances(),
        };
        let (driver, calls) = (SavedDriver::new(&server.driver), server.calls.records().clone());
        ServerState { driver, server: saved, budgets, calls }
    }

    /// Ends the guardian before `execve(2)` ends the thread that it watches.
    pub fn end_guardian(&mut self) {
        if self.server.guardian.take().is_some() {
            self.guardian = GuardianState::Ended;
        }
    }
}

impl Drop for PausedServer<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.server.pages.start_helper() {
            tracing::error!("cannot start the page server ({error}): a client can block the bus");
        }
        if self.guardian == GuardianState::Ended {
            match Guardian::start(&self.server.mount) {
                Ok(guardian) => self.server.guardian = Some(guardian),
                Err(error) => tracing::error!("cannot start the guardian again: {error}"),
            }
        }
    }
}

impl Server {
    /// Completes the requests that were read, and ends the threads that read or write others. It
    /// must not be called while an event is being served.
    pub fn pause(&mut self) -> Result<PausedServer<'_>, Obstacle> {
        if self.closed {
            return Err(Obstacle::Unmounted);
        }
        if self.fd_deliveries.has_filters() {
            return Err(Obstacle::SeccompFilters);
        }
        let mount = self.mount.save().ok_or(Obstacle::HelperMount)?;
        self.end_direct_reads();
        self.end_rings();
        let deadline = Instant::now() + LIMIT;
        while let Some(obstacle) = self.complete_requests() {
            if Instant::now() > deadline {
                return Err(obstacle);
            }
            if obstacle != Obstacle::Calls {
                std::thread::sleep(CHECK_EVERY);
            }
        }
        self.fd_deliveries.stop_workers();
        Ok(PausedServer { server: self, mount, guardian: GuardianState::Unchanged })
    }

    /// Continues to complete requests. `None`: there are none left, and the page server's helper
    /// has ended.
    fn complete_requests(&mut self) -> Option<Obstacle> {
        self.serve_backlog();
        self.serve_queue();
        self.serve_fd_deliveries();
        self.end_nonblocking_reads();
        self.serve_returned_accesses();
        let obstacle = self.obstacle();
        if obstacle.is_some() {
            return obstacle;
        }
        // It may read a request until it has ended, but only during a call of this thread.
        self.pages.stop_helper();
        if self.pages.is_empty() {
            return None;
        }
        Some(self.pages.start_helper().map_or(Obstacle::NoThread, |()| Obstacle::Calls))
    }

    fn obstacle(&mut self) -> Option<Obstacle> {
        if self.queue.has_requests() || !self.pages.is_empty() {
            Some(Obstacle::Calls)
        } else if !self.fd_deliveries.is_idle() {
            Some(Obstacle::FdDeliveries)
        } else if let Some(owner) = self.host.owner_of_blocked_access() {
            Some(Obstacle::BlockedAccess(owner))
        } else if let Some(owner) = self.nonblock.owner_of_lookup() {
            Some(Obstacle::Flags(owner))
        } else if self.calls.are_returning() {
            Some(Obstacle::Calls)
        } else {
            self.host.closers.owner_of_closes().map(Obstacle::Close)
        }
    }

    /// Continues with the calls of another server.
    fn continue_calls(&mut self, calls: Slab<CallKey, Call>) {
        let requests: Vec<_> = calls.iter().map(|(key, call)| (key, call.request)).collect();
        self.calls = CallTable::restore(calls);
        for (key, request) in requests {
            let requester = self.requester_of(&request);
            match self.calls.get(key).map(|call| &call.state) {
                Some(CallState::Parked) => self.look_up_nonblock(key, &request),
                Some(CallState::Queued(_)) => self.queue.push_call(requester, key),
                Some(CallState::Delayed(_)) => self.delayed.push(requester, key),
                _ => {}
            }
        }
        self.arm_freeze_timer();
    }

    /// Continues to serve in place of the program that has written this state.
    ///
    /// # Safety
    ///
    /// That program has executed this one, with the descriptors of the state inherited, and no
    /// other value uses them.
    pub unsafe fn continue_from(config: &Config, state: VerifiedState) -> Result<Self, Error> {
        let VerifiedState { driver, server: saved, budgets, calls } = state;
        let lost = || Error::io("cannot take over a descriptor");
        // SAFETY: the state was verified, so each descriptor occurs once, and it is used once.
        let connection = unsafe { saved.connection.take() }.map_err(lost())?;
        let channel = Arc::new(Channel::from_device(connection));
        let mount = Mount::restore(saved.mount);
        let (agreement, limits) = (saved.agreement, saved.connection_limits);
        let mut server = Self::assemble(config, channel, mount, agreement, limits)?;
        server.driver = driver;
        server.driver.set_memory_quota(server.owner_quota_bytes);
        server.tree = saved.tree;
        let (channel, pages) = (Arc::clone(&server.channel), Arc::clone(&server.pages));
        let restore_backing = |node, backing| match backing {
            SavedBacking::Passthrough { memfd, backing_id } => {
                // SAFETY: as for the connection.
                let memfd = unsafe { memfd.take() }?;
                Ok(Box::new(Passthrough::restore(&channel, memfd, backing_id)) as Box<dyn Backing>)
            }
            SavedBacking::NotifyStore(truth) => {
                let bypass = agreement.cache_bypass;
                Ok(Box::new(NotifyStore::restore(&channel, &pages, node, bypass, truth)) as _)
            }
        };
        // SAFETY: as for the connection.
        unsafe {
            server.host.restore_opens(saved.opens, restore_backing).map_err(lost())?;
            server.host.files.restore(saved.files).map_err(lost())?;
            for task in saved.threads {
                let token = THREAD | u64::from(task.id);
                server.threads.restore(task, server.epoll.as_fd(), token).map_err(lost())?;
            }
            for task in saved.openers {
                let token = OPENER | u64::from(task.id);
                server.openers.restore(task, server.epoll.as_fd(), token).map_err(lost())?;
            }
        }
        server.host.restore_budgets(budgets.host);
        server.nonblock.restore(budgets.nonblock);
        server.delayed.budgets.restore(budgets.slices);
        server.host.closes = saved.closes;
        server.continue_calls(calls);
        for (fh, text) in saved.texts {
            // Not refused: they were within the limits of the previous program.
            server.restore_log(fh, text);
        }
        server.logs.next = saved.next_text;
        server.traced = saved.traced;
        server.pages_to_reclaim = saved.pages_to_reclaim;
        Ok(server)
    }
}

/// All state of a server but its driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedServer {
    /// `/dev/fuse`.
    connection: KeptFd,
    mount: SavedMount,
    agreement: Agreement,
    /// Sentences of [`Server::degraded`] about the connection.
    connection_limits: Vec<String>,
    tree: Tree,
    opens: Slab<OpenKey, SavedOpen>,
    files: SavedFiles,
    /// Descriptors that threads have to close at the return from their ioctls, by tid.
    closes: HashMap<u32, Vec<u32>>,
    threads: Vec<SavedTask>,
    openers: Vec<SavedTask>,
    /// Texts of opens of `binder_logs`, by their file handles.
    texts: Vec<(u64, String)>,
    next_text: u64,
    /// Number of records of all traces so far.
    traced: u64,
    /// Idle pages that remain to be reclaimed.
    pages_to_reclaim: u64,
}

/// What owners have used of their budgets. The pause of an upgrade adds none.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedBudgets {
    host: SavedHostBudgets,
    /// Nanoseconds of lookups of `O_NONBLOCK`.
    nonblock: BTreeMap<Owner, i64>,
    /// Further slices of ioctls.
    slices: BTreeMap<Owner, i64>,
}

/// A server that is written (`D` is `&Driver`), or was read and is not verified yet (`Driver`).
#[derive(Serialize, Deserialize)]
#[serde(bound(
    serialize = "SavedDriver<D>: Serialize",
    deserialize = "SavedDriver<D>: Deserialize<'de>"
))]
pub struct ServerState<D> {
    driver: SavedDriver<D>,
    server: SavedServer,
    budgets: SavedBudgets,
    calls: Slab<CallKey, Call>,
}

/// A server that was read and verified.
pub struct VerifiedState {
    driver: Driver,
    server: SavedServer,
    budgets: SavedBudgets,
    calls: Slab<CallKey, Call>,
}

impl<D> ServerState<D> {
    /// All descriptors that the state refers to.
    pub fn descriptors(&self) -> Vec<KeptFd> {
        self.server.descriptors()
    }
}

impl ServerState<Driver> {
    /// Verifies every invariant. The server then continues as the one that was written.
    pub fn verify(self) -> Result<VerifiedState, StateError> {
        let Self { driver, server, budgets, calls } = self;
        let driver = driver.verify(machine_page_size())?;
        server.verify(&driver, &calls).map_err(StateError::Inconsistent)?;
        Ok(VerifiedState { driver, server, budgets, calls })
    }
}

impl SavedServer {
    fn descriptors(&self) -> Vec<KeptFd> {
        let address_space =
            |open: &SavedOpen| open.address_space.as_ref().and_then(SavedAddressSpace::descriptor);
        let of_opens = self.opens.values();
        let of_opens = of_opens.flat_map(|open| [open.backing.descriptor(), address_space(open)]);
        let pidfds = self.threads.iter().chain(&self.openers).map(|task| task.pidfd);
        let files = self.files.descriptors().map(Some);
        let all = of_opens.chain(pidfds).chain(files).chain([Some(self.connection)]);
        all.flatten().collect()
    }

    fn verify(&self, driver: &Driver, calls: &Slab<CallKey, Call>) -> Result<(), String> {
        check_descriptors(self.descriptors())?;
        self.tree.check(driver)?;
        self.check_opens(driver)?;
        self.check_calls(driver, calls)?;
        self.check_tasks()?;
        match driver.files_in_transit().find(|&token| !self.files.contains(token)) {
            Some(token) => Err(format!("{token:?} is no file")),
            None => Ok(()),
        }
    }

    /// Each open of the driver is one of the server, and its node is that of one open.
    fn check_opens(&self, driver: &Driver) -> Result<(), String> {
        let opens: HashSet<ProcessId> = self.opens.values().map(|open| open.info.process).collect();
        if opens.len() != self.opens.len() || opens != driver.opens().collect() {
            return Err("the opens of the server are not those of the driver".into());
        }
        let nodes: HashSet<u64> = self.opens.values().map(|open| open.info.node).collect();
        if nodes.len() != self.opens.len() || nodes != self.tree.open_nodes().collect() {
            return Err("the open nodes are not those of the opens".into());
        }
        for open in self.opens.values() {
            let kind = match &open.backing {
                SavedBacking::Passthrough { .. } => MappingKind::Passthrough,
                SavedBacking::NotifyStore(truth) => {
                    truth.check()?;
                    MappingKind::NotifyStore
                }
            };
            if kind != self.agreement.mapping {
                return Err(format!("node {} has the other kind of mapping", open.info.node));
            }
        }
        Ok(())
    }

    /// Each parked read and each freeze of the driver is one call, and each thread that waits waits
    /// in one.
    fn check_calls(&self, driver: &Driver, calls: &Slab<CallKey, Call>) -> Result<(), String> {
        let (mut parked, mut freezes, mut requests) =
            (HashSet::new(), HashSet::new(), HashSet::new());
        for (key, Call { request, state }) in calls.iter() {
            let (from, caller) = (request.from, request.caller);
            let open =
                self.opens.get(request.key).filter(|open| open.info.process == caller.process);
            let open = open.ok_or_else(|| format!("{from} has no open"))?;
            if open.info.calls.request(caller.tid) != Some(key) {
                return Err(format!("{from} is that of no thread"));
            }
            if request.ring().is_some() || !requests.insert(request.unique()) {
                return Err(format!("{from} is no request of its own"));
            }
            match state {
                CallState::Parked => drop(parked.insert((caller.process, caller.tid))),
                CallState::Freezing(freeze) => drop(freezes.insert(freeze.id)),
                _ => {}
            }
        }
        let waiting = self.opens.values().flat_map(|open| open.info.calls.iter());
        if waiting.filter(|(_, call)| call.is_some()).count() != calls.len() {
            return Err("a thread waits in no call".into());
        }
        if parked != driver.parked_reads().collect() {
            return Err("the parked calls are not the reads of the driver".into());
        }
        if freezes != driver.pending_freezes().collect() {
            return Err("the freezes are not those of the driver".into());
        }
        Ok(())
    }

    fn check_tasks(&self) -> Result<(), String> {
        let opens: HashSet<ProcessId> = self.opens.values().map(|open| open.info.process).collect();
        for tasks in [&self.threads, &self.openers] {
            let ids: HashSet<u32> = tasks.iter().map(|task| task.id).collect();
            if ids.len() != tasks.len() {
                return Err("a task is watched twice".into());
            }
            if let Some(task) = tasks.iter().find(|task| !task.is_for(&opens)) {
                return Err(format!("task {} is watched for no open", task.id));
            }
        }
        match self.openers.iter().find(|task| task.pidfd.is_none()) {
            Some(task) => Err(format!("process {} has no pidfd", task.id)),
            None => Ok(()),
        }
    }
}
