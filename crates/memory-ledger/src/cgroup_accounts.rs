//! Usage of limited cgroups, and when to read it again.
//!
//! No event reports the growth of a cgroup: it is read by a timer, more often the sooner its limit
//! can be exceeded. The id of a cgroup's account is derived from its path.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::account::{Account, Phase, Reading};
use crate::account_id::{CgroupId, Uid};
use crate::cgroup::{CgroupLimit, limit_of};
use crate::machine::FASTEST_FILL;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// The pause between two readings, nanoseconds: the longest bounds how late a new cgroup is found.
const PAUSE_NS: RangeInclusive<u64> = 25 * NS_PER_MS..=1_000 * NS_PER_MS;
/// Interval between two searches for cgroups, nanoseconds.
const SEARCH_NS: u64 = 1_000 * NS_PER_MS;
/// Searches take at most 1/100 of a CPU: a user that can create cgroups can create many.
const SEARCH_SHARE: u64 = 100;
/// Readings of cgroups below their soft limit take at most 1/1000 of a CPU ...
const CALM_SHARE: u64 = 1_000;
/// ... above it, 1/50 ...
const NEAR_SHARE: u64 = 50;
/// ... and on the way to the hard limit, at any rate of growth, 1/5.
const URGENT_SHARE: u64 = 4;
/// Usage counts as below the soft limit again at 15/16 of it, as for users.
const CLEAR_SHARE: u64 = 16;

/// A cgroup with a limit, and its readings.
#[derive(Clone, Debug)]
pub struct CgroupAccount {
    id: CgroupId,
    path: String,
    account: Account,
    peak_bytes: u64,
    /// Above the soft limit, or not clearly below it since.
    near: bool,
    /// Growth between the last two readings, bytes per second.
    rate: u64,
}

impl CgroupAccount {
    /// Derived from the path.
    pub fn id(&self) -> CgroupId {
        self.id
    }

    /// From the root of the hierarchy.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The limit and reading.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The highest reading, bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Time for which the hard limit cannot be exceeded, nanoseconds: at the fastest fill rate, but
    /// no more often than the CPU share of a reading allows; at the present rate, half of that
    /// time.
    fn pause_ns(&self, took_ns: u64) -> u64 {
        let left =
            self.account.limit().hard_bytes().saturating_sub(self.account.reading().used_bytes);
        let share = if self.near { NEAR_SHARE } else { CALM_SHARE };
        let fastest = ns_until(left, FASTEST_FILL).max(took_ns.saturating_mul(share));
        let present = ns_until(left, self.rate) / 2;
        let pause = fastest.min(present).max(took_ns.saturating_mul(URGENT_SHARE));
        pause.clamp(*PAUSE_NS.start(), *PAUSE_NS.end())
    }
}

fn ns_until(bytes: u64, rate: u64) -> u64 {
    let ns = u128::from(bytes) * NS_PER_SECOND / u128::from(rate.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// A cgroup that has got a limit, or has lost it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The cgroup of this path has a limit now.
    Came(String),
    /// The cgroup of this path has no limit any more: it was removed, or no pattern matches it.
    Left(String),
}

/// Result of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Usage relative to the limit.
    pub phase: Phase,
    /// The cgroup has just crossed its soft limit.
    pub crossed: bool,
}

/// The accounts of all cgroups with a limit.
#[derive(Clone, Debug)]
pub struct CgroupAccounts {
    limits: Vec<CgroupLimit>,
    /// Uids of ordinary users.
    ordinary: RangeInclusive<Uid>,
    accounts: Vec<CgroupAccount>,
    next_look_ns: u64,
    next_search_ns: u64,
}

impl CgroupAccounts {
    /// Starts without limits.
    pub fn new(ordinary: RangeInclusive<Uid>) -> Self {
        let (limits, accounts) = (Vec::new(), Vec::new());
        Self { limits, ordinary, accounts, next_look_ns: 0, next_search_ns: 0 }
    }

    /// The limits in force.
    pub fn limits(&self) -> &[CgroupLimit] {
        &self.limits
    }

    /// Changes the limits. They apply to the accounts with the next search, which is due at once.
    pub fn set_limits(&mut self, limits: Vec<CgroupLimit>) {
        self.limits = limits;
        (self.next_look_ns, self.next_search_ns) = (0, 0);
    }

    /// Sets the uids of ordinary users.
    pub fn set_ordinary(&mut self, uids: RangeInclusive<Uid>) {
        self.ordinary = uids;
        (self.next_look_ns, self.next_search_ns) = (0, 0);
    }

    /// The cgroups with a limit that were found.
    pub fn all(&self) -> &[CgroupAccount] {
        &self.accounts
    }

    /// The cgroup account of this id.
    pub fn get(&self, id: CgroupId) -> Option<&CgroupAccount> {
        self.accounts.iter().find(|it| it.id == id)
    }

    /// A search for cgroups is due.
    pub fn is_search_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_search_ns
    }

    /// Updates the accounts from `paths`, all existing cgroups, with or without a limit. Returns
    /// those that got or lost a limit.
    pub fn found(&mut self, paths: &[String]) -> Vec<Found> {
        let mut news = Vec::new();
        let (limits, ordinary) = (&self.limits, &self.ordinary);
        let mut new: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
        self.accounts.retain_mut(|it| {
            let there = new.remove(it.path.as_str());
            let limit = limit_of(limits, &it.path, ordinary).filter(|_| there);
            match limit {
                Some(limit) => it.account.limit = limit,
                None => news.push(Found::Left(it.path.clone())),
            }
            limit.is_some()
        });
        for path in new {
            let Some(limit) = limit_of(&self.limits, path, &self.ordinary) else { continue };
            let Some(id) = self.free_id(path) else { break };
            let account = Account::of_cgroup(id, limit);
            let path = path.to_owned();
            news.push(Found::Came(path.clone()));
            self.accounts.push(CgroupAccount {
                id,
                path,
                account,
                peak_bytes: 0,
                near: false,
                rate: 0,
            });
        }
        news
    }

    /// Sets the time of the next search, after one that took `took_ns`.
    pub fn searched(&mut self, now_ns: u64, took_ns: u64) {
        let pause_ns = SEARCH_NS.max(took_ns.saturating_mul(SEARCH_SHARE));
        self.next_search_ns = now_ns.saturating_add(pause_ns);
    }

    /// The id that is derived from the path, or the next free one.
    fn free_id(&self, path: &str) -> Option<CgroupId> {
        let first = crate::group::hash(path) as u16;
        let ids = (0..=u16::MAX).map(|at| CgroupId(first.wrapping_add(at)));
        ids.into_iter().find(|id| self.get(*id).is_none())
    }

    /// Records a reading of a cgroup.
    pub fn read(&mut self, id: CgroupId, reading: Reading) -> Option<Look> {
        let Reading { used_bytes, at_ns, .. } = reading;
        let it = self.accounts.iter_mut().find(|it| it.id == id)?;
        let before = it.account.reading;
        it.account.reading = reading;
        it.peak_bytes = it.peak_bytes.max(used_bytes);
        let elapsed_ns = at_ns.saturating_sub(before.at_ns);
        if elapsed_ns > 0 && before.at_ns > 0 {
            let grown = u128::from(used_bytes.saturating_sub(before.used_bytes));
            let rate = grown * NS_PER_SECOND / u128::from(elapsed_ns);
            it.rate = u64::try_from(rate).unwrap_or(u64::MAX);
        }
        let soft = it.account.limit().soft_bytes();
        let was_near = it.near;
        let clear = soft - soft / CLEAR_SHARE;
        it.near = used_bytes > soft || (was_near && used_bytes >= clear);
        Some(Look { phase: it.account.phase(), crossed: it.near && !was_near })
    }

    /// Sets the time of the next reading, after all cgroups were read in `took_ns`.
    pub fn looked(&mut self, now_ns: u64, took_ns: u64) {
        let pauses = self.accounts.iter().map(|it| it.pause_ns(took_ns));
        let pause_ns = pauses.min().unwrap_or(*PAUSE_NS.end());
        self.next_look_ns = now_ns.saturating_add(pause_ns).min(self.next_search_ns.max(now_ns));
    }

    /// Makes the next reading due at once.
    pub fn look_soon(&mut self) {
        self.next_look_ns = 0;
    }

    /// Time when the next reading is due, nanoseconds; `None`: there is no limit.
    pub fn next_look_ns(&self) -> Option<u64> {
        (!self.limits.is_empty() || !self.accounts.is_empty()).then_some(self.next_look_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account_id::AccountId;
    use crate::cgroup::CgroupPattern;
    use crate::limit::Limit;

    const MS: u64 = NS_PER_MS;
    const MIB: u64 = 1 << 20;

    fn limit(pattern: &str, mib: u64) -> CgroupLimit {
        let limit = Limit::new(mib * MIB, None).unwrap();
        CgroupLimit { pattern: CgroupPattern::new(pattern).unwrap(), limit }
    }

    fn paths(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|&path| path.to_owned()).collect()
    }

    /// A cgroup with a limit of 1000 MiB, and its id.
    fn one() -> (CgroupAccounts, CgroupId) {
        let mut accounts = CgroupAccounts::new(Uid(1000)..=Uid(2000));
        accounts.set_limits(vec![limit("/a", 1000)]);
        accounts.found(&paths(&["/a"]));
        accounts.searched(0, 0);
        let id = accounts.all()[0].id();
        (accounts, id)
    }

    fn reading(used_mib: u64, at_ns: u64) -> Reading {
        Reading { used_bytes: used_mib * MIB, dying_bytes: 0, at_ns }
    }

    /// The pause after two readings, 100 ms apart, that took `took_ns`.
    fn pause(before_mib: u64, now_mib: u64, took_ns: u64) -> u64 {
        let (mut accounts, id) = one();
        accounts.read(id, reading(before_mib, 1));
        accounts.read(id, reading(now_mib, 1 + 100 * MS));
        accounts.next_search_ns = u64::MAX;
        accounts.looked(0, took_ns);
        accounts.next_look_ns().unwrap()
    }

    #[test]
    fn cgroups_come_under_the_limit_and_leave_it() {
        let mut accounts = CgroupAccounts::new(Uid(1000)..=Uid(2000));
        assert_eq!(accounts.next_look_ns(), None, "nothing is limited");
        accounts.set_limits(vec![limit("/a/*", 1), limit("/b", 2)]);
        let came = accounts.found(&paths(&["/a/x", "/b", "/other"]));
        accounts.searched(5, 0);
        assert_eq!(came, [Found::Came("/a/x".into()), Found::Came("/b".into())]);
        assert!(!accounts.is_search_due(6) && accounts.is_search_due(5 + SEARCH_NS));
        let ids: Vec<CgroupId> = accounts.all().iter().map(CgroupAccount::id).collect();
        assert_ne!(ids[0], ids[1]);
        assert_eq!(accounts.all()[0].account().id, AccountId::Cgroup(ids[0]));
        accounts.set_limits(vec![limit("/a/*", 3)]);
        assert!(accounts.is_search_due(6));
        let left = accounts.found(&paths(&["/a/x", "/b"]));
        assert_eq!(left, [Found::Left("/b".into())]);
        assert_eq!(accounts.get(ids[0]).unwrap().account().limit().hard_bytes(), 3 * MIB);
        assert_eq!(accounts.found(&[]), [Found::Left("/a/x".into())]);
    }

    #[test]
    fn very_many_cgroups_have_as_many_ids() {
        let mut accounts = CgroupAccounts::new(Uid(1000)..=Uid(2000));
        accounts.set_limits(vec![limit("/*", 1)]);
        let all: Vec<String> = (0..500).map(|n| format!("/{n}")).collect();
        accounts.found(&all);
        let mut ids: Vec<CgroupId> = accounts.all().iter().map(CgroupAccount::id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 500);
    }

    #[test]
    fn a_warning_is_due_once_until_the_soft_limit_is_clearly_left() {
        let (mut accounts, id) = one();
        let mut crossed = |mib: u64| accounts.read(id, reading(mib, 1)).unwrap().crossed;
        assert!(!crossed(900) && crossed(901) && !crossed(999));
        assert!(!crossed(850) && !crossed(950), "15/16 of 900 MiB are 844");
        assert!(!crossed(840) && crossed(950));
        assert_eq!(accounts.read(id, reading(1001, 2)).unwrap().phase, Phase::Broken);
        assert_eq!(accounts.get(id).unwrap().peak_bytes(), 1001 * MIB);
        assert_eq!(accounts.read(CgroupId(id.0 ^ 1), reading(1, 2)), None);
    }

    #[test]
    fn measurements_are_more_frequent_near_the_limit() {
        // 6000 MiB/s could exceed the limit after 167 ms; a cheap reading is worth that.
        assert_eq!(pause(0, 0, 1000), 1000 * MIB * 1000 / FASTEST_FILL * MS + 666_666);
        assert_eq!(pause(0, 0, 500_000), 500 * MS, "a thousandth of a CPU");
        assert_eq!(pause(0, 0, 50_000_000), 1000 * MS);
        // 100 MiB in 100 ms: 400 MiB will be used in 400 ms, whatever a reading costs.
        assert_eq!(pause(500, 600, 500_000), 200 * MS);
        assert_eq!(pause(500, 600, 60 * MS), 240 * MS, "a fifth of a CPU");
        assert_eq!(pause(990, 990, 2 * MS), 100 * MS, "a fiftieth of a CPU");
        assert_eq!(pause(900, 990, 2 * MS), 25 * MS);
        assert_eq!(pause(1000, 1100, 0), 25 * MS, "broken");
    }

    #[test]
    fn slow_searches_are_rare() {
        let (mut accounts, _) = one();
        accounts.searched(0, 30 * MS);
        assert!(!accounts.is_search_due(2999 * MS) && accounts.is_search_due(3000 * MS));
    }

    #[test]
    fn a_search_counts_as_a_measurement() {
        let (mut accounts, id) = one();
        accounts.read(id, reading(0, 1));
        accounts.looked(SEARCH_NS - 10 * MS, 0);
        assert_eq!(accounts.next_look_ns(), Some(SEARCH_NS));
        accounts.looked(SEARCH_NS + MS, 0);
        assert_eq!(accounts.next_look_ns(), Some(SEARCH_NS + MS), "one that is overdue");
        accounts.look_soon();
        assert_eq!(accounts.next_look_ns(), Some(0));
    }
}
