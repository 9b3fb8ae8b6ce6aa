//! A fork bomb stands still before it is killed.
//!
//! Under a limit of processes one that dies makes room for the next, and tells its parent so; one that is stopped does
//! neither. So all are stopped first, in several looks: a look finds only children of processes that had not got their
//! signal before. Then all are killed; who cannot be goes on. A fork that was under way ends with a child all the same,
//! though its parent be stopped, but not when that is killed: so there is another look after the kill.

use memory_ledger::{CgroupId, Process, Stance};
use reclaim::{KillError, Victim};

use super::Killer;
use super::arm::identity;
use crate::clock::monotonic_ns;

/// So many looks for those that were born meanwhile, before they are killed ...
const LOOKS: u32 = 8;
/// ... and so many rounds of looks and kills. The second one finds next to nobody.
const ROUNDS: u32 = 8;

/// A process that stands still.
struct Held {
    process: Process,
    victim: Victim,
}

impl Killer {
    /// Ends a fork bomb, of which `first` has its signal already; for a cgroup's limit, as far as it is in that. Returns
    /// who of the others has its signal.
    pub(super) fn strike_bomb(
        &mut self,
        first: &Process,
        others: Vec<Process>,
        cgroup: Option<CgroupId>,
    ) -> Vec<Process> {
        let mut family = Vec::with_capacity(others.len() + 1);
        family.push(*first);
        let mut found = others;
        for _ in 0..ROUNDS {
            let held = self.hold(found, &mut family, cgroup);
            self.kill_held(held, cgroup);
            found = self.relatives(&family, cgroup);
            if found.is_empty() {
                break;
            }
        }
        family.remove(0);
        family
    }

    /// Stops these and whoever is born meanwhile.
    fn hold(
        &mut self,
        mut found: Vec<Process>,
        family: &mut Vec<Process>,
        cgroup: Option<CgroupId>,
    ) -> Vec<Held> {
        let mut held = Vec::with_capacity(found.len());
        for _ in 0..LOOKS {
            for process in found {
                let opened = Victim::open_as(identity(process.id, process.uid));
                // One that cannot be stopped is killed all the same; who is gone is left out.
                let Ok(victim) = opened else { continue };
                if !matches!(victim.stop(), Err(KillError::Gone(_))) {
                    family.push(process);
                    held.push(Held { process, victim });
                }
            }
            found = self.relatives(family, cgroup);
            if found.is_empty() {
                break;
            }
        }
        held
    }

    fn kill_held(&mut self, mut held: Vec<Held>, cgroup: Option<CgroupId>) {
        held.retain(|held| match held.victim.send_kill() {
            Ok(()) => true,
            Err(KillError::Gone(_)) => false,
            Err(error) => {
                tracing::warn!("{error}: it goes on");
                held.victim.go_on();
                false
            }
        });
        let signalled_ns = monotonic_ns();
        for Held { process, victim } in held {
            let dying = self.dying_with_others(&process, victim, signalled_ns);
            self.watch_over(dying.of_cgroup(cgroup));
        }
    }

    /// Who belongs to these and is not among them.
    fn relatives(&mut self, family: &[Process], cgroup: Option<CgroupId>) -> Vec<Process> {
        self.look_at_processes();
        let members = cgroup.map(|number| self.members_of_cgroup(number));
        let belongs = |process: &Process| {
            family.iter().any(|other| {
                let together = match &members {
                    Some(pids) => pids.binary_search(&process.id.pid).is_ok(),
                    None => process.account == other.account,
                };
                together
                    && (process.parent_pid == other.id.pid
                        || (process.group != 0 && process.group == other.group))
            })
        };
        let may_die = |process: &Process| {
            !process.exiting
                && process.stance >= Stance::Ordinary
                && !self.protected.contains(&process.id.pid)
        };
        let known = |process: &Process| family.iter().any(|other| other.id == process.id);
        let found = self.processes.iter().filter(|it| may_die(it) && !known(it) && belongs(it));
        found.copied().collect()
    }
}
