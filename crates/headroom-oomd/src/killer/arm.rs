//! Above the soft limit a victim is kept ready.

use memory_ledger::{AccountId, Choice, NoVictim, ProcessId, Uid};
use memory_watch::ProcessSample;
use reclaim::{Holdings, Identity, OpenError, Victim};

use super::Killer;

/// How often another victim is looked for when the chosen one is gone before it is pinned.
const TRIES: u32 = 3;
/// The soft limit counts as left below 15/16 of it, as for the notifier, which tells of the next
/// crossing only after that.
const CLEAR_SHARE: u64 = 16;

/// A victim with its pidfd open.
pub(super) struct Armed {
    pub(super) victim: Victim,
    pub(super) choice: Choice,
    /// What its death will not give back, in words.
    pub(super) kept: String,
}

/// Why nobody is armed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unarmed {
    #[error(transparent)]
    Nobody(#[from] NoVictim),
    #[error("the chosen process cannot be pinned: {0}")]
    Open(#[from] OpenError),
}

/// A process as `reclaim` names it.
pub(super) fn identity(id: ProcessId, owner: Uid) -> Identity {
    let sample = ProcessSample { start_time_ns: id.start_time, ..ProcessSample::default() };
    Identity { pid: id.pid, uid: owner.0, start_ticks: sample.start_ticks() }
}

/// What a process's death would not give back. To be asked before it is killed.
pub(super) fn kept_by(pid: u32) -> String {
    Holdings::of(pid).map(|holdings| holdings.kept()).unwrap_or_default()
}

impl Killer {
    /// The user is above its soft limit, or has not left it clearly behind.
    pub(super) fn is_near(&self, account: AccountId) -> bool {
        self.ledger.account(account).is_some_and(|account| {
            let soft = account.limit().soft_bytes();
            account.reading().used_bytes >= soft - soft / CLEAR_SHARE
        })
    }

    /// Keeps a victim ready for a user near its limit, and none for others.
    pub(super) fn arm_or_disarm(&mut self, account: AccountId) {
        if !self.is_near(account) {
            self.disarm(account);
            self.helpless.remove(&account);
            return;
        }
        self.scan_soon();
        if let Err(why) = self.try_arm(account) {
            tracing::debug!(%account, "nobody to arm: {why}");
        }
    }

    /// Chooses the user's victim anew, pins it and tells the watch. On failure nobody is armed.
    pub(super) fn try_arm(&mut self, account: AccountId) -> Result<(), Unarmed> {
        let mut failed = None;
        for _ in 0..TRIES {
            self.look_at_processes();
            self.hear_own_words(account);
            let choice = match self.ledger.prepare(account, &self.processes, &self.protected) {
                Some(Ok(choice)) => choice,
                Some(Err(nobody)) => {
                    self.disarm(account);
                    return Err(nobody.into());
                }
                None => {
                    self.disarm(account);
                    return Err(NoVictim::NoProcess.into());
                }
            };
            let id = choice.victim.id;
            if let Some(armed) = self.armed.get_mut(&account)
                && armed.choice.victim.id == id
                && !armed.victim.has_exited()
            {
                armed.choice = choice;
                armed.kept = kept_by(id.pid);
                return Ok(());
            }
            match Victim::open_as(identity(id, choice.victim.uid)) {
                Ok(victim) => {
                    if let Err(error) = self.watch.arm(account, Some(id)) {
                        tracing::warn!(
                            %account,
                            "cannot arm the notifier: {error}; the daemon will kill"
                        );
                    }
                    self.armed.insert(account, Armed { victim, choice, kept: kept_by(id.pid) });
                    return Ok(());
                }
                Err(error) => failed = Some(error),
            }
        }
        self.disarm(account);
        Err(failed.map_or(NoVictim::NoProcess.into(), Unarmed::Open))
    }

    /// Nobody is armed, here or in the notifier.
    fn disarm(&mut self, account: AccountId) {
        self.armed.remove(&account);
        if self.ledger.account(account).is_some()
            && let Err(error) = self.watch.arm(account, None)
        {
            tracing::warn!(%account, "cannot disarm the notifier: {error}");
        }
    }
}
