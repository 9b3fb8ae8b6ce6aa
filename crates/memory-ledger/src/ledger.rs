//! All accounts together.

use crate::account::{Account, Phase, Reading};
use crate::account_id::{AccountId, Uid};
use crate::group::Groups;
use crate::limit::Limit;
use crate::precedence::{Change, LimitLayers, Refusal, Requester, Source};

/// The limited users and groups.
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

    /// The account of one that is limited.
    pub fn account(&self, id: AccountId) -> Option<&Account> {
        self.position(id).ok().map(|at| &self.accounts[at])
    }

    /// Who shares an account.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Changes with each change of a limit or of the groups.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Exchanges the groups. To be called before [`plan_reload`](Ledger::plan_reload), which lets
    /// go of accounts that their users have no more.
    pub fn set_groups(&mut self, groups: Groups) {
        self.groups = groups;
        self.version += 1;
    }

    /// A group's account must have a group, and who is in one has no account of its own.
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

    /// What setting a limit would change, if `requester` may.
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

    /// What clearing a limit would change, if `requester` may.
    pub fn plan_clear(&self, account: AccountId, requester: Requester) -> Result<Change, Refusal> {
        self.check_group(account, requester)?;
        Ok(Change { account, layers: self.layers(account).without(account, requester)? })
    }

    /// What a new configuration would change: `config` says what it says of single users and groups
    /// (once each), `default` what it says of all others. Only those accounts that something is or
    /// was said of; a user that nobody knew of before has to be brought in with
    /// [`plan_default`](Ledger::plan_default). First those that end or shrink, as they make room.
    pub fn plan_reload(
        &self,
        config: &[(AccountId, Limit)],
        default: Option<Limit>,
    ) -> Vec<Change> {
        let known = self.accounts.iter().map(|account| account.id);
        let mut accounts: Vec<AccountId> = known.chain(config.iter().map(|(id, _)| *id)).collect();
        accounts.sort_unstable();
        accounts.dedup();
        let plan = |account: AccountId| {
            let before = self.layers(account);
            let said = config.iter().find(|(of, _)| *of == account).map(|(_, limit)| *limit);
            let had_default = before.layer(Source::Default).is_some();
            // Who has joined a group leaves all that was said of it alone behind, and so does a
            // group that is no more.
            let ended = match account {
                AccountId::User(uid) => self.groups.of(uid).is_some(),
                AccountId::Group(_) => self.groups.get(account).is_none(),
                AccountId::Cgroup(_) => false,
            };
            let layers = if ended {
                LimitLayers::default()
            } else {
                before.configured(said, default.filter(|_| had_default))
            };
            (layers != before).then_some(Change { account, layers })
        };
        let mut changes: Vec<Change> = accounts.into_iter().filter_map(plan).collect();
        changes.sort_by_key(|change| change.limit().map_or(0, |limit| limit.hard_bytes()));
        changes
    }

    /// What bringing an ordinary user under everybody's limit would change. `None`: it is already,
    /// or shares a group's.
    pub fn plan_default(&self, uid: Uid, default: Limit) -> Option<Change> {
        if !uid.is_limitable() || self.groups.of(uid).is_some() {
            return None;
        }
        let account = AccountId::User(uid);
        let before = self.layers(account);
        let layers = before.configured(before.layer(Source::Config), Some(default));
        (layers != before).then_some(Change { account, layers })
    }

    /// What letting an ordinary user go would change that is gone: nothing is said of it but what
    /// is said of every user. `None`: there is more.
    pub fn plan_forget(&self, uid: Uid) -> Option<Change> {
        let account = AccountId::User(uid);
        let layers = self.layers(account);
        let gone = layers.configured(None, None);
        let only_default = layers.layer(Source::Default).is_some()
            && layers.layer(Source::Config).is_none()
            && gone.effective().is_none();
        only_default.then_some(Change { account, layers: gone })
    }

    /// Puts a change into force. When the limit is gone, so is the account.
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

    /// Takes a fresh reading of an account; says where it stands now.
    pub fn read(&mut self, id: AccountId, reading: Reading) -> Option<Phase> {
        let at = self.position(id).ok()?;
        let account = &mut self.accounts[at];
        account.reading = reading;
        Some(account.phase())
    }
}
