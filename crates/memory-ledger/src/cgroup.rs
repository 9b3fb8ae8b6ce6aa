//! Limited control groups: the patterns of their paths, and their usage.
//!
//! A pattern is a path from the root of the hierarchy in which `*` and `?` match within one
//! folder's name. Each cgroup that matches has the limit by itself, including all its descendants.
//! A login session is a cgroup as well, with the names that systemd gives:
//! `/user.slice/user-UID.slice/session-N.scope`.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use crate::account::{Account, CgroupId, Phase, Reading, Uid, is_ordinary};
use crate::limit::{Limit, cleared_below};
use crate::machine::FASTEST_FILL;
use crate::rules::Pattern;
use crate::{NS_PER_MS, NS_PER_SECOND};

/// Maximum length of a pattern, bytes.
const LONGEST: usize = 1024;

/// One folder of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Folder {
    /// Exactly this name.
    Named(String),
    /// All names that match the pattern.
    Like(Pattern),
}

impl Folder {
    fn new(name: &str) -> Result<Self, PatternError> {
        match name {
            "" | "." | ".." => Err(PatternError::Folder(name.to_owned())),
            name if name.contains(['*', '?']) => {
                Pattern::glob(name).map(Self::Like).map_err(|_| PatternError::TooLong)
            }
            name => Ok(Self::Named(name.to_owned())),
        }
    }

    /// The name matches.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Named(own) => own == name,
            Self::Like(pattern) => pattern.matches(name),
        }
    }
}

/// Reason for rejecting a pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The path does not begin at the root.
    #[error(
        "a cgroup is a path from the root of the hierarchy, like \"/system.slice/ci-*.service\""
    )]
    NotFromRoot,
    /// The path is the root itself.
    #[error("\"/\" is the whole machine, which [machine] is about")]
    Root,
    /// `//`, `.` or `..`, or a `/` at the end.
    #[error(
        "no cgroup is called \"{0}\": there is one \"/\" between two names, and none at the end"
    )]
    Folder(String),
    /// The compiled pattern would take too much memory.
    #[error("this pattern is too long: at most {LONGEST} bytes")]
    TooLong,
}

/// A pattern of cgroup paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupPattern {
    text: String,
    folders: Vec<Folder>,
    /// Matches only cgroups of ordinary users.
    of_ordinary: bool,
}

impl CgroupPattern {
    /// Parses a path with wild cards.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        let names = text.strip_prefix('/').ok_or(PatternError::NotFromRoot)?;
        if names.is_empty() {
            return Err(PatternError::Root);
        }
        if text.len() > LONGEST {
            return Err(PatternError::TooLong);
        }
        let folders = names.split('/').map(Folder::new).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), folders, of_ordinary: false })
    }

    /// Matches each login session of a user; `None`: of every ordinary user.
    pub fn sessions_of(uid: Option<Uid>) -> Result<Self, PatternError> {
        let user = uid.map_or("*".to_owned(), |uid| uid.to_string());
        let pattern = Self::new(&format!("/user.slice/user-{user}.slice/session-*.scope"))?;
        Ok(Self { of_ordinary: uid.is_none(), ..pattern })
    }

    /// The components of the path, from the root.
    pub fn folders(&self) -> &[Folder] {
        &self.folders
    }

    /// The path matches. `ordinary` are the uids of local ordinary users.
    pub fn matches(&self, path: &str, ordinary: &RangeInclusive<Uid>) -> bool {
        let mut names = path.strip_prefix('/').unwrap_or_default().split('/');
        self.folders.iter().all(|folder| names.next().is_some_and(|name| folder.matches(name)))
            && names.next().is_none()
            && (!self.of_ordinary || owner_of(path).is_some_and(|uid| is_ordinary(ordinary, uid)))
    }

    /// How specific the pattern is: number of letters that are no wild cards.
    fn letters(&self) -> usize {
        self.text.chars().filter(|c| !matches!(c, '*' | '?')).count()
    }
}

/// The pattern as it was written, with a suffix for sessions of all ordinary users.
impl fmt::Display for CgroupPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        f.write_str(if self.of_ordinary { " (of ordinary users)" } else { "" })
    }
}

/// The user that owns the slice of a cgroup, by systemd's names.
pub fn owner_of(path: &str) -> Option<Uid> {
    let slice = path.strip_prefix("/user.slice/user-")?.split('/').next()?;
    slice.strip_suffix(".slice")?.parse().ok().map(Uid)
}

/// The limit for the cgroups of a pattern, for each by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The cgroups that are limited.
    pub pattern: CgroupPattern,
    /// The limit of each of them.
    pub limit: Limit,
}

/// The limit of a cgroup: of the patterns that match, the most specific one applies; of two that
/// are equally specific, the later one.
fn limit_of(limits: &[CgroupLimit], path: &str, ordinary: &RangeInclusive<Uid>) -> Option<Limit> {
    let about = limits.iter().filter(|limit| limit.pattern.matches(path, ordinary));
    about.max_by_key(|limit| limit.pattern.letters()).map(|limit| limit.limit)
}

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
///
/// No event reports the growth of a cgroup: it is read by a timer, more often the sooner its limit
/// can be exceeded. The id of a cgroup's account is derived from its path.
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
        it.near = used_bytes > soft || (was_near && used_bytes >= cleared_below(soft));
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
    use crate::account::AccountId;

    const ORDINARY: RangeInclusive<Uid> = Uid(1000)..=Uid(60_000);

    fn matches(pattern: &str, path: &str) -> bool {
        CgroupPattern::new(pattern).unwrap().matches(path, &ORDINARY)
    }

    #[test]
    fn a_wild_card_stands_within_one_folders_name() {
        assert!(matches("/system.slice/ci-*.service", "/system.slice/ci-7.service"));
        assert!(!matches("/system.slice/ci-*.service", "/system.slice/ci-7.service/job"));
        assert!(!matches("/*", "/a/b") && matches("/*/?", "/a/b") && !matches("/a/b", "/a"));
        assert!(!matches("/a.b", "/axb") && !matches("/a", "a") && !matches("/a", ""));
    }

    #[test]
    fn invalid_cgroup_paths_are_refused_by_name() {
        let refused = |text: &str| CgroupPattern::new(text).unwrap_err();
        assert_eq!(refused("a/b"), PatternError::NotFromRoot);
        assert_eq!(refused(""), PatternError::NotFromRoot);
        assert_eq!(refused("/"), PatternError::Root);
        for text in ["/a/", "//a", "/a/../b", "/./a"] {
            assert!(matches!(refused(text), PatternError::Folder(_)), "{text}");
        }
        assert_eq!(refused(&format!("/{}", "*".repeat(LONGEST))), PatternError::TooLong);
    }

    #[test]
    fn sessions_are_those_of_ordinary_users_or_of_one() {
        let all = CgroupPattern::sessions_of(None).unwrap();
        let of = |uid| format!("/user.slice/user-{uid}.slice/session-c3.scope");
        assert!(all.matches(&of(1000), &ORDINARY) && all.matches(&of(60_000), &ORDINARY));
        assert!(all.matches(&of(1_682_401_104), &ORDINARY), "of a directory");
        assert!(!all.matches(&of(0), &ORDINARY) && !all.matches(&of(60_001), &ORDINARY));
        let one = CgroupPattern::sessions_of(Some(Uid(0))).unwrap();
        assert!(one.matches(&of(0), &ORDINARY) && !one.matches(&of(1000), &ORDINARY));
        let manager = "/user.slice/user-1000.slice/user@1000.service";
        assert!(!all.matches(manager, &ORDINARY));
        assert_eq!(owner_of(manager), Some(Uid(1000)));
        assert_eq!(owner_of("/user.slice/user-x.slice/session-1.scope"), None);
        assert_eq!(owner_of("/system.slice"), None);
    }

    #[test]
    fn the_most_specific_pattern_applies() {
        let limit = |pattern: Result<CgroupPattern, PatternError>, mib: u64| CgroupLimit {
            pattern: pattern.unwrap(),
            limit: Limit::new(mib << 20, None).unwrap(),
        };
        let limits = [
            limit(CgroupPattern::new("/a/job"), 1),
            limit(CgroupPattern::new("/a/*"), 2),
            limit(CgroupPattern::sessions_of(Some(Uid(1000))), 3),
            limit(CgroupPattern::sessions_of(None), 4),
            limit(CgroupPattern::new("/?/*"), 5),
        ];
        let of = |path: &str| limit_of(&limits, path, &ORDINARY).map(|it| it.hard_bytes() >> 20);
        assert_eq!(
            (of("/a/job"), of("/a/other"), of("/b/job"), of("/a")),
            (Some(1), Some(2), Some(5), None)
        );
        assert_eq!(of("/user.slice/user-1000.slice/session-1.scope"), Some(3));
        assert_eq!(of("/user.slice/user-1001.slice/session-1.scope"), Some(4));
    }

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
