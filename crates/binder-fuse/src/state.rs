//! The server's state: what a program needs that replaces the one that serves
//! (`docs/design/upgrade.md`).
//!
//! Each module saves and restores its own part; this one verifies that the parts agree with each
//! other and with the driver.

use std::collections::{BTreeMap, HashMap, HashSet};

use binder_driver::state::{SavedDriver, SavedState, StateError};
use binder_driver::{Driver, ProcessId};
use headroom_linux::kept_fd::{KeptFd, check_descriptors};
use keyed_slab::Slab;
use owners::Owner;
use serde::{Deserialize, Serialize};

use crate::address_space::SavedAddressSpace;
use crate::files::SavedFiles;
use crate::host::{OpenKey, SavedHostBudgets, SavedOpen};
use crate::mapping::{MappingKind, SavedBacking, machine_page_size};
use crate::mount::SavedMount;
use crate::server::{Agreement, PendingIoctl, SavedFreeze, Slice};
use crate::task_watch::SavedTask;
use crate::tree::Tree;

/// All state of a server but its driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedServer {
    /// `/dev/fuse`.
    pub(crate) connection: KeptFd,
    pub(crate) mount: SavedMount,
    pub(crate) agreement: Agreement,
    /// Sentences of [`Server::degraded`](crate::Server::degraded) about the connection.
    pub(crate) connection_limits: Vec<String>,
    pub(crate) tree: Tree,
    pub(crate) opens: Slab<OpenKey, SavedOpen>,
    pub(crate) files: SavedFiles,
    /// Descriptors that threads have to close at the return from their ioctls, by tid.
    pub(crate) closes: HashMap<u32, Vec<u32>>,
    pub(crate) threads: Vec<SavedTask>,
    pub(crate) openers: Vec<SavedTask>,
    pub(crate) parked: Vec<PendingIoctl>,
    pub(crate) freezes: Vec<SavedFreeze>,
    /// Texts of opens of `binder_logs`, by their file handles.
    pub(crate) texts: Vec<(u64, String)>,
    pub(crate) next_text: u64,
    /// Number of records of all traces so far.
    pub(crate) traced: u64,
    /// Idle pages that remain to be reclaimed.
    pub(crate) pages_to_reclaim: u64,
}

/// What owners have used of their budgets. The pause of an upgrade adds none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SavedBudgets {
    pub(crate) host: SavedHostBudgets,
    /// Nanoseconds of lookups of `O_NONBLOCK`.
    pub(crate) nonblock: BTreeMap<Owner, i64>,
    /// Further slices of ioctls.
    pub(crate) slices: BTreeMap<Owner, i64>,
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
    /// Calls that were not started, or not completed.
    calls: Vec<Slice>,
}

/// A server in format 1: without budgets, which start full, and without incomplete calls.
#[derive(Deserialize)]
pub struct ServerStateFormat1 {
    driver: SavedDriver<Driver>,
    server: SavedServer,
}

impl SavedState for ServerState<Driver> {
    type Format1 = ServerStateFormat1;
}

impl From<ServerStateFormat1> for ServerState<Driver> {
    fn from(ServerStateFormat1 { driver, server }: ServerStateFormat1) -> Self {
        Self { driver, server, budgets: SavedBudgets::default(), calls: Vec::new() }
    }
}

/// A server that was read and verified.
pub struct VerifiedState {
    pub(crate) driver: Driver,
    pub(crate) server: SavedServer,
    pub(crate) budgets: SavedBudgets,
    pub(crate) calls: Vec<Slice>,
}

impl<'a> ServerState<&'a Driver> {
    pub(crate) fn new(
        driver: &'a Driver,
        server: SavedServer,
        budgets: SavedBudgets,
        calls: Vec<Slice>,
    ) -> Self {
        Self { driver: SavedDriver::new(driver), server, budgets, calls }
    }
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

    fn verify(&self, driver: &Driver, calls: &[Slice]) -> Result<(), String> {
        check_descriptors(self.descriptors())?;
        self.tree.check(driver)?;
        self.check_opens(driver)?;
        self.check_calls(driver, calls)?;
        self.check_tasks()?;
        self.check_freezes(driver)?;
        match driver.files_in_transit().find(|&token| !self.files.contains(token)) {
            Some(token) => Err(format!("{token:?} is no file")),
            None => Ok(()),
        }
    }

    /// Each open of the driver is one of the server, and its node is that of one open.
    fn check_opens(&self, driver: &Driver) -> Result<(), String> {
        let opens: HashSet<ProcessId> = self.opens.values().map(|open| open.process).collect();
        if opens.len() != self.opens.len() || opens != driver.opens().collect() {
            return Err("the opens of the server are not those of the driver".into());
        }
        let nodes: HashSet<u64> = self.opens.values().map(|open| open.node).collect();
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
                return Err(format!("node {} has the other kind of mapping", open.node));
            }
        }
        Ok(())
    }

    /// Each parked read of the driver is one request, and each thread that waits waits in one, or
    /// in a call.
    fn check_calls(&self, driver: &Driver, calls: &[Slice]) -> Result<(), String> {
        let parked = self.threads_of(&self.parked)?;
        let calls: Vec<_> = calls.iter().map(|call| call.request).collect();
        let calls = self.threads_of(&calls)?;
        let waiting = self.opens.values().flat_map(|open| open.calls.iter());
        let waiting = waiting.filter(|(_, request)| request.is_some()).count();
        let reads: HashSet<_> = driver.parked_reads().collect();
        if parked == reads && parked.is_disjoint(&calls) && parked.len() + calls.len() == waiting {
            Ok(())
        } else {
            Err("the parked requests are not the reads".into())
        }
    }

    /// The threads that wait in these requests, each in one.
    fn threads_of(&self, requests: &[PendingIoctl]) -> Result<HashSet<(ProcessId, u32)>, String> {
        let mut threads = HashSet::new();
        for PendingIoctl { key, caller, unique, .. } in requests {
            let open = self.opens.get(*key).filter(|open| open.process == caller.process);
            let open = open.ok_or_else(|| format!("request {unique} has no open"))?;
            let is_waited_for = open.calls.request(caller.tid) == Some(*unique);
            if !is_waited_for || !threads.insert((caller.process, caller.tid)) {
                return Err(format!("request {unique} is that of no thread"));
            }
        }
        Ok(threads)
    }

    fn check_tasks(&self) -> Result<(), String> {
        let opens: HashSet<ProcessId> = self.opens.values().map(|open| open.process).collect();
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

    fn check_freezes(&self, driver: &Driver) -> Result<(), String> {
        let ids: HashSet<_> = self.freezes.iter().map(|freeze| freeze.id).collect();
        let requests: HashSet<u64> = self.freezes.iter().map(|freeze| freeze.unique).collect();
        let is_each_pending = ids.len() == self.freezes.len()
            && requests.len() == self.freezes.len()
            && self.freezes.iter().all(SavedFreeze::is_possible)
            && ids == driver.pending_freezes().collect();
        if is_each_pending { Ok(()) } else { Err("the freezes are not those of the driver".into()) }
    }
}
