//! All accounts together.

use crate::account::{Account, Phase, Reading};
use crate::authority::{Asker, Change, Layers, Refusal, Source};
use crate::limit::Limit;
use crate::process::Process;
use crate::verdict::{Choice, NoVictim, Snapshot, Verdict, choose_for, verdict};

/// The limited users.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// By uid, ascending.
    accounts: Vec<Account>,
}

impl Ledger {
    /// All accounts by uid.
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    fn position(&self, uid: u32) -> Result<usize, usize> {
        self.accounts.binary_search_by_key(&uid, |account| account.uid)
    }

    /// A limited user's account.
    pub fn account(&self, uid: u32) -> Option<&Account> {
        self.position(uid).ok().map(|at| &self.accounts[at])
    }

    /// A limited user's account, to be changed.
    pub fn account_mut(&mut self, uid: u32) -> Option<&mut Account> {
        self.position(uid).ok().map(|at| &mut self.accounts[at])
    }

    fn layers(&self, uid: u32) -> Layers {
        self.account(uid).map(|account| account.layers).unwrap_or_default()
    }

    /// What setting a limit would change, if `asker` may.
    pub fn plan_set(
        &self,
        uid: u32,
        limit: Limit,
        source: Source,
        asker: Asker,
    ) -> Result<Change, Refusal> {
        Ok(Change { uid, layers: self.layers(uid).with(uid, limit, source, asker)? })
    }

    /// What clearing a limit would change, if `asker` may.
    pub fn plan_clear(&self, uid: u32, asker: Asker) -> Result<Change, Refusal> {
        Ok(Change { uid, layers: self.layers(uid).without(uid, asker)? })
    }

    /// What a new configuration would change: `config` says what it says of single users (once each),
    /// `everyone` what it says of all others. Only those accounts that something is or was said of; a
    /// user that nobody knew of before has to be brought in with [`plan_default`](Ledger::plan_default).
    /// First those that end or shrink, as they make room.
    pub fn plan_reload(&self, config: &[(u32, Limit)], everyone: Option<Limit>) -> Vec<Change> {
        let known = self.accounts.iter().map(|account| account.uid);
        let mut uids: Vec<u32> = known.chain(config.iter().map(|(uid, _)| *uid)).collect();
        uids.sort_unstable();
        uids.dedup();
        let plan = |uid: u32| {
            let before = self.layers(uid);
            let said = config.iter().find(|(of, _)| *of == uid).map(|(_, limit)| *limit);
            let was_everyones = before.layer(Source::Everyone).is_some();
            let layers = before.configured(said, everyone.filter(|_| was_everyones));
            (layers != before).then_some(Change { uid, layers })
        };
        let mut changes: Vec<Change> = uids.into_iter().filter_map(plan).collect();
        changes.sort_by_key(|change| change.limit().map_or(0, |limit| limit.hard_bytes()));
        changes
    }

    /// What bringing an ordinary user under everybody's limit would change. `None`: it is already.
    pub fn plan_default(&self, uid: u32, everyone: Limit) -> Option<Change> {
        let before = self.layers(uid);
        let layers = before.configured(before.layer(Source::Config), Some(everyone));
        (layers != before).then_some(Change { uid, layers })
    }

    /// What letting an ordinary user go would change that is gone: nothing is said of it but what is
    /// said of everyone. `None`: there is more.
    pub fn plan_forget(&self, uid: u32) -> Option<Change> {
        let layers = self.layers(uid);
        let gone = layers.configured(None, None);
        let only_everyones = layers.layer(Source::Everyone).is_some()
            && layers.layer(Source::Config).is_none()
            && gone.effective().is_none();
        only_everyones.then_some(Change { uid, layers: gone })
    }

    /// Puts a change into force. A victim in flight is still awaited under the new limit; when the
    /// limit is gone, so is the account.
    pub fn apply(&mut self, change: Change) {
        let Change { uid, layers } = change;
        match (self.position(uid), layers.effective()) {
            (Ok(at), Some((limit, source))) => {
                let account = &mut self.accounts[at];
                (account.layers, account.limit, account.source) = (layers, limit, source);
            }
            (Err(at), Some((limit, source))) => {
                let reading = Reading::default();
                let (in_flight, stuck) = (None, Vec::new());
                let account = Account { uid, layers, limit, source, reading, in_flight, stuck };
                self.accounts.insert(at, account);
            }
            (Ok(at), None) => drop(self.accounts.remove(at)),
            (Err(_), None) => {}
        }
    }

    /// Takes a fresh reading of a user's account; says where it stands now.
    pub fn read(&mut self, uid: u32, reading: Reading) -> Option<Phase> {
        let account = self.account_mut(uid)?;
        account.reading = reading;
        Some(account.phase())
    }

    /// Who of this user dies now.
    pub fn decide(&self, uid: u32, processes: &[Process], protected: &[u32]) -> Verdict {
        verdict(&Snapshot { accounts: &self.accounts, processes, protected }, uid)
    }

    /// Who of this user would die.
    pub fn prepare(
        &self,
        uid: u32,
        processes: &[Process],
        protected: &[u32],
    ) -> Option<Result<Choice, NoVictim>> {
        self.account(uid).map(|account| choose_for(account, processes, protected))
    }

    /// When something has to be looked at again though nothing happens, nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.accounts.iter().filter_map(Account::next_deadline_ns).min()
    }
}
