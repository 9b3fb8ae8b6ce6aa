//! State that the detectors read and the executor changes, with a snapshot of all processes that
//! has everything that the choice of a victim depends on.

use std::collections::{BTreeMap, BTreeSet};

use headroom_linux::clock::monotonic_ns;
use memory_ledger::{
    AccountId, AddressSpaceId, ChargedAccount, Choice, Comm, Count, Groups, Growth, KillsInFlight,
    NoVictim, Process, ProcessId, Rules, Scope, choose,
};
use memory_watch::{NotifierError, ProcessSample, Watch};

use super::accounts::{Accounts, Size, account_of};
use super::cgroup_limits::CgroupTree;
use super::held_memory::HeldMemoryReports;
use super::preferences::{RulePreferences, Sharing, UserPreferences};
use super::usage_monitor::UsageMonitor;
use crate::usage::machine_shmem_bytes;
use crate::victim_details::VictimDetails;

/// Preallocated capacity, processes: a scan should not have to allocate when memory is short.
const PROCESSES: usize = 8192;

/// Accounts, their actual usage, processes and kills in flight.
pub(super) struct SharedState {
    pub(super) accounts: Accounts,
    pub(super) usage: UsageMonitor,
    pub(super) snapshot: ProcessSnapshot,
    pub(super) kills: KillsInFlight,
    pub(super) details: VictimDetails,
}

impl SharedState {
    /// Scans all processes.
    pub(super) fn refresh_processes(&mut self) {
        self.snapshot.refresh(&self.accounts, &self.kills);
    }

    /// Sets the sizes of processes to what this counts, regardless of their accounts.
    pub(super) fn size_by(&mut self, count: Count) {
        self.snapshot.size_by(count, self.accounts.page_bytes());
    }

    /// A fresh reading of the account that a victim is charged to.
    pub(super) fn charged(&mut self, account: AccountId) -> ChargedAccount {
        self.accounts.read(account);
        let limited = self.accounts.ledger().account(account);
        let used_bytes = limited.map(|account| account.reading().used_bytes);
        ChargedAccount { account, used_bytes }
    }
}

/// The latest scan of all processes, and the state kept between scans.
pub(super) struct ProcessSnapshot {
    samples: Vec<ProcessSample>,
    processes: Vec<Process>,
    growth: Growth,
    rules: RulePreferences,
    pub(super) user_preferences: UserPreferences,
    pub(super) cgroups: CgroupTree,
    pub(super) held_memory: HeldMemoryReports,
    /// The memory of files that each process holds open, bytes, as of the last search.
    open_files: BTreeMap<ProcessId, u64>,
    /// Lazily freed memory of the processes of each measured account, bytes.
    lazily_freed: BTreeMap<AccountId, BTreeMap<ProcessId, u64>>,
    protected: Vec<u32>,
    /// Memory leased to each process, bytes.
    leased: BTreeMap<ProcessId, u64>,
}

impl ProcessSnapshot {
    pub(super) fn new() -> Self {
        Self {
            samples: Vec::with_capacity(PROCESSES),
            processes: Vec::with_capacity(PROCESSES),
            growth: Growth::with_room(PROCESSES),
            rules: RulePreferences::new(Rules::default()),
            user_preferences: UserPreferences::default(),
            cgroups: CgroupTree::default(),
            held_memory: HeldMemoryReports::default(),
            open_files: BTreeMap::new(),
            lazily_freed: BTreeMap::new(),
            protected: vec![std::process::id()],
            leased: BTreeMap::new(),
        }
    }

    pub(super) fn rules(&self) -> &RulePreferences {
        &self.rules
    }

    pub(super) fn set_rules(&mut self, rules: Rules) {
        self.rules = RulePreferences::new(rules);
    }

    /// The processes as of the last [`refresh`](Self::refresh); empty if that failed.
    pub(super) fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// The samples as of the last [`list`](Self::list) or [`refresh`](Self::refresh).
    pub(super) fn samples(&self) -> &[ProcessSample] {
        &self.samples
    }

    /// Lists all processes, with the data of the watch only.
    pub(super) fn list(&mut self, watch: &dyn Watch) -> Result<&[ProcessSample], NotifierError> {
        let listed = watch.processes(&mut self.samples);
        if listed.is_err() {
            self.samples.clear();
        }
        listed.map(|()| &self.samples[..])
    }

    /// Scans all processes. The size of each is what its account counts.
    fn refresh(&mut self, accounts: &Accounts, kills: &KillsInFlight) {
        self.processes.clear();
        if let Err(error) = self.list(accounts.watch()) {
            tracing::warn!(
                "cannot list processes: {error}; no victim can be chosen until it works again"
            );
            return;
        }
        let victims = kills.victims();
        let convert =
            |sample: &ProcessSample| convert(accounts, &victims, &self.held_memory, sample);
        self.processes.extend(self.samples.iter().map(convert));
        self.count_unmapped(accounts.page_bytes());
        self.discount_shared(accounts);
        self.discount_lazily_freed();
        let now_ns = monotonic_ns();
        self.rules.apply(&mut self.processes, now_ns);
        self.growth.look(&mut self.processes, now_ns);
        self.mark_leaseholders();
    }

    /// Counts page tables, and files that a process holds open less what it may have mapped.
    fn count_unmapped(&mut self, page_bytes: u64) {
        for (process, sample) in self.processes.iter_mut().zip(&self.samples) {
            let open_bytes = self.open_files.get(&process.id).copied().unwrap_or(0);
            let files_bytes = open_bytes.saturating_sub(sample.shmem_pages * page_bytes);
            process.unmapped_bytes = sample.page_table_bytes + files_bytes;
        }
    }

    /// Counts shared memory once, divided among the processes of an account, if it alone exceeds
    /// the limit when each process counts: the end of one session of a database frees nothing of
    /// what all sessions share.
    fn discount_shared(&mut self, accounts: &Accounts) {
        let page_bytes = accounts.page_bytes();
        let shmem_bytes = |sample: &ProcessSample| sample.shmem_pages * page_bytes;
        let mut sums: BTreeMap<AccountId, u64> = BTreeMap::new();
        for (process, sample) in self.processes.iter().zip(&self.samples) {
            if sample.shmem_pages > 0 {
                *sums.entry(process.account).or_default() += shmem_bytes(sample);
            }
        }
        let is_exceeded = |account: &AccountId, bytes: u64| {
            let limit = accounts.ledger().account(*account).map(|account| account.limit());
            limit.is_some_and(|limit| limit.count().shmem && bytes > limit.hard_bytes())
        };
        sums.retain(|account, bytes| is_exceeded(account, *bytes));
        if sums.is_empty() {
            return;
        }
        let machine_bytes = machine_shmem_bytes();
        for (process, sample) in self.processes.iter_mut().zip(&self.samples) {
            if let Some(sum_bytes) = sums.get(&process.account) {
                let others_bytes = sum_bytes.saturating_sub(machine_bytes);
                let shared = u128::from(shmem_bytes(sample)) * u128::from(others_bytes);
                process.shared_bytes = (shared / u128::from(*sum_bytes)) as u64;
            }
        }
    }

    /// Lazily freed memory is no reason to end a process: the kernel can take it at any time.
    fn discount_lazily_freed(&mut self) {
        if self.lazily_freed.is_empty() {
            return;
        }
        for process in &mut self.processes {
            let of_account = self.lazily_freed.get(&process.account);
            let bytes = of_account.and_then(|bytes| bytes.get(&process.id));
            process.shared_bytes += bytes.copied().unwrap_or(0);
        }
    }

    /// Replaces the lazily freed memory of an account's processes, bytes, by a measurement.
    pub(super) fn set_lazily_freed(
        &mut self,
        account: AccountId,
        lazily_freed: BTreeMap<ProcessId, u64>,
    ) {
        self.lazily_freed.insert(account, lazily_freed);
        self.lazily_freed.retain(|_, processes| !processes.is_empty());
    }

    /// Replaces the result of a search for files that processes hold open, bytes by process.
    pub(super) fn set_open_files(&mut self, open_files: BTreeMap<ProcessId, u64>) {
        self.open_files = open_files;
    }

    fn mark_leaseholders(&mut self) {
        if self.leased.is_empty() {
            return;
        }
        for process in &mut self.processes {
            let leased = self.leased.get(&process.id);
            process.within_lease = leased.is_some_and(|bytes| process.charged_bytes() <= *bytes);
        }
    }

    /// Sets the total memory leased to a process, bytes; `None`: it has no lease.
    pub(super) fn set_leased(&mut self, id: ProcessId, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => drop(self.leased.insert(id, bytes)),
            None => drop(self.leased.remove(&id)),
        }
    }

    /// Applies users' preferences for their own processes to a kill for their account. A user of a
    /// shared account can offer its own processes, but cannot have other users' killed instead.
    pub(super) fn apply_user_preferences(&mut self, account: AccountId, groups: &Groups) {
        let processes = &mut self.processes;
        if let Some(uid) = account.user() {
            self.user_preferences.apply(uid, processes, Sharing::Alone);
        }
        if let Some(group) = groups.get(account) {
            for uid in &group.uids {
                self.user_preferences.apply(*uid, processes, Sharing::Shared);
            }
        }
    }

    /// Sets the sizes to what this counts, regardless of the accounts: for the system, or for a
    /// cgroup. Must be called after a [`refresh`](Self::refresh).
    fn size_by(&mut self, count: Count, page_bytes: u64) {
        // Both lists have one entry per process, in the same order.
        for (process, sample) in self.processes.iter_mut().zip(&self.samples) {
            let Size { rss_bytes, swap_bytes } = self.held_memory.size(count, sample, page_bytes);
            (process.rss_bytes, process.swap_bytes) = (rss_bytes, swap_bytes);
            process.shared_bytes = 0;
            process.grown_bytes = process.grown_bytes.min(process.charged_bytes());
        }
    }

    /// Keeps only the processes that match.
    pub(super) fn retain(&mut self, keep: impl FnMut(&Process) -> bool) {
        self.processes.retain(keep);
    }

    /// Chooses a victim in the scope.
    pub(super) fn choose(&self, scope: &Scope) -> Result<Choice, NoVictim> {
        choose(scope, &self.processes, &self.protected)
    }

    /// Whether the process must not be killed, as it is one of the daemon's own.
    pub(super) fn is_protected(&self, process: &Process) -> bool {
        self.protected.contains(&process.id.pid)
    }

    /// The pids of a cgroup and all its descendants, ascending. `None`: the cgroup is gone.
    pub(super) fn members(&mut self, cgroup: &str) -> Option<Vec<u32>> {
        self.cgroups.members(cgroup, &self.samples)
    }

    /// Notes a kill: a new process still counts as a fork of its family after it was killed.
    pub(super) fn on_killed(&mut self, process: &Process, now_ns: u64) {
        self.growth.record_kill(process, now_ns);
    }

    /// Drops preferences for processes that have exited.
    pub(super) fn forget_gone(&mut self) {
        self.user_preferences.forget_gone(&self.processes);
        if self.lazily_freed.is_empty() {
            return;
        }
        let live: BTreeSet<ProcessId> = self.processes.iter().map(|process| process.id).collect();
        self.lazily_freed.retain(|_, processes| {
            processes.retain(|id, _| live.contains(id));
            !processes.is_empty()
        });
    }
}

fn convert(
    accounts: &Accounts,
    victims: &[ProcessId],
    held_memory: &HeldMemoryReports,
    sample: &ProcessSample,
) -> Process {
    let ledger = accounts.ledger();
    let account = account_of(ledger, sample);
    let count = ledger.account(account).map(|account| account.limit().count()).unwrap_or_default();
    let Size { rss_bytes, swap_bytes } = held_memory.size(count, sample, accounts.page_bytes());
    let id = sample.id();
    Process {
        id,
        address_space: AddressSpaceId(sample.mm_id),
        uid: sample.uid,
        account,
        rss_bytes,
        swap_bytes,
        comm: Comm::new(&sample.comm),
        exiting: sample.exiting || victims.binary_search(&id).is_ok(),
        parent_pid: sample.parent.tgid,
        group: sample.group,
        session_leader: sample.session_leader,
        is_copy: sample.parent.is_copied,
        oom_score_adj: sample.oom_score_adj,
        ..Process::default()
    }
}
