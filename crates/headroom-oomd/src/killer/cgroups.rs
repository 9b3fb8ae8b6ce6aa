//! What limited cgroups and login sessions have, by a timer: no notifier tells of them.
//!
//! Where the memory controller is on for a cgroup, it knows; elsewhere the processes are added up, and what several share
//! counts with each. Users' limits are another matter: a process counts for its user and for its cgroup. Who dies when
//! one holds too much is in [`cgroup_strike`](super::cgroup_strike).

use std::collections::BTreeSet;
use std::path::Path;

use control::oomd::{Trigger, UserLimit};
use machine_memory::ReadError;
use memory_ledger::cgroup::{Folder, owner_of};
use memory_ledger::cgroup_accounts::{CgroupAccount, Found, Look};
use memory_ledger::{AccountId, CgroupAccounts, CgroupId, CgroupLimit, Count, Phase, Uid};
use memory_watch::cgroups::{CgroupMemory, Cgroups, Members};
use memory_watch::process::Proc;

use super::Killer;
use super::charge::sizes_by;
use crate::account_ref::to_ref;
use crate::clock::monotonic_ns;
use crate::tell::teller::Near;

/// So many cgroups can have a limit; others that match have none, which is said.
const MOST_CGROUPS: usize = 1024;

/// The cgroups as seen by the killer.
pub(super) struct CgroupWatch {
    /// `None`: no hierarchy is known.
    tree: Option<Cgroups>,
    proc: Proc,
    pub(super) accounts: CgroupAccounts,
    /// Those whose processes are added up.
    summed: BTreeSet<CgroupId>,
    /// Those that cannot be read: said once.
    unreadable: BTreeSet<CgroupId>,
    /// Those of whom nobody can be killed: said once.
    pub(super) helpless: BTreeSet<CgroupId>,
    /// More match than can have a limit.
    too_many: bool,
}

impl CgroupWatch {
    pub(super) fn new() -> Self {
        Self {
            tree: None,
            proc: Proc::default(),
            accounts: CgroupAccounts::new(crate::users::ORDINARY),
            summed: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            helpless: BTreeSet::new(),
            too_many: false,
        }
    }

    /// What is lost at present, a sentence each.
    pub(super) fn lost(&self) -> impl Iterator<Item = String> + use<> {
        let summed = self.summed.len();
        let sums = || {
            format!(
                "limits of cgroups: no memory controller for {summed} of them: sums of their processes, so that \
                 pages which processes share count more than once"
            )
        };
        let too_many =
            || format!("limits of cgroups: more than {MOST_CGROUPS} match, the others have none");
        let lost = [(summed > 0).then(sums), self.too_many.then(too_many)];
        lost.into_iter().flatten()
    }

    /// The paths that match, each once.
    fn search(&mut self) -> Vec<String> {
        let Some(tree) = &self.tree else { return Vec::new() };
        let mut paths = BTreeSet::new();
        for limit in self.accounts.limits() {
            paths.extend(walk(tree, limit.pattern.folders()));
        }
        self.too_many = paths.len() > MOST_CGROUPS;
        paths.into_iter().take(MOST_CGROUPS).collect()
    }
}

/// The cgroups that are there of a pattern's folders; of those that have a plain name nothing is listed.
fn walk(tree: &Cgroups, folders: &[Folder]) -> Vec<String> {
    let mut heads = vec![String::new()];
    for folder in folders {
        let mut next = Vec::new();
        for head in &heads {
            match folder {
                Folder::Named(name) => next.push(format!("{head}/{name}")),
                Folder::Like(_) => {
                    // It may be gone by now.
                    let names = tree.children(head).unwrap_or_default();
                    let meant = names.iter().filter(|name| folder.matches(name));
                    next.extend(meant.map(|name| format!("{head}/{name}")));
                }
            }
            if next.len() > MOST_CGROUPS {
                break;
            }
        }
        heads = next;
    }
    heads.retain(|path| tree.exists(path));
    heads
}

/// What counts of what the controller says. Shared memory counts as far as it is mapped, for files that merely lie in a
/// tmpfs do not come back with any process; so do other files.
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

impl Killer {
    /// Limits of cgroups from now on. Returns why none of them can be enforced.
    pub fn limit_cgroups(&mut self, limits: Vec<CgroupLimit>) -> Option<String> {
        let wanted = !limits.is_empty();
        self.cgroups.accounts.set_limits(limits);
        if wanted && self.cgroups.tree.is_none() {
            match Cgroups::find(Path::new("/proc")) {
                Ok(Some(tree)) => self.cgroups.tree = Some(tree),
                Ok(None) => {
                    let lost = "limits of cgroups and sessions are not enforced: no cgroup hierarchy of version 2 \
                                is mounted; it is looked for again at the next reload";
                    return Some(lost.to_owned());
                }
                Err(error) => return Some(format!("limits of cgroups are not enforced: {error}")),
            }
        }
        self.look_at_cgroups();
        None
    }

    /// The hierarchy is in this folder.
    pub fn find_cgroups_in(&mut self, root: &Path) {
        self.cgroups.tree = Some(Cgroups::at(root));
    }

    /// Looks if a look is due, and acts.
    pub(super) fn look_at_cgroups(&mut self) {
        let begun_ns = monotonic_ns();
        if self.cgroups.accounts.next_look_ns().is_none_or(|due_ns| begun_ns < due_ns) {
            return;
        }
        if self.cgroups.accounts.is_search_due(begun_ns) {
            self.search_cgroups(begun_ns);
        }
        let mut listed = false;
        for id in self.cgroup_ids() {
            let Some(look) = self.read_cgroup(id, &mut listed) else { continue };
            if look.crossed {
                self.shrink();
                self.warn_of_cgroup(id);
            }
            match look.phase {
                Phase::Broken => drop(self.strike_in_cgroup(id, Trigger::Timer)),
                _ => drop(self.cgroups.helpless.remove(&id)),
            }
        }
        let now_ns = monotonic_ns();
        self.cgroups.accounts.looked(now_ns, now_ns - begun_ns);
    }

    /// When a look is due.
    pub(super) fn cgroups_deadline_ns(&self) -> Option<u64> {
        self.cgroups.accounts.next_look_ns()
    }

    pub(super) fn cgroup_ids(&self) -> Vec<CgroupId> {
        self.cgroups.accounts.all().iter().map(CgroupAccount::id).collect()
    }

    pub(super) fn search_cgroups(&mut self, now_ns: u64) {
        let paths = self.cgroups.search();
        let news = self.cgroups.accounts.found(&paths);
        let end_ns = monotonic_ns();
        self.cgroups.accounts.searched(end_ns, end_ns - now_ns);
        for found in news {
            match found {
                Found::Came(cgroup) => tracing::info!(cgroup, "limit set"),
                Found::Left(cgroup) => {
                    tracing::info!(cgroup, "limit gone, with the cgroup or by the configuration")
                }
            }
        }
        let CgroupWatch { accounts, summed, unreadable, helpless, .. } = &mut self.cgroups;
        for ids in [summed, unreadable, helpless] {
            ids.retain(|id| accounts.get(*id).is_some());
        }
    }

    /// A fresh reading of a cgroup. `listed`: `self.samples` was filled for this look already.
    pub(super) fn read_cgroup(&mut self, id: CgroupId, listed: &mut bool) -> Option<Look> {
        let it = self.cgroups.accounts.get(id)?;
        let (path, count) = (it.path().to_owned(), it.account().limit().count());
        let memory = self.cgroups.tree.as_ref()?.memory(&path);
        let used_bytes = match memory {
            Ok(Some(memory)) => {
                self.cgroups.summed.remove(&id);
                Some(counted(&memory, count))
            }
            Ok(None) => self.sum_of(id, &path, count, listed),
            Err(error) => {
                // One that is gone leaves with the next search.
                if !error.is_gone() && self.cgroups.unreadable.insert(id) {
                    tracing::warn!("{error}; the limit of this cgroup is not enforced meanwhile");
                }
                None
            }
        }?;
        self.cgroups.unreadable.remove(&id);
        self.cgroups.accounts.read(id, used_bytes, monotonic_ns())
    }

    /// What the processes of a cgroup have together.
    fn sum_of(&mut self, id: CgroupId, path: &str, count: Count, listed: &mut bool) -> Option<u64> {
        if self.cgroups.summed.insert(id) && self.cgroups.summed.len() == 1 {
            self.cgroups.lost().for_each(|lost| tracing::warn!("degraded: {lost}"));
        }
        let members = self.cgroups.tree.as_ref()?.members(path);
        // An empty one is not worth a look at all processes.
        if members.as_ref().is_ok_and(|members| *members == Members::Pids(Vec::new())) {
            return Some(0);
        }
        if !*listed {
            if let Err(error) = self.watch.processes(&mut self.samples) {
                tracing::warn!("cannot list processes: {error}; cgroups are not added up");
                return None;
            }
            *listed = true;
        }
        let members = self.pids_of(members, path)?;
        let mut seen = BTreeSet::new();
        let of_it = self.samples.iter().filter(|sample| {
            let once = sample.mm_id == 0 || seen.insert(sample.mm_id);
            once && members.binary_search(&sample.tgid).is_ok()
        });
        let bytes = of_it.map(|sample| sizes_by(count, sample, self.page_bytes));
        Some(bytes.map(|(rss_bytes, swap_bytes)| rss_bytes + swap_bytes).sum())
    }

    /// The pids of a cgroup and of all below it, ascending; `None`: it is gone.
    pub(super) fn members_of(&mut self, path: &str) -> Option<Vec<u32>> {
        let members = self.cgroups.tree.as_ref()?.members(path);
        self.pids_of(members, path)
    }

    fn pids_of(&mut self, members: Result<Members, ReadError>, path: &str) -> Option<Vec<u32>> {
        match members {
            Ok(Members::Pids(pids)) => Some(pids),
            Ok(Members::TooManyFolders) => {
                let (samples, proc) = (&self.samples, &mut self.cgroups.proc);
                let all = samples.iter().map(|sample| sample.tgid);
                Some(all.filter(|pid| is_inside(proc, *pid, path)).collect())
            }
            Err(error) => {
                if !error.is_gone() {
                    tracing::warn!("{error}; nobody of this cgroup is found");
                }
                None
            }
        }
    }

    /// The same, of one with a limit; nobody, where it is gone.
    pub(super) fn members_of_cgroup(&mut self, id: CgroupId) -> Vec<u32> {
        let path = self.cgroups.accounts.get(id).map(|it| it.path().to_owned());
        path.and_then(|path| self.members_of(&path)).unwrap_or_default()
    }

    fn warn_of_cgroup(&mut self, id: CgroupId) {
        let Some(it) = self.cgroups.accounts.get(id) else { return };
        let (reading, limit) = (it.account().reading(), it.account().limit());
        let near = Near {
            account: AccountId::Cgroup(id),
            group: None,
            cgroup: Some(it.path().to_owned()),
            members: Vec::from_iter(owner_of(it.path())),
            used_bytes: reading.used_bytes,
            hard_bytes: limit.hard_bytes(),
        };
        self.records.near_limit(near);
    }

    /// Limits of cgroups with fresh accounts: of all, or of this user's sessions.
    pub fn cgroup_limits(&mut self, owner: Option<Uid>) -> Vec<UserLimit> {
        let mut listed = false;
        for id in self.cgroup_ids() {
            self.read_cgroup(id, &mut listed);
        }
        let wanted = |path: &str| owner.is_none_or(|uid| owner_of(path) == Some(uid));
        let all = self.cgroups.accounts.all().iter().filter(|it| wanted(it.path()));
        let describe = |it: &CgroupAccount| UserLimit {
            account: to_ref(it.account().id),
            group: None,
            cgroup: Some(it.path().to_owned()),
            members: Vec::new(),
            counts: it.account().limit().count().unusual_names(),
            hard_bytes: it.account().limit().hard_bytes(),
            soft_bytes: it.account().limit().soft_bytes(),
            used_bytes: it.account().reading().used_bytes,
            dying_bytes: it.account().reading().dying_bytes,
            peak_bytes: it.peak_bytes(),
            leased_bytes: 0,
            leaseholders: 0,
            source: "config".to_owned(),
        };
        all.map(describe).collect()
    }
}

/// A process says itself that it is in this cgroup or below it.
fn is_inside(proc: &mut Proc, pid: u32, path: &str) -> bool {
    let own = proc.cgroup(pid).ok().and_then(|paths| paths.unified).unwrap_or_default();
    own.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_the_controller_knows_a_limit_counts_its_kinds() {
        let memory = CgroupMemory { anon: 1000, shmem: 500, file_mapped: 130, swap: 7 };
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
