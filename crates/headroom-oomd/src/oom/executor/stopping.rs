//! Processes that are stopped before they are killed: the family of a victim, and all processes
//! that use its memory.
//!
//! A stopped process neither forks nor notifies its parent. So all are stopped first, in several
//! passes, as a pass finds only processes that were started before it. Then all are killed, and
//! those that cannot be killed are continued.

use std::collections::BTreeSet;

use memory_ledger::family::sharers_of;
use memory_ledger::herd::takes_part;
use memory_ledger::{AccountId, KillPreference, Process, ProcessId, Uid};
use reclaim::{KillError, Victim};

use super::super::kill_plan::{CgroupScope, KillPlan, open};
use super::super::shared_state::SharedState;

/// Maximum number of passes over processes started meanwhile, before all are killed ...
const LOOKS: u32 = 8;
/// ... and maximum number of rounds of passes and kills. The second round finds next to nothing.
pub(super) const ROUNDS: u32 = 8;

/// A process that is stopped to be killed, or was killed.
pub(super) struct KilledMember {
    pub(super) process: Process,
    pub(super) victim: Victim,
}

impl KilledMember {
    /// Stops a process. If it cannot be stopped, it will be killed all the same. `None`: it has
    /// exited.
    fn stop(process: &Process) -> Option<Self> {
        let victim = open(process).ok()?;
        let gone = matches!(victim.stop(), Err(KillError::Gone(_)));
        (!gone).then_some(Self { process: *process, victim })
    }

    /// Kills the stopped processes and keeps those that were signalled. The others are continued.
    fn kill_all(members: &mut Vec<Self>) {
        members.retain(|member| match member.victim.send_kill() {
            Ok(()) => true,
            Err(KillError::Gone(_)) => false,
            Err(error) => {
                tracing::warn!("{error}: it continues");
                member.victim.go_on();
                false
            }
        });
    }
}

/// The processes that die with those that were chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kin {
    /// All of the family that are new or grow.
    Family,
    /// Those that the chosen ones fork meanwhile.
    Children,
}

/// The known members of a fork bomb, or of a herd that dies together.
///
/// Under a limit of processes, a process that is killed makes room for the next one, and its parent
/// is notified. A fork in progress still yields a child if its parent is stopped, but not if the
/// parent is killed, so another pass follows the kill.
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

/// The processes that use the victims' memory, all stopped. It is freed when the last of them
/// exits.
///
/// A stopped process holds the memory, so that the identifier of the address space cannot be reused
/// before a pass has ended. The child of a `clone` in progress can escape the last pass: then the
/// memory is not freed, and the next kill for the account starts with that child.
pub(super) struct SharedMemory {
    victims: Vec<KilledMember>,
    sharers: Vec<KilledMember>,
}

impl SharedMemory {
    /// Stops the victims of a plan and all processes that share their memory.
    pub(super) fn stop(plan: &KillPlan, state: &mut SharedState) -> Self {
        let victims = plan.choice.victims();
        let mut shared =
            Self { victims: victims.filter_map(KilledMember::stop).collect(), sharers: Vec::new() };
        for _ in 0..LOOKS {
            let found = shared.look(plan, state);
            if found.is_empty() {
                break;
            }
            shared.sharers.extend(found.iter().filter_map(KilledMember::stop));
        }
        shared
    }

    /// Sharers that are not known yet.
    fn look(&self, plan: &KillPlan, state: &mut SharedState) -> Vec<Process> {
        state.refresh_processes();
        // If a member has exited meanwhile, its memory may be gone as well, so its identifier may
        // be reused.
        let all = self.victims.iter().chain(&self.sharers);
        let members: Vec<Process> =
            all.filter(|it| !it.victim.has_exited()).map(|it| it.process).collect();
        let mut found = sharers_of(&members, state.snapshot.processes());
        found.retain(|process| {
            !process.exiting
                && process.account == plan.choice.victim.account
                && process.preference != KillPreference::Never
                && !state.snapshot.is_protected(process)
        });
        found
    }

    /// Kills the sharers. Returns those that were signalled, with a size of 0: the memory is the
    /// victim's.
    pub(super) fn kill(self) -> Vec<KilledMember> {
        let mut sharers = self.sharers;
        KilledMember::kill_all(&mut sharers);
        for sharer in &mut sharers {
            (sharer.process.rss_bytes, sharer.process.swap_bytes) = (0, 0);
        }
        sharers
    }

    /// Continues all processes: the victim could not be killed.
    pub(super) fn release(self) {
        for member in self.victims.into_iter().chain(self.sharers) {
            member.victim.go_on();
        }
    }
}
