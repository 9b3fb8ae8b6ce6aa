//! All accounts together.

use crate::account::{Account, Phase, Reading};
use crate::authority::{Asker, Change, Layers, Refusal, Source};
use crate::cgroup::is_cgroup;
use crate::group::{Groups, is_group};
use crate::limit::Limit;
use crate::process::Process;
use crate::verdict::{Choice, NoVictim, Snapshot, Verdict, choose_for, verdict};

/// The limited users and groups. Where a uid is asked for, a group's number stands for its members.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// By uid, ascending.
    accounts: Vec<Account>,
    groups: Groups,
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

    /// Who shares an account.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Exchanges the groups. To be called before [`plan_reload`](Ledger::plan_reload), which lets go of accounts that
    /// their users have no more.
    pub fn set_groups(&mut self, groups: Groups) {
        self.groups = groups;
    }

    /// A group's account must have a group, and who is in one has no account of its own.
    fn check_group(&self, uid: u32, asker: Asker) -> Result<(), Refusal> {
        match (self.groups.of(uid), self.groups.get(uid), asker) {
            (Some(group), ..) => Err(Refusal::InGroup { uid, group: group.name.clone() }),
            (None, Some(group), Asker::User(asker)) => {
                Err(Refusal::Groups { asker, group: group.name.clone() })
            }
            (None, None, _) if is_cgroup(uid) => Err(Refusal::Cgroup),
            (None, None, _) if is_group(uid) && uid != u32::MAX => Err(Refusal::NoGroup(uid)),
            _ => Ok(()),
        }
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
        self.check_group(uid, asker)?;
        Ok(Change { uid, layers: self.layers(uid).with(uid, limit, source, asker)? })
    }

    /// What clearing a limit would change, if `asker` may.
    pub fn plan_clear(&self, uid: u32, asker: Asker) -> Result<Change, Refusal> {
        self.check_group(uid, asker)?;
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
            // Who has joined a group leaves all that was said of it alone behind, and so does a group that is no more.
            let joined = self.groups.of(uid).is_some();
            let ended = is_group(uid) && self.groups.get(uid).is_none();
            let layers = match joined || ended {
                true => Layers::default(),
                false => before.configured(said, everyone.filter(|_| was_everyones)),
            };
            (layers != before).then_some(Change { uid, layers })
        };
        let mut changes: Vec<Change> = uids.into_iter().filter_map(plan).collect();
        changes.sort_by_key(|change| change.limit().map_or(0, |limit| limit.hard_bytes()));
        changes
    }

    /// What bringing an ordinary user under everybody's limit would change. `None`: it is already, or shares a group's.
    pub fn plan_default(&self, uid: u32, everyone: Limit) -> Option<Change> {
        if is_group(uid) || is_cgroup(uid) || self.groups.of(uid).is_some() {
            return None;
        }
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
