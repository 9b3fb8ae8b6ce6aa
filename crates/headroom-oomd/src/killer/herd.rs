//! A herd dies together.

use memory_ledger::{Cause, Choice, Process, Stance};
use reclaim::Victim;

use super::Killer;
use super::aftermath::{Asked, Dying};
use super::arm::identity;
use crate::clock::monotonic_ns;

/// A fork bomb is looked at so many times, for those that were born meanwhile. Each look finds only
/// children of processes that had not got their signal yet.
const LOOKS: u32 = 16;

impl Killer {
    /// The others of the victim's herd follow it; who could not be signalled is taken off the list.
    pub(super) fn strike_others(&mut self, choice: &mut Choice, ask: bool) {
        let asked = self.dying.last().and_then(|dying| dying.asked).filter(|_| ask);
        let mut others = std::mem::take(&mut choice.others);
        others.retain(|process| self.strike_one(process, asked));
        if let Cause::Herd(herd) = choice.cause
            && herd.bomb
            && !ask
        {
            self.strike_the_newborn(choice.victim, &mut others);
        }
        choice.others = others;
    }

    fn strike_one(&mut self, process: &Process, asked: Option<Asked>) -> bool {
        let Ok(victim) = Victim::open_as(identity(process.id, process.uid)) else { return false };
        let asked = asked.filter(|_| victim.can_be_asked());
        let done = if asked.is_some() { victim.ask_to_end() } else { victim.send_kill() };
        if done.is_err() {
            return false;
        }
        let (uid, id, bytes) = (process.account(), process.id, process.charged_bytes());
        let token = self.new_token();
        let dying = Dying::new(token, uid, id, bytes, bytes, monotonic_ns(), Some(victim));
        self.watch_over(dying.asked(asked));
        true
    }

    fn strike_the_newborn(&mut self, first: Process, others: &mut Vec<Process>) {
        for _ in 0..LOOKS {
            self.look_at_processes();
            let ours = |process: &Process| {
                let of = |dead: &Process| {
                    process.parent_pid == dead.id.pid
                        || (process.group != 0 && process.group == dead.group)
                };
                process.account() == first.account() && (of(&first) || others.iter().any(of))
            };
            let found: Vec<Process> = self
                .processes
                .iter()
                .filter(|process| !process.exiting && process.stance >= Stance::Ordinary)
                .filter(|process| !self.protected.contains(&process.id.pid) && ours(process))
                .copied()
                .collect();
            if found.is_empty() {
                return;
            }
            for process in found {
                if self.strike_one(&process, None) {
                    others.push(process);
                }
            }
        }
    }
}
