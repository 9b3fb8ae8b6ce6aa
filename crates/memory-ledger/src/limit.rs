//! A consistent pair of a hard and a soft limit, the kinds of memory that count against it, the
//! limits of the kernel's memory controller behind it, and how amounts are written.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::account::{AccountId, Uid};

/// Smallest hard limit, bytes. A login shell alone has more than this; a request for less most
/// likely lacks a unit (`512` for `512M`).
pub const MIN_HARD_BYTES: u64 = 1 << 20;
/// The soft limit unless one is given, in percent of the hard limit.
pub const SOFT_LIMIT_PERCENT: u64 = 90;

/// Hard limit of an account that is exempt, bytes: more than any machine has, and a whole number of
/// pages that calculations with limits do not overflow.
pub const NO_LIMIT_BYTES: u64 = 1 << 62;

/// Units of [`Bytes`].
const UNITS: [char; 6] = ['B', 'K', 'M', 'G', 'T', 'P'];

/// An amount of memory, displayed with one decimal and a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        if bytes < 1024 {
            return f.pad(&format!("{bytes} B"));
        }
        let mut exponent = 1;
        // Compare the printed value, so that 1023.96 KiB is printed as 1.0 MiB and not as 1024.0
        // KiB.
        let tenths = |exponent: usize| (bytes * 10 + (1 << (10 * exponent - 1))) >> (10 * exponent);
        while tenths(exponent) >= 10240 && exponent + 1 < UNITS.len() {
            exponent += 1;
        }
        let tenths = tenths(exponent);
        f.pad(&format!("{}.{} {}iB", tenths / 10, tenths % 10, UNITS[exponent]))
    }
}

/// A memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    hard_bytes: u64,
    soft_bytes: u64,
    warn_bytes: Option<u64>,
    terminate_ms: Option<u32>,
    count: Count,
}

/// Reason why two numbers are not a valid limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The hard limit is 0.
    #[error("a limit of 0 would kill every process; to remove the limit, clear it")]
    Zero,
    /// Below [`MIN_HARD_BYTES`].
    #[error(
        "a limit of {} is too small for a shell; the minimum is {}. Add a unit (\"512M\")",
        Bytes(*.0), Bytes(MIN_HARD_BYTES)
    )]
    TooSmall(u64),
    /// The soft limit is 0.
    #[error(
        "a soft limit of 0 is always exceeded; omit it for {SOFT_LIMIT_PERCENT} % of the hard limit"
    )]
    SoftZero,
    /// The soft limit is above the hard limit.
    #[error("the soft limit ({}) is above the hard limit ({})", Bytes(*.soft), Bytes(*.hard))]
    SoftAboveHard {
        /// Soft limit, bytes.
        soft: u64,
        /// Hard limit, bytes.
        hard: u64,
    },
    /// The warning level is 0, or not below the soft limit.
    #[error(
        "the warning level ({}) is not between 0 and the soft limit ({}), which warns as well",
        Bytes(*.warn), Bytes(*.soft)
    )]
    WarnNotBelowSoft {
        /// Warning level, bytes.
        warn: u64,
        /// Soft limit, bytes.
        soft: u64,
    },
}

/// The hard limit, or `none`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() { f.pad("none") } else { Bytes(self.hard_bytes).fmt(f) }
    }
}

impl Limit {
    /// Exempts an account from limits of sources with lower precedence.
    pub const NONE: Self = Self {
        hard_bytes: NO_LIMIT_BYTES,
        soft_bytes: NO_LIMIT_BYTES,
        warn_bytes: None,
        terminate_ms: None,
        count: Count { anon: true, shmem: true, swap: true, file: false },
    };

    /// Whether it is [`NONE`](Self::NONE), whichever kinds of memory count.
    pub fn is_none(&self) -> bool {
        self.hard_bytes == NO_LIMIT_BYTES
    }

    /// Creates a limit of `hard_bytes`; the soft limit is [`SOFT_LIMIT_PERCENT`] of it unless
    /// given. From [`NO_LIMIT_BYTES`] on it is [`NONE`](Self::NONE).
    pub fn new(hard_bytes: u64, soft_bytes: Option<u64>) -> Result<Self, LimitError> {
        match (hard_bytes, soft_bytes) {
            (0, _) => return Err(LimitError::Zero),
            (hard, _) if hard >= NO_LIMIT_BYTES => return Ok(Self::NONE),
            (hard, _) if hard < MIN_HARD_BYTES => return Err(LimitError::TooSmall(hard)),
            (_, Some(0)) => return Err(LimitError::SoftZero),
            (hard, Some(soft)) if soft > hard => {
                return Err(LimitError::SoftAboveHard { soft, hard });
            }
            _ => {}
        }
        // Divides first: the product could overflow.
        let soft_bytes = soft_bytes.unwrap_or(hard_bytes / 100 * SOFT_LIMIT_PERCENT);
        let count = Count::default();
        Ok(Self { hard_bytes, soft_bytes, warn_bytes: None, terminate_ms: None, count })
    }

    /// The same limit with a level below the soft limit at which the user is warned, bytes.
    pub fn warning_at(self, warn_bytes: u64) -> Result<Self, LimitError> {
        if warn_bytes == 0 || warn_bytes >= self.soft_bytes {
            return Err(LimitError::WarnNotBelowSoft { warn: warn_bytes, soft: self.soft_bytes });
        }
        Ok(Self { warn_bytes: Some(warn_bytes), ..self })
    }

    /// The same limit with SIGTERM for a process above the soft limit, and SIGKILL after this time,
    /// milliseconds.
    pub fn terminating_at_soft(self, grace_ms: u32) -> Self {
        Self { terminate_ms: Some(grace_ms), ..self }
    }

    /// The same limits for other kinds of memory.
    pub fn counting(self, count: Count) -> Self {
        Self { count, ..self }
    }

    /// The kinds of memory that count against the limit.
    pub fn count(&self) -> Count {
        self.count
    }

    /// Maximum usage, bytes: above it a process is killed.
    pub fn hard_bytes(&self) -> u64 {
        self.hard_bytes
    }

    /// Usage above which the user is warned, bytes; `None`: only above the soft limit.
    pub fn warn_bytes(&self) -> Option<u64> {
        self.warn_bytes
    }

    /// Time between SIGTERM for a process above the soft limit and SIGKILL for it, milliseconds;
    /// `None`: no signal is sent below the hard limit.
    pub fn terminate_ms(&self) -> Option<u32> {
        self.terminate_ms
    }

    /// Usage above which a victim is selected, bytes.
    pub fn soft_bytes(&self) -> u64 {
        self.soft_bytes
    }
}

/// Kinds of memory that count against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Anonymous memory: heaps, stacks.
    pub anon: bool,
    /// Mapped shared memory and tmpfs files, counted in full for each process that maps them.
    pub shmem: bool,
    /// Swapped-out memory.
    pub swap: bool,
    /// Mapped file pages, counted in full for each process that maps them.
    pub file: bool,
}

impl Count {
    /// Names of the kinds in the configuration, in the order of the fields.
    pub const NAMES: [&str; 4] = ["anon", "shmem", "swap", "file"];

    /// The kinds with these names; unknown names are ignored.
    pub fn of<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let mut count = Self { anon: false, shmem: false, swap: false, file: false };
        for name in names {
            match name {
                "anon" => count.anon = true,
                "shmem" => count.shmem = true,
                "swap" => count.swap = true,
                "file" => count.file = true,
                _ => {}
            }
        }
        count
    }

    /// The names of the kinds that count.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let counts = [self.anon, self.shmem, self.swap, self.file];
        Self::NAMES.into_iter().zip(counts).filter(|(_, counts)| *counts).map(|(name, _)| name)
    }

    /// The names, if they differ from the default; empty otherwise.
    pub fn unusual_names(self) -> Vec<String> {
        let unusual = self != Self::default();
        self.names().filter(|_| unusual).map(str::to_owned).collect()
    }
}

impl Default for Count {
    /// All memory that only a kill frees: without file pages.
    fn default() -> Self {
        Self { anon: true, shmem: true, swap: true, file: false }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(", "))
    }
}

/// A level that was reached counts as left below 15/16 of it: wide enough that a program which
/// frees and allocates a few MiB there does not wake the daemon each time.
pub const fn cleared_below(level: u64) -> u64 {
    level - level / 16
}

/// The controller's limit is above the user's by this part of it, so that the daemon acts first.
const MARGIN_SHARE: u64 = 16;
/// Page cache and other memory of the kernel that the user may have besides, bytes: the controller
/// charges them, and a user's limit does not.
const PAGE_CACHE_BYTES: u64 = 256 << 20;

/// `memory.max` and `memory.swap.max` of a user's slice: for memory that the accounts do not
/// contain, and for the time without a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backstop {
    /// Memory, page cache included, bytes.
    pub memory_max_bytes: u64,
    /// Swap, bytes.
    pub swap_max_bytes: u64,
}

impl Backstop {
    /// The backstop of a user's limit.
    pub fn of(limit: Limit) -> Self {
        let hard_bytes = limit.hard_bytes();
        let with_margin = hard_bytes.saturating_add(hard_bytes / MARGIN_SHARE);
        Self {
            memory_max_bytes: with_margin.saturating_add(PAGE_CACHE_BYTES),
            swap_max_bytes: with_margin,
        }
    }

    /// The user whose slice has the backstop of an account: groups and cgroups have no slice of a
    /// user's, and root's slice contains what an administrator needs in a shortage.
    pub fn user_of(account: AccountId) -> Option<Uid> {
        account.user().filter(|uid| *uid != Uid::ROOT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::GroupId;

    #[test]
    fn the_soft_limit_is_nine_tenths_unless_given() {
        assert_eq!(Limit::new(100 << 20, None).unwrap().soft_bytes(), (100 << 20) / 100 * 90);
        assert_eq!(Limit::new(100 << 20, Some(7)).unwrap().soft_bytes(), 7);
        assert_eq!(Limit::new(u64::MAX, None), Ok(Limit::NONE));
        assert_eq!(Limit::NONE.count(), Count::default());
    }

    #[test]
    fn limits_that_make_no_sense_are_refused_by_name() {
        assert_eq!(Limit::new(0, None), Err(LimitError::Zero));
        assert_eq!(Limit::new(0, Some(0)), Err(LimitError::Zero));
        assert_eq!(Limit::new(512, None), Err(LimitError::TooSmall(512)));
        assert_eq!(Limit::new(1 << 20, Some(0)), Err(LimitError::SoftZero));
        let wrong_way_round = LimitError::SoftAboveHard { soft: 2 << 20, hard: 1 << 20 };
        assert_eq!(Limit::new(1 << 20, Some(2 << 20)), Err(wrong_way_round));
        let equal = Limit::new(1 << 20, Some(1 << 20)).expect("equal is allowed");
        let too_high = LimitError::WarnNotBelowSoft { warn: 1 << 20, soft: 1 << 20 };
        assert_eq!(equal.warning_at(1 << 20), Err(too_high));
        assert!(equal.warning_at(0).is_err() && equal.warning_at(1 << 19).is_ok());
    }

    #[test]
    fn names_list_the_counted_kinds() {
        assert_eq!(Count::of(["swap", "anon", "shmem"]), Count::default());
        let all = Count::of(Count::NAMES);
        assert_eq!((all.to_string().as_str(), all.file), ("anon, shmem, swap, file", true));
        assert_eq!(Count::of(["file", "cache"]).to_string(), "file");
        assert_eq!(Count::of(["file"]).unusual_names(), ["file"]);
        assert!(Count::default().unusual_names().is_empty());
    }

    #[test]
    fn a_backstop_is_a_sixteenth_and_the_page_cache_above_the_limit() {
        let limit = Limit::new(1600 << 20, None).unwrap();
        let backstop = Backstop::of(limit);
        assert_eq!(backstop.memory_max_bytes, (1600 + 100 + 256) << 20);
        assert_eq!(backstop.swap_max_bytes, (1600 + 100) << 20);
    }

    #[test]
    fn only_single_users_other_than_root_have_one() {
        let group = AccountId::Group(GroupId::new(3).unwrap());
        assert_eq!(Backstop::user_of(AccountId::User(Uid(1000))), Some(Uid(1000)));
        assert_eq!(Backstop::user_of(AccountId::User(Uid::ROOT)), None);
        assert_eq!(Backstop::user_of(group), None);
    }
}
