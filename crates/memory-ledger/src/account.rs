//! The limit and reading of one account.

use crate::account_id::{AccountId, CgroupId};
use crate::limit::Limit;
use crate::precedence::{LimitLayers, Source};

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

/// The usage has to fall by this fraction (1/16) of the warning level before it is crossed again.
const CLEAR_SHARE: u64 = 16;

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
        if used_bytes < warn_bytes - warn_bytes / CLEAR_SHARE {
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
