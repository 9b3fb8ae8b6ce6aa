//! The account of a user, a group or a cgroup: its typed id, its limit and reading.
//!
//! The kind of an account is part of its type. Where one number has to represent all three (a key
//! of a BPF map), the adapter for the kernel encodes it.

use std::fmt;
use std::ops::RangeInclusive;

pub use owners::Uid;
use serde::{Deserialize, Serialize};

use crate::limit::{Limit, cleared_below};
use crate::precedence::{LimitLayers, Source};

/// First uid that is neither one of the system's (`nobody`, dynamic users of systemd) nor local.
const FIRST_OF_DIRECTORIES: Uid = Uid(65_536);

/// Whether a user of the initial user namespace is an ordinary one: a local one, or one of a
/// directory, which assigns numbers above `UID_MAX`.
pub fn is_ordinary(local: &RangeInclusive<Uid>, uid: Uid) -> bool {
    local.contains(&uid) || uid >= FIRST_OF_DIRECTORIES && uid.is_limitable()
}

/// The account of a [group](crate::group) of users. Derived from the group's name, so that a
/// restarted daemon finds the same account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16")]
pub struct GroupId(u16);

impl GroupId {
    /// Number of group ids. One less than a `u16` has values: with the last one, the key of a group
    /// in the BPF maps would be [`Uid::NONE`].
    pub const COUNT: u16 = u16::MAX;

    /// Returns `None` unless `id` is below [`GroupId::COUNT`].
    pub fn new(id: u16) -> Option<Self> {
        (id < Self::COUNT).then_some(Self(id))
    }

    /// The id as a number below [`GroupId::COUNT`].
    pub fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for GroupId {
    type Error = &'static str;

    fn try_from(id: u16) -> Result<Self, Self::Error> {
        Self::new(id).ok_or("not the number of a group")
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The account of a [cgroup](crate::cgroup). Derived from its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CgroupId(pub u16);

impl fmt::Display for CgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Identifies an account by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AccountId {
    /// Memory of one user.
    User(Uid),
    /// Memory of several users together.
    Group(GroupId),
    /// Memory of a cgroup and all its descendants.
    Cgroup(CgroupId),
}

impl AccountId {
    /// The user, if it is the account of one user.
    pub fn user(self) -> Option<Uid> {
        match self {
            Self::User(uid) => Some(uid),
            Self::Group(_) | Self::Cgroup(_) => None,
        }
    }
}

impl Default for AccountId {
    fn default() -> Self {
        Self::User(Uid::ROOT)
    }
}

impl From<Uid> for AccountId {
    fn from(uid: Uid) -> Self {
        Self::User(uid)
    }
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::Group(group) => write!(f, "group {group}"),
            Self::Cgroup(cgroup) => write!(f, "cgroup {cgroup}"),
        }
    }
}

/// A user's account as read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Anonymous, shared and swapped memory of all processes of the account, bytes.
    pub used_bytes: u64,
    /// Part of `used_bytes` that belongs to processes that have been killed already.
    pub dying_bytes: u64,
    /// Time of the reading, nanoseconds.
    pub at_ns: u64,
}

/// Usage of an account relative to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// At or below the soft limit.
    Within,
    /// Above the soft limit: a victim is kept ready.
    AboveSoft,
    /// Above the hard limit: a process has to be killed.
    Broken,
}

/// Whether the user was warned that the usage is above the warning level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Warned {
    #[default]
    No,
    Yes,
}

/// One limited user, group of users or cgroup.
#[derive(Clone, Debug)]
pub struct Account {
    /// The owner of the account.
    pub id: AccountId,
    pub(crate) layers: LimitLayers,
    pub(crate) limit: Limit,
    pub(crate) source: Source,
    pub(crate) reading: Reading,
    pub(crate) warned: Warned,
}

impl Account {
    /// The account of a cgroup, which only the configuration can limit.
    pub(crate) fn of_cgroup(id: CgroupId, limit: Limit) -> Self {
        let (layers, source) = (LimitLayers::default(), Source::Config);
        let (reading, warned) = (Reading::default(), Warned::No);
        Self { id: AccountId::Cgroup(id), layers, limit, source, reading, warned }
    }

    /// The limit in force.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// All limits of the account, by source.
    pub fn layers(&self) -> LimitLayers {
        self.layers
    }

    /// Source of the limit in force.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The latest reading.
    pub fn reading(&self) -> Reading {
        self.reading
    }

    /// Whether the latest reading has crossed the warning level, and the user is to be warned: not
    /// above the soft limit, whose crossing is a warning of its own.
    pub(crate) fn crosses_warning(&mut self) -> bool {
        let Some(warn_bytes) = self.limit.warn_bytes() else { return false };
        let used_bytes = self.reading.used_bytes;
        if used_bytes < cleared_below(warn_bytes) {
            self.warned = Warned::No;
        }
        used_bytes > warn_bytes
            && std::mem::replace(&mut self.warned, Warned::Yes) == Warned::No
            && self.phase() == Phase::Within
    }

    /// Position of the latest reading relative to the limit.
    pub fn phase(&self) -> Phase {
        match self.reading.used_bytes {
            used if used > self.limit.hard_bytes() => Phase::Broken,
            used if used > self.limit.soft_bytes() => Phase::AboveSoft,
            _ => Phase::Within,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_reserved_uids_cannot_be_limited() {
        for uid in [Uid(1), Uid(1000), Uid::LAST_LIMITABLE] {
            assert!(uid.is_limitable(), "{uid}");
        }
        for uid in [Uid::ROOT, Uid(Uid::LAST_LIMITABLE.0 + 1), Uid::NONE] {
            assert!(!uid.is_limitable(), "{uid}");
        }
    }

    #[test]
    fn users_of_directories_are_ordinary_and_those_of_the_system_are_not() {
        let local = Uid(1000)..=Uid(60_000);
        for uid in [1000, 60_000, 65_536, 1_682_401_104] {
            assert!(is_ordinary(&local, Uid(uid)), "{uid}");
        }
        for uid in [0, 999, 60_001, 61_184, 65_534, 65_535, u32::MAX] {
            assert!(!is_ordinary(&local, Uid(uid)), "{uid}");
        }
    }

    #[test]
    fn accounts_of_one_number_differ_by_kind() {
        let number = 7;
        let group = AccountId::Group(GroupId::new(number).unwrap());
        let (user, cgroup) = (AccountId::User(Uid(7)), AccountId::Cgroup(CgroupId(number)));
        assert!(user != group && group != cgroup && user != cgroup);
        assert_eq!(
            [user, group, cgroup].map(|it| it.to_string()),
            ["uid 7", "group 7", "cgroup 7"]
        );
        assert_eq!(GroupId::new(GroupId::COUNT), None);
    }
}
