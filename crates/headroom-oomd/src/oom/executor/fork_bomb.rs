//! Stops the processes of a fork bomb before killing them.
//!
//! Under a limit of processes, a process that is killed makes room for the next one, and its parent
//! is notified. A stopped process does neither. So all are stopped first, in several passes: a pass
//! finds only children of processes that had not received SIGSTOP before. Then all are killed;
//! those that cannot be killed are continued. A fork in progress still yields a child if its parent
//! is stopped, but not if the parent is killed, so another pass follows the kill.

use std::collections::BTreeSet;

use memory_ledger::herd::takes_part;
use memory_ledger::{AccountId, KillPreference, Process, ProcessId, Uid};

use super::super::kill_plan::CgroupScope;
use super::super::shared_state::SharedState;
use super::killed_member::KilledMember;

/// Maximum number of passes over processes forked meanwhile, before all are killed ...
const LOOKS: u32 = 8;
/// ... and maximum number of rounds of passes and kills. The second round finds next to nothing.
pub(super) const ROUNDS: u32 = 8;

/// The processes that die with those that were chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kin {
    /// All of the family that are new or grow.
    Family,
    /// Those that the chosen ones fork meanwhile.
    Children,
}

/// The known members of a fork bomb, or of a herd that dies together.
pub(super) struct ForkBomb<'a> {
    /// The first member was signalled by the caller.
    family: Vec<Process>,
    /// The pids of the members, with their accounts.
    pids: BTreeSet<(u32, AccountId)>,
    /// Their process groups, with their accounts.
    groups: BTreeSet<(u32, AccountId)>,
    kin: Kin,
    cgroup: Option<&'a CgroupScope>,
}

impl<'a> ForkBomb<'a> {
    pub(super) fn new(first: &Process, kin: Kin, cgroup: Option<&'a CgroupScope>) -> Self {
        let (pids, groups) = (BTreeSet::new(), BTreeSet::new());
        let mut bomb = Self { family: Vec::new(), pids, groups, kin, cgroup };
        bomb.add(*first);
        bomb
    }

    fn add(&mut self, process: Process) {
        // In a cgroup the members of all accounts belong together.
        let account = self.account_of(&process);
        self.pids.insert((process.id.pid, account));
        if process.group != 0 && self.kin == Kin::Family {
            self.groups.insert((process.group, account));
        }
        self.family.push(process);
    }

    fn account_of(&self, process: &Process) -> AccountId {
        if self.cgroup.is_some() { AccountId::User(Uid::ROOT) } else { process.account }
    }

    /// The cgroup that all members are in.
    pub(super) fn cgroup(&self) -> Option<&'a CgroupScope> {
        self.cgroup
    }

    /// All members but the first.
    pub(super) fn into_others(mut self) -> Vec<Process> {
        self.family.remove(0);
        self.family
    }

    /// Stops these processes and all that are forked meanwhile, and kills them.
    pub(super) fn stop_and_kill(
        &mut self,
        found: Vec<Process>,
        state: &mut SharedState,
    ) -> Vec<KilledMember> {
        let mut stopped = self.stop(found, state);
        KilledMember::kill_all(&mut stopped);
        stopped
    }

    fn stop(&mut self, mut found: Vec<Process>, state: &mut SharedState) -> Vec<KilledMember> {
        let mut stopped = Vec::with_capacity(found.len());
        for _ in 0..LOOKS {
            for member in found.iter().filter_map(KilledMember::stop) {
                self.add(member.process);
                stopped.push(member);
            }
            found = self.relatives(state);
            if found.is_empty() {
                break;
            }
        }
        stopped
    }

    /// Processes that belong to the family and are not known yet.
    pub(super) fn relatives(&self, state: &mut SharedState) -> Vec<Process> {
        state.refresh_processes();
        let members =
            self.cgroup.map(|scope| state.snapshot.members(&scope.path).unwrap_or_default());
        let is_relative = |process: &Process| {
            let account = self.account_of(process);
            let is_within =
                members.as_ref().is_none_or(|pids| pids.binary_search(&process.id.pid).is_ok());
            is_within
                && (self.pids.contains(&(process.parent_pid, account))
                    || self.groups.contains(&(process.group, account)))
        };
        let may_be_killed = |process: &Process| {
            !process.exiting
                && takes_part(process)
                && process.preference >= KillPreference::Ordinary
                && !state.snapshot.is_protected(process)
        };
        let known: BTreeSet<ProcessId> = self.family.iter().map(|process| process.id).collect();
        let known = |process: &Process| known.contains(&process.id);
        let all = state.snapshot.processes().iter();
        all.filter(|it| may_be_killed(it) && !known(it) && is_relative(it)).copied().collect()
    }
}
