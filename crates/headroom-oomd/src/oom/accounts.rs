//! Limits and readings of users and groups, in the ledger and in the watch that enforces the
//! limits; and the account that a process is charged to, with its size as that account counts it.

use control::oomd::{LimitLevel, SoftLimitWarning};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::limit::cleared_below;
use memory_ledger::{
    Account, AccountId, Change, Count, Latch, Ledger, Limit, NS_PER_MS, Phase, ProcessId, Reading,
    Standing, Sum, Uid,
};
use memory_watch::{
    Backend, Charge, NotifierError, Precision, ProcessSample, SlotLimit, UnarmedKills, Watch,
};

use super::control::to_ref;
use super::earlier_daemon::Origin;
use super::preferences::RulePreferences;
use crate::config::Enforcement;

/// A limit that no account reaches, pages.
const UNREACHABLE: SlotLimit =
    SlotLimit { soft_pages: i64::MAX as u64, hard_pages: i64::MAX as u64 };

/// The ledger of users and groups, and the watch that provides its readings.
pub struct Accounts {
    watch: Box<dyn Watch>,
    ledger: Ledger,
    page_bytes: u64,
    enforcement: Enforcement,
    /// Address spaces of limited users that the last scan could not charge.
    uncounted: u64,
}

impl Accounts {
    pub(super) fn new(watch: Box<dyn Watch>) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        let enforcement = Enforcement::default();
        Self { watch, ledger: Ledger::default(), page_bytes, enforcement, uncounted: 0 }
    }

    /// The source of readings and events.
    pub fn watch(&self) -> &dyn Watch {
        self.watch.as_ref()
    }

    pub(super) fn watch_mut(&mut self) -> &mut dyn Watch {
        self.watch.as_mut()
    }

    /// Limits, groups and latest readings.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Whether kills are carried out.
    pub fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    /// Takes effect in the kernel program with the next [`arm`](Self::arm) and
    /// [`restrict_unarmed_kills`](Self::restrict_unarmed_kills) of each account.
    pub(super) fn set_enforcement(&mut self, enforcement: Enforcement) {
        self.enforcement = enforcement;
    }

    /// Arms a victim: the kernel program kills this process at the hard limit. `None`, or while
    /// kills are only observed: it kills none.
    pub(super) fn arm(
        &mut self,
        account: AccountId,
        victim: Option<ProcessId>,
    ) -> Result<(), NotifierError> {
        let victim = victim.filter(|_| self.enforcement == Enforcement::Kill);
        self.watch.arm(account, victim)
    }

    /// All accounts with a limit.
    pub(super) fn ids(&self) -> Vec<AccountId> {
        self.ledger.accounts().iter().map(|account| account.id).collect()
    }

    /// The name of a group; `None` for other accounts.
    pub(super) fn group_name(&self, account: AccountId) -> Option<String> {
        self.ledger.groups().get(account).map(|group| group.name.clone())
    }

    /// The users that are charged to an account.
    pub(super) fn members(&self, account: AccountId) -> Vec<Uid> {
        match self.ledger.groups().get(account) {
            Some(group) => group.uids.clone(),
            None => account.user().into_iter().collect(),
        }
    }

    /// Updates the ledger with the watch's current reading of an account. `None`: it has no limit.
    pub(super) fn read(&mut self, account: AccountId) -> Option<Phase> {
        let usage = self.watch.usage(account)?;
        let reading = Reading {
            used_bytes: usage.used_pages() * self.page_bytes,
            dying_bytes: usage.dying_pages * self.page_bytes,
            at_ns: monotonic_ns(),
        };
        self.ledger.read(account, reading)
    }

    /// The sum of the resident sets of an account's processes. `None`: the account has no limit.
    pub(super) fn sum(&self, account: AccountId) -> Option<(Sum, Limit)> {
        let limit = self.ledger.account(account)?.limit();
        let usage = self.watch.usage(account)?;
        let bytes = |pages: u64| pages * self.page_bytes;
        let sum = Sum {
            summed_bytes: bytes(usage.summed_pages()),
            unconfirmed_bytes: bytes(usage.unconfirmed_pages),
            correction_bytes: usage.correction_pages * self.page_bytes as i64,
        };
        Some((sum, limit))
    }

    /// This many pages of any account may not count any more.
    pub(super) fn doubt_all(&mut self, pages: u64) {
        for account in self.ids() {
            self.watch.doubt(account, pages);
        }
    }

    /// Whether the account is above its soft limit, or has not cleared it.
    pub(super) fn is_near(&self, account: AccountId) -> bool {
        self.ledger.account(account).is_some_and(|account| {
            account.reading().used_bytes >= cleared_below(account.limit().soft_bytes())
        })
    }

    /// The state of the account's latch in the kernel program.
    pub(super) fn latch(&self, account: AccountId) -> Latch {
        let taken = self.watch.usage(account).is_some_and(|usage| usage.latched);
        if taken { Latch::Taken } else { Latch::Free }
    }

    /// Takes the account's latch for a victim to which the signal was sent, unless the kernel
    /// program has killed at this very moment: then its event is pending.
    pub(super) fn take_latch(&mut self, account: AccountId, victim: ProcessId) {
        match self.watch.take_latch(account) {
            Ok(true) => self.count_dying(account, victim),
            Ok(false) => {}
            Err(error) => warn_of_victim(account, &error),
        }
    }

    /// Counts the pages of a killed process as dying. The latch is taken.
    pub(super) fn count_dying(&mut self, account: AccountId, victim: ProcessId) {
        if let Err(error) = self.watch.count_dying(account, victim) {
            warn_of_victim(account, &error);
        }
    }

    /// Corrects all accounts by a scan of all processes.
    pub(super) fn reconcile(&mut self) {
        match self.watch.reconcile() {
            Ok(result) => {
                let before = std::mem::replace(&mut self.uncounted, result.uncounted);
                if before == 0
                    && let Some(what) = self.degraded()
                {
                    tracing::warn!("degraded: {what}");
                }
            }
            Err(error) => tracing::warn!(
                "cannot correct the accounts: {error}; trying again with the next scan"
            ),
        }
    }

    /// The current degradation as a sentence; `None`: all address spaces are counted.
    pub(super) fn degraded(&self) -> Option<String> {
        let uncounted = self.uncounted;
        (uncounted > 0).then(|| {
            format!(
                "{uncounted} address spaces of limited users are not counted, since the table of \
                 address spaces is full; it has the size of kernel.pid_max or kernel.threads-max \
                 at the start of headroom-oomd: restart it if these were raised since"
            )
        })
    }

    /// Without the notifier the readings are as old as the last scan. Must be called before a
    /// decision that depends on them.
    pub fn refresh_if_polling(&mut self) {
        if self.watch.backend() == Backend::ProcPolling {
            self.reconcile();
        }
    }

    /// Applies a change of limits.
    pub(super) fn apply(
        &mut self,
        change: Change,
        rules: &RulePreferences,
    ) -> Result<(), NotifierError> {
        let account = change.account;
        let (uid, group) = (account.user().map(|uid| uid.0), self.group_name(account));
        let Some(limit) = change.limit() else {
            // The ledger first: if the watch fails then, no process is killed for a limit that is
            // not in the ledger.
            self.ledger.apply(change);
            tracing::info!(uid, group, "limit cleared");
            return self.watch.clear_limit(account);
        };
        let hard_pages = limit.hard_bytes() / self.page_bytes;
        // A soft limit of less than one page is rounded up to one page.
        let soft_pages = (limit.soft_bytes() / self.page_bytes).max(1);
        self.watch.charge(account, self.charge_of(account, limit.count()))?;
        if self.enforcement == Enforcement::Observe {
            // Otherwise the kernel program could kill before `restrict_unarmed_kills` prevents it.
            self.watch.set_limit(account, UNREACHABLE)?;
            self.restrict_unarmed_kills(account, rules)?;
        }
        self.watch.set_limit(account, SlotLimit { soft_pages, hard_pages })?;
        self.restrict_unarmed_kills(account, rules)?;
        self.watch.store_memo(account, Origin::of(change.layers()).memo())?;
        self.ledger.apply(change);
        let (hard_bytes, soft_bytes) = (limit.hard_bytes(), limit.soft_bytes());
        match change.layers().grace().zip(change.layers().after_grace()) {
            Some((grace, (target, _))) => {
                let (seconds, hard_bytes) = (seconds_until(grace.until_ns), target.hard_bytes());
                tracing::info!(uid, group, hard_bytes, seconds, "limit lowered after a grace");
            }
            None => tracing::info!(uid, group, hard_bytes, soft_bytes, "limit set"),
        }
        Ok(())
    }

    fn charge_of(&self, account: AccountId, count: Count) -> Charge {
        Charge { uids: self.members(account), count }
    }

    /// Applies a change of a group's members.
    pub(super) fn regroup(
        &mut self,
        account: AccountId,
        rules: &RulePreferences,
    ) -> Result<(), NotifierError> {
        let Some(count) = self.ledger.account(account).map(|it| it.limit().count()) else {
            return Ok(());
        };
        self.watch.charge(account, self.charge_of(account, count))?;
        self.restrict_unarmed_kills(account, rules)
    }

    /// Sets whether the kernel program may kill the largest process while no victim is armed. If
    /// one of the user's processes is the daemon, or is protected by a rule, only the daemon may
    /// choose.
    pub(super) fn restrict_unarmed_kills(
        &mut self,
        account: AccountId,
        rules: &RulePreferences,
    ) -> Result<(), NotifierError> {
        let own_user = Uid(rustix::process::getuid().as_raw());
        let concerned = |uid: &Uid| *uid == own_user || rules.concern(*uid);
        let observes = self.enforcement == Enforcement::Observe;
        let kills = if observes || self.members(account).iter().any(concerned) {
            UnarmedKills::Forbidden
        } else {
            UnarmedKills::Allowed
        };
        self.watch.set_unarmed_kills(account, kills)
    }

    /// The current limit and usage of an account. `None`: it has no limit.
    pub fn standing(&mut self, account: AccountId) -> Option<Standing> {
        self.read(account)?;
        // Pages that are shared now can become private later and are charged then, so the memory
        // that sharing saves is not available to leases.
        let correction = self.watch.usage(account)?.correction_pages;
        let shared_bytes = correction.min(0).unsigned_abs() * self.page_bytes;
        let account = self.ledger.account(account)?;
        Some(Standing {
            hard_bytes: account.limit().hard_bytes(),
            soft_bytes: account.limit().soft_bytes(),
            // A victim's memory is available to leases when it is back, not before.
            used_bytes: account.reading().used_bytes + shared_bytes,
        })
    }

    /// The number of changes of an account so far. If it is the same before and after a reading,
    /// nothing changed meanwhile.
    pub fn changes(&self, account: AccountId) -> u64 {
        self.watch.usage(account).map_or(0, |usage| usage.events)
    }

    /// Sets whether an account is counted exactly, as a lease that may be the last one to fit
    /// requires. No effect if the account has no limit any more.
    pub fn set_precision(&mut self, account: AccountId, precision: Precision) {
        if self.ledger.account(account).is_none() {
            return;
        }
        if let Err(error) = self.watch.set_precision(account, precision) {
            tracing::warn!(%account, ?precision, "cannot set the precision: {error}");
        }
    }

    /// The account that a process is charged to, which may have no limit.
    pub fn account_of(&self, process: &ProcessSample) -> AccountId {
        account_of(&self.ledger, process)
    }

    /// The account of a process and the memory charged for it, bytes, if the account has a limit.
    pub fn resident(&self, process: &ProcessSample) -> Option<(AccountId, u64)> {
        match self.watch.charged(process) {
            Ok(charged) => charged.map(|it| (it.account, it.pages * self.page_bytes)),
            Err(error) => {
                tracing::warn!(pid = process.tgid, "cannot read an account: {error}");
                None
            }
        }
    }

    /// The highest usage of an account since its limit was set, bytes.
    pub(super) fn peak_bytes(&self, account: &Account) -> u64 {
        self.watch.usage(account.id).map_or(0, |usage| usage.peak_pages * self.page_bytes)
    }

    /// Whether the latest reading of an account has crossed its warning level since the last call.
    pub(super) fn crosses_warning(&mut self, account: AccountId) -> bool {
        self.ledger.crosses_warning(account)
    }

    /// The warning that an account has crossed a level of its limit.
    pub(super) fn near_limit(
        &self,
        account: AccountId,
        level: LimitLevel,
    ) -> Option<SoftLimitWarning> {
        let it = self.ledger.account(account)?;
        Some(SoftLimitWarning {
            account: to_ref(account),
            group: self.group_name(account),
            cgroup: None,
            members: self.members(account),
            level,
            used_bytes: it.reading().used_bytes,
            hard_bytes: it.limit().hard_bytes(),
            grace_s: None,
        })
    }

    /// The warning that a lowered limit will be in force after its grace. `None`: there is no
    /// grace.
    pub(super) fn lowered_limit(&self, account: AccountId) -> Option<SoftLimitWarning> {
        let layers = self.ledger.account(account)?.layers();
        let (grace, (limit, _)) = (layers.grace()?, layers.after_grace()?);
        let hard_bytes = limit.hard_bytes();
        let grace_s = Some(seconds_until(grace.until_ns));
        Some(SoftLimitWarning {
            hard_bytes,
            grace_s,
            ..self.near_limit(account, LimitLevel::Soft)?
        })
    }
}

/// The time in this many seconds, nanoseconds, CLOCK_MONOTONIC.
pub(super) fn after_seconds(seconds: u32) -> u64 {
    monotonic_ns() + u64::from(seconds) * 1000 * NS_PER_MS
}

/// Rounded up.
pub(super) fn seconds_until(until_ns: u64) -> u32 {
    let left_ns = until_ns.saturating_sub(monotonic_ns());
    left_ns.div_ceil(1000 * NS_PER_MS).try_into().unwrap_or(u32::MAX)
}

fn warn_of_victim(account: AccountId, error: &NotifierError) {
    tracing::warn!(%account, "the notifier does not know of the victim: {error}");
}

/// The memory of a process of the kinds that its account counts, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rss_bytes: u64,
    pub(super) swap_bytes: u64,
}

/// The memory of a process of these kinds.
pub(super) fn size_by(count: Count, sample: &ProcessSample, page_bytes: u64) -> Size {
    let swapped = Count { swap: true, ..Count::of([]) };
    let swap_pages = if count.swap { sample.counted_pages(swapped) } else { 0 };
    let rss_pages = sample.counted_pages(Count { swap: false, ..count });
    Size { rss_bytes: rss_pages * page_bytes, swap_bytes: swap_pages * page_bytes }
}

/// The account that a process is charged to, which may have no limit: the account of the owner of
/// its user namespace, if that is limited, otherwise that of its own uid.
pub(super) fn account_of(ledger: &Ledger, sample: &ProcessSample) -> AccountId {
    let account_of = |uid: Uid| ledger.groups().account_of(uid);
    let owners = account_of(sample.namespace_owner);
    if ledger.account(owners).is_some() { owners } else { account_of(sample.uid) }
}

#[cfg(test)]
mod tests {
    use memory_ledger::{Groups, Requester, Source};

    use super::*;

    #[test]
    fn a_process_in_a_namespace_is_charged_to_its_owner_if_that_has_a_limit() {
        let mut ledger = Ledger::default();
        ledger.set_groups(Groups::new([("students".to_owned(), vec![Uid(1001)])]));
        let user = AccountId::User(Uid(1000));
        let group = ledger.groups().account_of(Uid(1001));
        let limit = Limit::new(1 << 30, None).unwrap();
        for account in [user, group] {
            ledger.apply(ledger.plan_set(account, limit, Source::Config, Requester::Root).unwrap());
        }
        let of = |uid, namespace_owner| {
            let (uid, namespace_owner) = (Uid(uid), Uid(namespace_owner));
            let sample = ProcessSample { uid, namespace_owner, ..ProcessSample::default() };
            account_of(&ledger, &sample)
        };
        assert_eq!((of(1000, 1000), of(100_005, 1000)), (user, user));
        assert_eq!(of(100_005, 1001), group);
        assert_eq!(of(100_005, 1002), AccountId::User(Uid(100_005)), "its owner has none");
        assert_eq!(of(1000, 0), user);
    }

    #[test]
    fn a_process_is_as_large_as_its_limit_counts() {
        let sample = ProcessSample {
            anon_pages: 1,
            shmem_pages: 20,
            swap_pages: 300,
            file_pages: 4000,
            ..ProcessSample::default()
        };
        let size = |count, page_bytes| {
            let Size { rss_bytes, swap_bytes } = size_by(count, &sample, page_bytes);
            (rss_bytes, swap_bytes)
        };
        let of = |names: &[&str]| size(Count::of(names.iter().copied()), 1);
        assert_eq!(size(Count::default(), 2), (42, 600));
        assert_eq!(of(&["anon", "file"]), (4001, 0));
        assert_eq!(of(&["swap"]), (0, 300));
    }
}
