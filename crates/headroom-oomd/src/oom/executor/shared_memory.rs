//! Kills all processes that use a victim's memory: it is freed when the last of them exits.
//!
//! All are stopped first, in several passes. A stopped process cannot clone another one, and holds
//! the memory, so that the identifier of the address space cannot be reused before a pass has
//! ended. Then all are killed. The child of a `clone` in progress can escape the last pass: then
//! the memory is not freed, and the next kill for the account starts with that child.

use memory_ledger::family::sharers_of;
use memory_ledger::{KillPreference, Process};

use super::super::kill_plan::KillPlan;
use super::super::shared_state::SharedState;
use super::killed_member::KilledMember;

/// Maximum number of passes over processes started meanwhile.
const LOOKS: u32 = 8;

/// The processes that use the victims' memory, all stopped.
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
