//! The limit and reading of one account.

use serde::{Deserialize, Serialize};

use crate::account_id::{AccountId, CgroupId};
use crate::limit::Limit;
use crate::precedence::{LimitLayers, Source};

/// A user's account as read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// One limited user, group of users or cgroup.
#[derive(Clone, Debug)]
pub struct Account {
    /// The owner of the account.
    pub id: AccountId,
    pub(crate) layers: LimitLayers,
    pub(crate) limit: Limit,
    pub(crate) source: Source,
    pub(crate) reading: Reading,
}

impl Account {
    /// The account of a cgroup, which only the configuration can limit.
    pub(crate) fn of_cgroup(id: CgroupId, limit: Limit) -> Self {
        let (layers, source) = (LimitLayers::default(), Source::Config);
        Self { id: AccountId::Cgroup(id), layers, limit, source, reading: Reading::default() }
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

    /// Position of the latest reading relative to the limit.
    pub fn phase(&self) -> Phase {
        match self.reading.used_bytes {
            used if used > self.limit.hard_bytes() => Phase::Broken,
            used if used > self.limit.soft_bytes() => Phase::AboveSoft,
            _ => Phase::Within,
        }
    }
}
