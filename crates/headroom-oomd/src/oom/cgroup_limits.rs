//! Detects exceeded limits of cgroups and login sessions with a timer: no notifier covers them.
//!
//! The figures of a cgroup's memory controller are used if it is enabled. Otherwise the memory of
//! its processes is added up, so pages that several processes share count once for each. Limits of
//! users are independent: a process is charged to its user and to its cgroup.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;

use control::oomd::{LimitLevel, SoftLimitWarning, Trigger};
use headroom_linux::clock::monotonic_ns;
use headroom_linux::machine_memory::ReadError;
use memory_ledger::cgroup::{CgroupAccount, Folder, Found, Look, owner_of};
use memory_ledger::{
    AccountId, CgroupAccounts, CgroupId, CgroupLimit, Choice, Count, NoVictim, Phase, Reading,
    Scope, Uid,
};
use memory_watch::ProcessSample;
use memory_watch::cgroups::{CgroupMemory, Cgroups, Members};
use memory_watch::process::Proc;

use super::accounts::size_by;
use super::control::to_ref;
use super::kill_plan::{CgroupScope, Decision, KillPlan, Method, PinnedVictim, Purpose};
use super::shared_state::SharedState;

/// Maximum number of cgroups with a limit; further matches have none, which is reported.
const MAX_CGROUPS: usize = 1024;

/// Whether all processes were listed in the current check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    Needed,
    Done,
}

/// The detector of exceeded cgroup limits.
pub(super) struct CgroupLimits {
    accounts: CgroupAccounts,
    /// Cgroups without a memory controller, whose processes are added up.
    summed: BTreeSet<CgroupId>,
    /// Cgroups that cannot be read; logged once.
    unreadable: BTreeSet<CgroupId>,
    /// Cgroups over their limit without a possible victim; recorded once.
    no_victim: BTreeSet<CgroupId>,
    /// More cgroups match than can have a limit.
    too_many: bool,
}

impl CgroupLimits {
    pub(super) fn new(ordinary: RangeInclusive<Uid>) -> Self {
        Self {
            accounts: CgroupAccounts::new(ordinary),
            summed: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            no_victim: BTreeSet::new(),
            too_many: false,
        }
    }

    /// Sets the limits and makes a check due. Returns the reason if none of them can be enforced.
    pub(super) fn set_limits(
        &mut self,
        limits: Vec<CgroupLimit>,
        state: &mut SharedState,
    ) -> Option<String> {
        let wanted = !limits.is_empty();
        self.accounts.set_limits(limits);
        if wanted { state.snapshot.cgroups.find().err() } else { None }
    }

    /// The current degradations, one sentence each.
    pub(super) fn degraded(&self) -> Vec<String> {
        let summed = self.summed.len();
        let mut lost = Vec::new();
        if summed > 0 {
            lost.push(format!(
                "limits of cgroups: no memory controller for {summed} of them: sums of their \
                 processes, so that pages which processes share count more than once"
            ));
        }
        if self.too_many {
            lost.push(format!(
                "limits of cgroups: more than {MAX_CGROUPS} match, the others have none"
            ));
        }
        lost
    }

    /// The limits in force.
    pub(super) fn limits(&self) -> &[CgroupLimit] {
        self.accounts.limits()
    }

    /// All cgroups with a limit, as of the last search.
    pub(super) fn all(&self) -> &[CgroupAccount] {
        self.accounts.all()
    }

    /// The cgroup with this id.
    pub(super) fn get(&self, id: CgroupId) -> Option<&CgroupAccount> {
        self.accounts.get(id)
    }

    /// Makes a check due at once.
    pub(super) fn look_soon(&mut self) {
        self.accounts.look_soon();
    }

    /// When a check is due, nanoseconds, CLOCK_MONOTONIC.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.accounts.next_look_ns()
    }

    /// The ids of all cgroups with a limit.
    pub(super) fn ids(&self) -> Vec<CgroupId> {
        self.accounts.all().iter().map(CgroupAccount::id).collect()
    }

    /// Whether a check is due. If a search for cgroups is due as well, it runs first.
    pub(super) fn begin_look(&mut self, now_ns: u64, state: &SharedState) -> bool {
        if self.accounts.next_look_ns().is_none_or(|due_ns| now_ns < due_ns) {
            return false;
        }
        if self.accounts.is_search_due(now_ns) {
            self.search(now_ns, state);
        }
        true
    }

    /// Ends a check, after all cgroups were read.
    pub(super) fn end_look(&mut self, begun_ns: u64) {
        let now_ns = monotonic_ns();
        self.accounts.looked(now_ns, now_ns - begun_ns);
    }

    /// Searches for cgroups that match the limits.
    pub(super) fn search(&mut self, now_ns: u64, state: &SharedState) {
        let paths = state.snapshot.cgroups.search(self.accounts.limits());
        self.too_many = paths.len() > MAX_CGROUPS;
        let paths: Vec<String> = paths.into_iter().take(MAX_CGROUPS).collect();
        let news = self.accounts.found(&paths);
        let end_ns = monotonic_ns();
        self.accounts.searched(end_ns, end_ns - now_ns);
        for found in news {
            match found {
                Found::Came(cgroup) => tracing::info!(cgroup, "limit set"),
                Found::Left(cgroup) => {
                    tracing::info!(cgroup, "limit gone, with the cgroup or by the configuration");
                }
            }
        }
        let Self { accounts, summed, unreadable, no_victim, .. } = self;
        for ids in [summed, unreadable, no_victim] {
            ids.retain(|id| accounts.get(*id).is_some());
        }
    }

    /// Takes a fresh reading of a cgroup. `None`: it cannot be read or does not exist.
    pub(super) fn read(
        &mut self,
        id: CgroupId,
        listing: &mut Listing,
        state: &mut SharedState,
    ) -> Option<Look> {
        let it = self.accounts.get(id)?;
        let (path, count) = (it.path().to_owned(), it.account().limit().count());
        let used_bytes = match state.snapshot.cgroups.memory(&path)? {
            Ok(Some(memory)) => {
                self.summed.remove(&id);
                Some(counted(&memory, count))
            }
            Ok(None) => {
                if self.summed.insert(id) && self.summed.len() == 1 {
                    for lost in self.degraded() {
                        tracing::warn!("degraded: {lost}");
                    }
                }
                sum_of(&path, count, listing, state)
            }
            Err(error) => {
                // A cgroup that was removed is dropped by the next search.
                if !error.is_gone() && self.unreadable.insert(id) {
                    tracing::warn!("{error}; the limit of this cgroup is not enforced meanwhile");
                }
                None
            }
        }?;
        self.unreadable.remove(&id);
        self.take(id, used_bytes, state)
    }

    fn take(&mut self, id: CgroupId, used_bytes: u64, state: &SharedState) -> Option<Look> {
        let dying_bytes = state.kills.awaited_bytes(AccountId::Cgroup(id)).min(used_bytes);
        self.accounts.read(id, Reading { used_bytes, dying_bytes, at_ns: monotonic_ns() })
    }

    /// Takes a reading of a cgroup that awaits a victim's memory, for the state machine. A cgroup
    /// that cannot be read counts as unchanged, so that only the timeout ends the wait.
    pub(super) fn read_awaited(&mut self, id: CgroupId, state: &mut SharedState) {
        let before = self.accounts.get(id).map(|it| it.account().reading().used_bytes);
        if self.read(id, &mut Listing::Needed, state).is_none() {
            self.take(id, before.unwrap_or(0), state);
        }
        match self.accounts.get(id) {
            Some(it) => {
                let (reading, limit) = (it.account().reading(), it.account().limit());
                state.kills.read(AccountId::Cgroup(id), reading, limit.hard_bytes());
            }
            None => state.kills.forget_account(AccountId::Cgroup(id)),
        }
    }

    /// Decides whether to kill for a cgroup. The reading must be fresh.
    pub(super) fn plan(
        &mut self,
        id: CgroupId,
        trigger: Trigger,
        state: &mut SharedState,
    ) -> Decision {
        let Some(it) = self.accounts.get(id) else { return Decision::Nothing };
        let account = it.account();
        if account.phase() != Phase::Broken || !state.kills.may_kill(AccountId::Cgroup(id)) {
            return Decision::Nothing;
        }
        let (used_bytes, limit) = (account.reading().used_bytes, account.limit());
        let path = it.path().to_owned();
        let choice = match self.choose(id, state) {
            None => return Decision::Nothing,
            Some(Err(none)) => return Decision::NoVictim(none.into()),
            Some(Ok(choice)) => choice,
        };
        let Ok(pinned) = PinnedVictim::open(&choice.victim) else { return Decision::Retry };
        // The process can have left the cgroup before it was pinned.
        let Some(members) = state.snapshot.members(&path) else { return Decision::Nothing };
        if members.binary_search(&choice.victim.id.pid).is_err() {
            return Decision::Retry;
        }
        Decision::Kill(KillPlan {
            purpose: Purpose::Cgroup(CgroupScope { id, path }),
            trigger,
            method: Method::Kill,
            payer: state.charged(choice.victim.account),
            group: None,
            choice,
            pinned: Some(pinned),
            used_bytes,
            hard_bytes: limit.hard_bytes(),
            state: String::new(),
            noticed_ns: None,
        })
    }

    /// The victim of a cgroup. `None`: one of its processes is a victim in flight for another
    /// account, or the cgroup is gone.
    pub(super) fn choose(
        &self,
        id: CgroupId,
        state: &mut SharedState,
    ) -> Option<Result<Choice, NoVictim>> {
        let it = self.accounts.get(id)?;
        state.refresh_processes();
        let members = state.snapshot.members(it.path())?;
        let of_it = |pid: u32| members.binary_search(&pid).is_ok();
        let (mut in_flight, account) = (state.kills.all().iter(), AccountId::Cgroup(id));
        if in_flight.any(|kill| of_it(kill.victim.pid) && !kill.has_passed(account)) {
            return None;
        }
        let (limit, used_bytes) = (it.account().limit(), it.account().reading().used_bytes);
        state.size_by(limit.count());
        state.snapshot.retain(|process| of_it(process.id.pid));
        let need_bytes = Some(used_bytes.saturating_sub(limit.hard_bytes()));
        let scope = Scope { passed_over: state.kills.stuck(), need_bytes, ..Scope::default() };
        Some(state.snapshot.choose(&scope))
    }

    /// The warning that a cgroup has crossed its soft limit.
    pub(super) fn near_limit(&self, id: CgroupId) -> Option<SoftLimitWarning> {
        let it = self.get(id)?;
        Some(SoftLimitWarning {
            grace_s: None,
            account: to_ref(AccountId::Cgroup(id)),
            group: None,
            cgroup: Some(it.path().to_owned()),
            members: Vec::from_iter(owner_of(it.path())),
            level: LimitLevel::Soft,
            used_bytes: it.account().reading().used_bytes,
            hard_bytes: it.account().limit().hard_bytes(),
        })
    }

    /// Makes the next lack of victims be recorded again: the cgroup is within its limit, or its
    /// limit is to be enforced on request.
    pub(super) fn forget_no_victim(&mut self, id: CgroupId) {
        self.no_victim.remove(&id);
    }

    /// Notes that no process can be killed for this cgroup. `true`: not noted before.
    pub(super) fn is_news(&mut self, id: CgroupId) -> bool {
        self.no_victim.insert(id)
    }
}

/// The sum of the memory of a cgroup's processes, bytes.
fn sum_of(path: &str, count: Count, listing: &mut Listing, state: &mut SharedState) -> Option<u64> {
    // If the cgroup is empty, there is no need to list all processes.
    if state.snapshot.cgroups.is_empty(path) {
        return Some(0);
    }
    if *listing == Listing::Needed {
        if let Err(error) = state.snapshot.list(state.accounts.watch()) {
            tracing::warn!("cannot list processes: {error}; cgroups are not added up");
            return None;
        }
        *listing = Listing::Done;
    }
    let members = state.snapshot.members(path)?;
    let page_bytes = state.accounts.page_bytes();
    let mut seen = BTreeSet::new();
    let mut sum = 0;
    for sample in state.snapshot.samples() {
        // Processes that share an address space count once, with the first of them.
        let first = sample.mm_id == 0 || seen.insert(sample.mm_id);
        if first && members.binary_search(&sample.tgid).is_ok() {
            let size = size_by(count, sample, page_bytes);
            sum += size.rss_bytes + size.swap_bytes;
        }
    }
    Some(sum)
}

/// The part of the controller's figures that the limit counts. Shared memory counts as far as it is
/// mapped, since a kill does not release unmapped files in a tmpfs. Other files count in the same
/// way.
fn counted(memory: &CgroupMemory, count: Count) -> u64 {
    let shared = memory.shmem.min(memory.file_mapped);
    let kinds = [
        (count.anon, memory.anon),
        (count.shmem, shared),
        (count.file, memory.file_mapped - shared),
        (count.swap, memory.swap),
    ];
    kinds.into_iter().filter(|(counts, _)| *counts).map(|(_, bytes)| bytes).sum()
}

/// The cgroup v2 hierarchy, if there is one: the cgroups that match a pattern, and the processes of
/// a cgroup.
#[derive(Default)]
pub(super) struct CgroupTree {
    tree: Option<Cgroups>,
    proc: Proc,
}

impl CgroupTree {
    /// Sets the root directory of the hierarchy.
    pub(super) fn set_root(&mut self, root: &Path) {
        self.tree = Some(Cgroups::at(root));
    }

    /// Finds the hierarchy unless it is known. The error is the reason that none can be used.
    fn find(&mut self) -> Result<(), String> {
        if self.tree.is_some() {
            return Ok(());
        }
        match Cgroups::find(Path::new("/proc")) {
            Ok(Some(tree)) => {
                self.tree = Some(tree);
                Ok(())
            }
            Ok(None) => {
                let lost = "limits of cgroups and sessions are not enforced: no cgroup hierarchy \
                            of version 2 is mounted; it is looked for again at the next reload";
                Err(lost.to_owned())
            }
            Err(error) => Err(format!("limits of cgroups are not enforced: {error}")),
        }
    }

    /// The paths that match, without duplicates; may be more than [`MAX_CGROUPS`].
    fn search(&self, limits: &[CgroupLimit]) -> BTreeSet<String> {
        let Some(tree) = &self.tree else { return BTreeSet::new() };
        limits.iter().flat_map(|limit| walk(tree, limit.pattern.folders())).collect()
    }

    /// The figures of a cgroup's memory controller. `None`: there is no hierarchy.
    fn memory(&self, path: &str) -> Option<Result<Option<CgroupMemory>, ReadError>> {
        self.tree.as_ref().map(|tree| tree.memory(path))
    }

    /// Whether a cgroup and all its descendants have no process.
    fn is_empty(&self, path: &str) -> bool {
        let members = self.tree.as_ref().map(|tree| tree.members(path));
        members.is_some_and(|it| it.is_ok_and(|it| it == Members::Pids(Vec::new())))
    }

    /// The pids of a cgroup and all its descendants, ascending. `None`: the cgroup is gone.
    /// `samples` are all processes.
    pub(super) fn members(&mut self, path: &str, samples: &[ProcessSample]) -> Option<Vec<u32>> {
        match self.tree.as_ref()?.members(path) {
            Ok(Members::Pids(pids)) => Some(pids),
            Ok(Members::TooManyFolders) => {
                let all = samples.iter().map(|sample| sample.tgid);
                Some(all.filter(|pid| is_inside(&mut self.proc, *pid, path)).collect())
            }
            Err(error) => {
                if !error.is_gone() {
                    tracing::warn!("{error}; no process of this cgroup is found");
                }
                None
            }
        }
    }
}

/// The existing cgroups that match a pattern. Directories of literal components are not listed.
fn walk(tree: &Cgroups, folders: &[Folder]) -> Vec<String> {
    let mut heads = vec![String::new()];
    for folder in folders {
        let mut next = Vec::new();
        for head in &heads {
            match folder {
                Folder::Named(name) => next.push(format!("{head}/{name}")),
                Folder::Like(_) => {
                    // The cgroup may have been removed.
                    let names = tree.children(head).unwrap_or_default();
                    let meant = names.iter().filter(|name| folder.matches(name));
                    next.extend(meant.map(|name| format!("{head}/{name}")));
                }
            }
            if next.len() > MAX_CGROUPS {
                break;
            }
        }
        heads = next;
    }
    heads.retain(|path| tree.exists(path));
    heads
}

/// Whether a process is in this cgroup or a descendant, according to `/proc/<pid>/cgroup`.
fn is_inside(proc: &mut Proc, pid: u32, path: &str) -> bool {
    let own = proc.cgroup(pid).ok().and_then(|paths| paths.unified).unwrap_or_default();
    own.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_counts_its_kinds_of_the_controllers_charge() {
        let memory = CgroupMemory {
            anon: 1000,
            shmem: 500,
            file_mapped: 130,
            swap: 7,
            ..CgroupMemory::default()
        };
        let of = |names: &[&str]| counted(&memory, Count::of(names.iter().copied()));
        assert_eq!(counted(&memory, Count::default()), 1137, "shared memory that is mapped");
        assert_eq!((of(&["file"]), of(&["shmem"]), of(&["anon", "swap"])), (0, 130, 1007));
        let memory = CgroupMemory { shmem: 30, ..memory };
        let of = |names: &[&str]| counted(&memory, Count::of(names.iter().copied()));
        assert_eq!((of(&["file"]), of(&["shmem", "file"])), (100, 130));
    }

    #[test]
    fn only_folders_that_can_match_are_looked_into() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/x-1/job", "a/x-2/job", "a/x-3", "a/y-1/job", "b/x-1/job"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let tree = Cgroups::at(dir.path());
        let found = |text: &str| {
            let pattern = memory_ledger::CgroupPattern::new(text).unwrap();
            let mut found = walk(&tree, pattern.folders());
            found.sort();
            found
        };
        assert_eq!(found("/a/x-*/job"), ["/a/x-1/job", "/a/x-2/job"]);
        assert_eq!(found("/a/x-3"), ["/a/x-3"]);
        assert!(found("/a/x-9").is_empty() && found("/none/*").is_empty());
        assert_eq!(found("/?"), ["/a", "/b"]);
    }

    #[test]
    fn a_process_is_inside_its_own_cgroup_and_those_above() {
        let mut proc = Proc::default();
        let us = std::process::id();
        let own = proc.cgroup(us).unwrap().unified.unwrap_or_default();
        assert!(own.is_empty() || is_inside(&mut proc, us, &own));
        assert!(!is_inside(&mut proc, us, "/no-such-cgroup"));
        assert!(!is_inside(&mut proc, u32::MAX / 2, "/a"));
    }
}
