//! All accounts together.

use std::collections::BTreeMap;

use crate::account::{Account, Phase, Reading};
use crate::account_id::{AccountId, Uid};
use crate::group::Groups;
use crate::limit::Limit;
use crate::precedence::{Change, LimitLayers, Refusal, Requester, Source};

/// Limited users and groups.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// By id, ascending.
    accounts: Vec<Account>,
    groups: Groups,
    version: u64,
}

impl Ledger {
    /// All accounts by id.
    pub fn accounts(&self) -> &[Account] {
        &self.accounts
    }

    fn position(&self, id: AccountId) -> Result<usize, usize> {
        self.accounts.binary_search_by_key(&id, |account| account.id)
    }

    /// The account with this id, if it is limited.
    pub fn account(&self, id: AccountId) -> Option<&Account> {
        self.position(id).ok().map(|at| &self.accounts[at])
    }

    /// The groups of users that share an account.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Incremented at each change of a limit or of the groups.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Replaces the groups. To be called before [`plan_reload`](Ledger::plan_reload), which removes
    /// accounts of users that have joined a group.
    pub fn set_groups(&mut self, groups: Groups) {
        self.groups = groups;
        self.version += 1;
    }

    /// Refuses an account of a group that does not exist, and an account of its own for a user in a
    /// group.
    fn check_group(&self, account: AccountId, requester: Requester) -> Result<(), Refusal> {
        match account {
            AccountId::User(uid) => match self.groups.of(uid) {
                Some(group) => Err(Refusal::InGroup { uid, group: group.name.clone() }),
                None => Ok(()),
            },
            AccountId::Group(_) => match (self.groups.get(account), requester) {
                (None, _) => Err(Refusal::NoGroup),
                (Some(_), Requester::Root) => Ok(()),
                (Some(group), Requester::User(requester)) => {
                    Err(Refusal::Groups { requester, group: group.name.clone() })
                }
            },
            AccountId::Cgroup(_) => Err(Refusal::Cgroup),
        }
    }

    fn layers(&self, account: AccountId) -> LimitLayers {
        self.account(account).map(|account| account.layers).unwrap_or_default()
    }

    /// The change of setting a limit, if `requester` is allowed to.
    pub fn plan_set(
        &self,
        account: AccountId,
        limit: Limit,
        source: Source,
        requester: Requester,
    ) -> Result<Change, Refusal> {
        self.check_group(account, requester)?;
        Ok(Change {
            account,
            layers: self.layers(account).with(account, limit, source, requester)?,
        })
    }

    /// The change of clearing a limit, if `requester` is allowed to.
    pub fn plan_clear(&self, account: AccountId, requester: Requester) -> Result<Change, Refusal> {
        self.check_group(account, requester)?;
        Ok(Change { account, layers: self.layers(account).without(account, requester)? })
    }

    /// The changes of a new configuration: `config` has the limits of single users and groups (one
    /// each), `default` that of all others. Considers only accounts that have or get a limit; a
    /// user without an account has to be added with [`plan_default`](Ledger::plan_default). Limits
    /// that are removed or lowered come first, because they make room.
    pub fn plan_reload(
        &self,
        config: &[(AccountId, Limit)],
        default: Option<Limit>,
    ) -> Vec<Change> {
        let configured: BTreeMap<AccountId, Limit> = config.iter().rev().copied().collect();
        let known = self.accounts.iter().map(|account| account.id);
        let mut accounts: Vec<AccountId> = known.chain(config.iter().map(|(id, _)| *id)).collect();
        accounts.sort_unstable();
        accounts.dedup();
        let plan = |account: AccountId| {
            let before = self.layers(account);
            let own = configured.get(&account).copied();
            let had_default = before.layer(Source::Default).is_some();
            // A user that has joined a group loses all limits of its own, and a group that was
            // removed loses its limits as well.
            let ended = match account {
                AccountId::User(uid) => self.groups.of(uid).is_some(),
                AccountId::Group(_) => self.groups.get(account).is_none(),
                AccountId::Cgroup(_) => false,
            };
            let layers = if ended {
                LimitLayers::default()
            } else {
                before.configured(own, default.filter(|_| had_default))
            };
            (layers != before).then_some(Change { account, layers })
        };
        let mut changes: Vec<Change> = accounts.into_iter().filter_map(plan).collect();
        changes.sort_by_key(|change| change.limit().map_or(0, |limit| limit.hard_bytes()));
        changes
    }

    /// The change of applying the default limit to an ordinary user. `None`: the user has it
    /// already, or shares the account of a group.
    pub fn plan_default(&self, uid: Uid, default: Limit) -> Option<Change> {
        if !uid.is_limitable() || self.groups.of(uid).is_some() {
            return None;
        }
        let account = AccountId::User(uid);
        let before = self.layers(account);
        let layers = before.configured(before.layer(Source::Config), Some(default));
        (layers != before).then_some(Change { account, layers })
    }

    /// The change of removing an ordinary user without processes that has only the default limit.
    /// `None`: the user has another limit.
    pub fn plan_forget(&self, uid: Uid) -> Option<Change> {
        let account = AccountId::User(uid);
        let layers = self.layers(account);
        let gone = layers.configured(None, None);
        let only_default = layers.layer(Source::Default).is_some()
            && layers.layer(Source::Config).is_none()
            && gone.effective().is_none();
        only_default.then_some(Change { account, layers: gone })
    }

    /// Applies a change. An account without a limit is removed.
    pub fn apply(&mut self, change: Change) {
        let Change { account: id, layers } = change;
        self.version += 1;
        match (self.position(id), layers.effective()) {
            (Ok(at), Some((limit, source))) => {
                let account = &mut self.accounts[at];
                (account.layers, account.limit, account.source) = (layers, limit, source);
            }
            (Err(at), Some((limit, source))) => {
                let reading = Reading::default();
                let account = Account { id, layers, limit, source, reading };
                self.accounts.insert(at, account);
            }
            (Ok(at), None) => drop(self.accounts.remove(at)),
            (Err(_), None) => {}
        }
    }

    /// Records a reading of an account; returns its phase.
    pub fn read(&mut self, id: AccountId, reading: Reading) -> Option<Phase> {
        let at = self.position(id).ok()?;
        let account = &mut self.accounts[at];
        account.reading = reading;
        Some(account.phase())
    }
}
