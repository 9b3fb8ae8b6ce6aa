//! What the manager passes to the program that replaces this one, and continues with in it.

use std::collections::BTreeSet;

use memory_ledger::AccountId;
use memory_watch::Inherited;

use super::inherited_limits::{self, SavedLimit};
use super::manager::OomManager;
use super::saved_kills::{SavedKills, TakenOverKills};
use super::shared_state::SharedState;

/// What the program before this one has passed.
#[derive(Default)]
pub struct TakenOver {
    /// Kills in flight.
    pub kills: TakenOverKills,
    /// Limits that were set at runtime.
    pub limits: Vec<SavedLimit>,
}

impl OomManager {
    /// Kills in flight and limits, for the program that continues with them.
    pub fn save(&self) -> (SavedKills, Vec<SavedLimit>) {
        let kills = SavedKills { kills: self.state.kills.clone(), victims: self.executor.save() };
        (kills, inherited_limits::save(self))
    }

    /// Why another program cannot take the place of this one yet.
    pub fn unfinished(&self) -> Option<&'static str> {
        self.records.unfinished().or_else(|| self.backstop.unfinished())
    }

    /// Limits of the daemon or program before this one: those that the watch has found, and those
    /// that it could not know.
    pub(super) fn inherited(&self) -> Vec<Inherited> {
        let mut inherited = self.accounts().watch().inherited();
        let found: BTreeSet<AccountId> = inherited.iter().map(|it| it.account).collect();
        let passed = self.passed_limits.iter().filter(|it| !found.contains(&it.account));
        inherited.extend(passed);
        inherited
    }

    /// Takes the latches of accounts that await a kill of the program before this one, unless they
    /// are taken in the kernel already; and counts the victims' memory as available.
    pub(super) fn continue_kills(&mut self) {
        let SharedState { accounts, kills, .. } = &mut self.state;
        for (account, victim) in kills.latched() {
            if accounts.ledger().account(account).is_some() {
                accounts.take_latch(account, victim);
            }
        }
        let bytes = kills.all().iter().map(|kill| kill.bytes).fold(0, u64::saturating_add);
        self.system_monitor.credit(bytes);
    }
}
