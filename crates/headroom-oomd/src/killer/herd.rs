//! A herd dies together.

use memory_ledger::{Cause, CgroupId, Choice, Process};
use reclaim::Victim;

use super::Killer;
use super::aftermath::{Asked, Dying};
use super::arm::identity;
use crate::clock::monotonic_ns;

impl Killer {
    /// The others of the victim's herd follow it; who could not be signalled is taken off the list.
    pub(super) fn strike_others(
        &mut self,
        choice: &mut Choice,
        ask: bool,
        cgroup: Option<CgroupId>,
    ) {
        let asked = self.dying.last().and_then(|dying| dying.asked).filter(|_| ask);
        let mut others = std::mem::take(&mut choice.others);
        choice.others = match choice.cause {
            Cause::Herd(herd) if herd.bomb && !ask => {
                self.strike_bomb(&choice.victim, others, cgroup)
            }
            _ => {
                others.retain(|process| self.strike_one(process, asked, cgroup));
                others
            }
        };
        let now_ns = monotonic_ns();
        let dead = std::iter::once(&choice.victim).chain(&choice.others);
        dead.for_each(|process| self.growth.bury(process, now_ns));
    }

    fn strike_one(
        &mut self,
        process: &Process,
        asked: Option<Asked>,
        cgroup: Option<CgroupId>,
    ) -> bool {
        let Ok(victim) = Victim::open_as(identity(process.id, process.uid)) else { return false };
        let asked = asked.filter(|_| victim.can_be_asked());
        let done = if asked.is_some() { victim.ask_to_end() } else { victim.send_kill() };
        if done.is_err() {
            return false;
        }
        let dying = self.dying_with_others(process, victim, monotonic_ns());
        self.watch_over(dying.asked(asked).of_cgroup(cgroup));
        true
    }

    /// One that got its signal for what its family does: what its account holds is known of the first victim alone.
    pub(super) fn dying_with_others(
        &mut self,
        process: &Process,
        victim: Victim,
        signalled_ns: u64,
    ) -> Dying {
        let (account, id, bytes) = (process.account, process.id, process.charged_bytes());
        Dying::new(self.new_token(), account, id, bytes, bytes, signalled_ns, Some(victim))
    }
}
