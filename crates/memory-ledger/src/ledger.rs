//! All accounts together.

use std::collections::BTreeMap;

use crate::account::{Account, AccountId, Phase, Reading, Uid, Warned};
use crate::group::Groups;
use crate::limit::Limit;
use crate::precedence::{Change, Grace, LimitLayers, Refusal, Requester, Source};

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

    /// The change with a grace until `until_ns` if it lowers the limit in force below the latest
    /// reading; `None`: without a grace. A user's request does not prolong a grace. An account
    /// without a limit has none: nothing was permitted to it before.
    pub fn with_grace(
        &self,
        change: Change,
        until_ns: Option<u64>,
        requester: Requester,
    ) -> Change {
        let grace = self.account(change.account).and_then(|account| {
            let (target, _) = change.layers.after_grace()?;
            let lowered = target.hard_bytes() < account.limit.hard_bytes()
                && target.hard_bytes() < account.reading.used_bytes;
            let until_ns = match (account.layers.grace(), requester) {
                (Some(grace), Requester::User(_)) => grace.until_ns,
                _ => until_ns?,
            };
            lowered.then_some(Grace { limit: account.limit, until_ns })
        });
        Change { layers: change.layers.with_grace(grace), ..change }
    }

    /// The change of a first limit with this grace, if it is below the usage and below the limit
    /// of the grace: the one that held before there was a ledger.
    pub fn with_first_grace(&self, change: Change, grace: Grace, used_bytes: u64) -> Change {
        let is_first = self.account(change.account).is_none();
        let grace = change.layers.after_grace().and_then(|(target, _)| {
            let lowered = target.hard_bytes() < grace.limit.hard_bytes().min(used_bytes);
            (is_first && lowered).then_some(grace)
        });
        Change { layers: change.layers.with_grace(grace), ..change }
    }

    /// The change that ends an account's grace. `None`: it has none, or it goes on.
    pub fn plan_end_of_grace(&self, id: AccountId, now_ns: u64) -> Option<Change> {
        let account = self.account(id)?;
        let (grace, (target, _)) = (account.layers.grace()?, account.layers.after_grace()?);
        let over = now_ns >= grace.until_ns || account.reading.used_bytes <= target.hard_bytes();
        over.then_some(Change { account: id, layers: account.layers.with_grace(None) })
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
                let (reading, warned) = (Reading::default(), Warned::No);
                let account = Account { id, layers, limit, source, reading, warned };
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

    /// Whether the latest reading of an account has crossed its warning level since the last call.
    pub fn crosses_warning(&mut self, id: AccountId) -> bool {
        self.position(id).is_ok_and(|at| self.accounts[at].crosses_warning())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Uid = Uid(1000);
    const ACCOUNT: AccountId = AccountId::User(ALICE);

    fn mib(mib: u64) -> Limit {
        Limit::new(mib << 20, None).unwrap()
    }

    fn set(ledger: &Ledger, limit: u64, requester: Requester) -> Change {
        ledger.plan_set(ACCOUNT, mib(limit), Source::Runtime, requester).unwrap()
    }

    fn using(limit: u64, used: u64) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.apply(set(&ledger, limit, Requester::Root));
        ledger.read(ACCOUNT, Reading { used_bytes: used << 20, ..Reading::default() });
        ledger
    }

    #[test]
    fn an_account_crosses_its_warning_level_once_until_its_usage_has_fallen() {
        let mut ledger = Ledger::default();
        let limit = mib(100).warning_at(64 << 20).unwrap();
        let change = ledger.plan_set(ACCOUNT, limit, Source::Config, Requester::Root);
        ledger.apply(change.unwrap());
        let mut crosses = |used_mib: u64| {
            ledger.read(ACCOUNT, Reading { used_bytes: used_mib << 20, ..Reading::default() });
            ledger.crosses_warning(ACCOUNT)
        };
        let usage = [64, 65, 66, 61, 65, 59, 65, 59, 95, 80];
        let crossed = usage.map(&mut crosses);
        let expected = [false, true, false, false, false, false, true, false, false, false];
        assert_eq!(crossed, expected, "not above the soft limit, which warns by itself");
    }

    #[test]
    fn a_limit_below_the_usage_takes_effect_after_its_grace_or_once_the_usage_is_below_it() {
        let mut ledger = using(500, 250);
        let change = set(&ledger, 150, Requester::Root);
        ledger.apply(ledger.with_grace(change, Some(60), Requester::Root));
        let limit = |ledger: &Ledger| ledger.account(ACCOUNT).unwrap().limit();
        assert_eq!(limit(&ledger), mib(500));
        assert_eq!(ledger.plan_end_of_grace(ACCOUNT, 59), None);
        let mut later = ledger.clone();
        later.apply(later.plan_end_of_grace(ACCOUNT, 60).unwrap());
        assert_eq!(limit(&later), mib(150));
        ledger.read(ACCOUNT, Reading { used_bytes: 150 << 20, ..Reading::default() });
        ledger.apply(ledger.plan_end_of_grace(ACCOUNT, 1).unwrap());
        assert_eq!(limit(&ledger), mib(150));
    }

    #[test]
    fn a_raise_a_first_limit_and_one_above_the_usage_have_no_grace() {
        for (in_force, used, new) in [(100, 250, 300), (500, 250, 300)] {
            let ledger = using(in_force, used);
            let change = set(&ledger, new, Requester::Root);
            let change = ledger.with_grace(change, Some(60), Requester::Root);
            assert_eq!(change.limit(), Some(mib(new)), "{in_force} {used}");
        }
        let free = Ledger::default();
        let change = free.with_grace(set(&free, 1, Requester::Root), Some(60), Requester::Root);
        assert_eq!(change.layers().grace(), None);
    }

    #[test]
    fn the_first_limits_of_a_ledger_have_a_grace_above_the_limit_before() {
        let of = |before: Limit, used_mib: u64| {
            let grace = Grace { limit: before, until_ns: 60 };
            let mut ledger = Ledger::default();
            let change = set(&ledger, 150, Requester::Root);
            ledger.apply(ledger.with_first_grace(change, grace, used_mib << 20));
            ledger.account(ACCOUNT).unwrap().limit()
        };
        assert_eq!(of(Limit::NONE, 250), Limit::NONE);
        assert_eq!(of(mib(500), 250), mib(500));
        assert_eq!([of(mib(500), 150), of(mib(150), 250), of(mib(100), 250)], [mib(150); 3]);
    }

    #[test]
    fn a_user_cannot_prolong_its_grace() {
        let mut ledger = using(500, 250);
        let lowered = set(&ledger, 150, Requester::Root);
        ledger.apply(ledger.with_grace(lowered, Some(60), Requester::Root));
        let own = Requester::User(ALICE);
        ledger.apply(ledger.with_grace(set(&ledger, 100, own), Some(110), own));
        let grace = Grace { limit: mib(500), until_ns: 60 };
        assert_eq!(ledger.account(ACCOUNT).unwrap().layers().grace(), Some(grace));
        let lowered = set(&ledger, 200, Requester::Root);
        let again = ledger.with_grace(lowered, Some(110), Requester::Root);
        assert_eq!(again.layers().grace().unwrap().until_ns, 110, "root may");
        let config = ledger.plan_reload(&[(ACCOUNT, mib(90))], None).pop().unwrap();
        assert!(config.layers().grace().is_some());
        let at_once = ledger.with_grace(config, None, Requester::Root);
        assert_eq!(at_once.layers().grace(), None);
    }
}
