//! Ends all processes that use a victim's memory: it comes back with the last of them.
//!
//! All are stopped first, in several looks: one that is stopped makes no other, and holds the
//! memory, so that its name cannot become that of another address space before a look has ended.
//! Then all are killed. A `clone` that was under way can escape the last look: its memory does not
//! come back, and the next kill for the account begins with it.

use memory_ledger::address_space::sharers_of;
use memory_ledger::{KillPreference, Process};

use super::super::kill_plan::KillPlan;
use super::super::shared_state::SharedState;
use super::killed_member::KilledMember;

/// So many looks for processes that were born meanwhile.
const LOOKS: u32 = 8;

/// The processes that use some victims' memory, all stopped.
pub(super) struct SharedMemory {
    victims: Vec<KilledMember>,
    sharers: Vec<KilledMember>,
}

impl SharedMemory {
    /// Stops the victims of a plan and all that share their memory.
    pub(super) fn stop(plan: &KillPlan, state: &mut SharedState) -> Self {
        let victims = std::iter::once(&plan.choice.victim).chain(&plan.choice.others);
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

    /// Those that are not known yet.
    fn look(&self, plan: &KillPlan, state: &mut SharedState) -> Vec<Process> {
        state.refresh_processes();
        // Of one that has exited meanwhile, the memory may be gone as well.
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

    /// Kills the sharers. Returns those that have their signal, without memory of their own.
    pub(super) fn kill(self) -> Vec<KilledMember> {
        let mut sharers = self.sharers;
        KilledMember::kill_all(&mut sharers);
        for sharer in &mut sharers {
            (sharer.process.rss_bytes, sharer.process.swap_bytes) = (0, 0);
        }
        sharers
    }

    /// Lets all go on: the victim could not be killed.
    pub(super) fn release(self) {
        for member in self.victims.into_iter().chain(self.sharers) {
            member.victim.go_on();
        }
    }
}
