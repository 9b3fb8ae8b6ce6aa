//! Kills in flight that another program continues with.

use std::collections::HashSet;

use super::{KillToken, KillsInFlight, ROOM};
use crate::account_id::AccountId;
use crate::process::ProcessId;

impl KillsInFlight {
    /// Verifies kills that were read back; they then continue as those that were written.
    pub fn verify(mut self) -> Result<Self, String> {
        let mut tokens = HashSet::new();
        let mut awaited = HashSet::new();
        for kill in &self.kills {
            let KillToken(token) = kill.token;
            if !(1..=self.last_token).contains(&token) || !tokens.insert(token) {
                return Err(format!("kill {token} has the number of another one"));
            }
            for charge in kill.charges().filter(|charge| charge.is_awaited()) {
                if !awaited.insert(charge.account) {
                    return Err(format!("{} awaits two kills", charge.account));
                }
            }
        }
        let latched: HashSet<_> = self.latched.iter().collect();
        if latched.len() != self.latched.len() {
            return Err("a latch is taken twice".into());
        }
        self.kills.reserve(ROOM);
        self.latched.reserve(ROOM);
        self.excesses.reserve(ROOM);
        self.free.reserve(ROOM);
        Ok(self)
    }

    /// Accounts whose latch is taken, with a victim that each waits for.
    pub fn latched(&self) -> impl Iterator<Item = (AccountId, ProcessId)> {
        self.latched.iter().filter_map(|account| {
            let kill = self.kills.iter().find(|kill| kill.blocks(*account))?;
            Some((*account, kill.victim))
        })
    }
}
