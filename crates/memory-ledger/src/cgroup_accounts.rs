//! What limited cgroups have, and when to look at them again.
//!
//! Nobody tells when a cgroup grows: it is looked at by a timer, the more often the sooner its
//! limit can be broken. The id of a cgroup's account follows from its path.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::account::{Account, Phase, Reading};
use crate::account_id::{CgroupId, Uid};
use crate::cgroup::{CgroupLimit, limit_of};
use crate::machine::FASTEST_FILL;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// The pause between two looks, nanoseconds: the longest is how late a cgroup that has just come is
/// found.
const PAUSE_NS: RangeInclusive<u64> = 25 * NS_PER_MS..=1_000 * NS_PER_MS;
/// How often cgroups are looked for, nanoseconds.
const SEARCH_NS: u64 = 1_000 * NS_PER_MS;
/// Searches take a hundredth of a CPU at the most: who can make cgroups can make many.
const SEARCH_SHARE: u64 = 100;
/// Looks at cgroups below their soft limit take this share of a CPU at the most: a thousandth ...
const CALM_SHARE: u64 = 1_000;
/// ... above it, a fiftieth ...
const NEAR_SHARE: u64 = 50;
/// ... and on the way to the hard one, whatever the rate, a fifth.
const URGENT_SHARE: u64 = 4;
/// The soft limit counts as left below 15/16 of it, as for users.
const CLEAR_SHARE: u64 = 16;

/// A cgroup with a limit.
#[derive(Clone, Debug)]
pub struct CgroupAccount {
    id: CgroupId,
    path: String,
    account: Account,
    peak_bytes: u64,
    /// Above the soft limit, or not clearly below it since.
    near: bool,
    /// Growth between the last two looks, bytes a second.
    rate: u64,
}

impl CgroupAccount {
    /// Follows from its path.
    pub fn id(&self) -> CgroupId {
        self.id
    }

    /// From the root of the hierarchy.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its limit and reading.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The most that was ever read, bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// How long the hard limit will not be broken, nanoseconds: at the fastest that programs can
    /// fill, but no more often than a look is worth; at the present rate, half of it.
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

/// A cgroup that has come under a limit, or from under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It has one now.
    Came(String),
    /// It has none any more: it is gone, or nothing is said of it.
    Left(String),
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Where the cgroup stands.
    pub phase: Phase,
    /// It has just crossed its soft limit.
    pub crossed: bool,
}

/// All of them.
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
    /// Nothing is limited yet.
    pub fn new(ordinary: RangeInclusive<Uid>) -> Self {
        let (limits, accounts) = (Vec::new(), Vec::new());
        Self { limits, ordinary, accounts, next_look_ns: 0, next_search_ns: 0 }
    }

    /// Which limits there are.
    pub fn limits(&self) -> &[CgroupLimit] {
        &self.limits
    }

    /// Other limits from now on. Accounts go by them with the next search, which is due.
    pub fn set_limits(&mut self, limits: Vec<CgroupLimit>) {
        self.limits = limits;
        (self.next_look_ns, self.next_search_ns) = (0, 0);
    }

    /// These uids are ordinary users.
    pub fn set_ordinary(&mut self, uids: RangeInclusive<Uid>) {
        self.ordinary = uids;
        (self.next_look_ns, self.next_search_ns) = (0, 0);
    }

    /// Those that were found.
    pub fn all(&self) -> &[CgroupAccount] {
        &self.accounts
    }

    /// One by its id.
    pub fn get(&self, id: CgroupId) -> Option<&CgroupAccount> {
        self.accounts.iter().find(|it| it.id == id)
    }

    /// Cgroups are to be looked for.
    pub fn is_search_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_search_ns
    }

    /// These are there, among others perhaps of which nothing is said. Says who has come and who
    /// has left.
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

    /// A search has ended, which took so long: when is the next one due?
    pub fn searched(&mut self, now_ns: u64, took_ns: u64) {
        let pause_ns = SEARCH_NS.max(took_ns.saturating_mul(SEARCH_SHARE));
        self.next_search_ns = now_ns.saturating_add(pause_ns);
    }

    /// The id that follows from the path, or the next one that no other has.
    fn free_id(&self, path: &str) -> Option<CgroupId> {
        let first = crate::group::hash(path) as u16;
        let ids = (0..=u16::MAX).map(|at| CgroupId(first.wrapping_add(at)));
        ids.into_iter().find(|id| self.get(*id).is_none())
    }

    /// Takes a reading of a cgroup.
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

    /// All have been read, which took so long: when is the next look due?
    pub fn looked(&mut self, now_ns: u64, took_ns: u64) {
        let pauses = self.accounts.iter().map(|it| it.pause_ns(took_ns));
        let pause_ns = pauses.min().unwrap_or(*PAUSE_NS.end());
        self.next_look_ns = now_ns.saturating_add(pause_ns).min(self.next_search_ns.max(now_ns));
    }

    /// A look is due at once.
    pub fn look_soon(&mut self) {
        self.next_look_ns = 0;
    }

    /// When the next look is due, nanoseconds; `None`: nothing is limited.
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

    /// One of 1000 MiB, and its id.
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

    /// The pause after two readings, 100 ms apart, that took so long.
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
    fn looks_are_as_frequent_as_the_limit_is_near() {
        // 6000 MiB/s could break it after 167 ms; a cheap look is worth that.
        assert_eq!(pause(0, 0, 1000), 1000 * MIB * 1000 / FASTEST_FILL * MS + 666_666);
        assert_eq!(pause(0, 0, 500_000), 500 * MS, "a thousandth of a CPU");
        assert_eq!(pause(0, 0, 50_000_000), 1000 * MS);
        // 100 MiB in 100 ms: 400 MiB will be gone in 400 ms, whatever a look costs.
        assert_eq!(pause(500, 600, 500_000), 200 * MS);
        assert_eq!(pause(500, 600, 60 * MS), 240 * MS, "a fifth of a CPU");
        assert_eq!(pause(990, 990, 2 * MS), 100 * MS, "a fiftieth of a CPU");
        assert_eq!(pause(900, 990, 2 * MS), 25 * MS);
        assert_eq!(pause(1000, 1100, 0), 25 * MS, "broken");
    }

    #[test]
    fn a_search_that_takes_long_is_seldom() {
        let (mut accounts, _) = one();
        accounts.searched(0, 30 * MS);
        assert!(!accounts.is_search_due(2999 * MS) && accounts.is_search_due(3000 * MS));
    }

    #[test]
    fn a_search_is_a_look() {
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
