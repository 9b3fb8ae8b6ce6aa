//! Stops the processes of a fork bomb before killing them.
//!
//! Under a limit of processes, a process that is killed makes room for the next one, and its parent
//! is notified. A stopped process does neither. So all are stopped first, in several passes: a pass
//! finds only children of processes that had not received SIGSTOP before. Then all are killed;
//! those that cannot be killed are continued. A fork in progress still yields a child if its parent
//! is stopped, but not if the parent is killed, so another pass follows the kill.

use memory_ledger::herd::takes_part;
use memory_ledger::{KillPreference, Process};

use super::super::kill_plan::CgroupScope;
use super::super::shared_state::SharedState;
use super::killed_member::KilledMember;

/// Maximum number of passes over processes forked meanwhile, before all are killed ...
const LOOKS: u32 = 8;
/// ... and maximum number of rounds of passes and kills. The second round finds next to nothing.
pub(super) const ROUNDS: u32 = 8;

/// The known members of a fork bomb.
pub(super) struct ForkBomb<'a> {
    /// The first member was signalled by the caller.
    family: Vec<Process>,
    cgroup: Option<&'a CgroupScope>,
}

impl<'a> ForkBomb<'a> {
    pub(super) fn new(first: &Process, cgroup: Option<&'a CgroupScope>) -> Self {
        Self { family: vec![*first], cgroup }
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
                self.family.push(member.process);
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
            self.family.iter().any(|other| {
                let together = match &members {
                    Some(pids) => pids.binary_search(&process.id.pid).is_ok(),
                    None => process.account == other.account,
                };
                together
                    && (process.parent_pid == other.id.pid
                        || (process.group != 0 && process.group == other.group))
            })
        };
        let may_be_killed = |process: &Process| {
            !process.exiting
                && takes_part(process)
                && process.preference >= KillPreference::Ordinary
                && !state.snapshot.is_protected(process)
        };
        let known = |process: &Process| self.family.iter().any(|other| other.id == process.id);
        let all = state.snapshot.processes().iter();
        all.filter(|it| may_be_killed(it) && !known(it) && is_relative(it)).copied().collect()
    }
}
