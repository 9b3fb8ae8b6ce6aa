//! The limit and reading of one account.

use crate::account_id::{AccountId, CgroupId};
use crate::limit::Limit;
use crate::precedence::{LimitLayers, Source};

/// A user's account as read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Anonymous, shared and swapped memory of all the user's processes, bytes.
    pub used_bytes: u64,
    /// Of these, bytes of processes that have been killed already.
    pub dying_bytes: u64,
    /// When it was read, nanoseconds.
    pub at_ns: u64,
}

/// Where an account stands against its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// At or below the soft limit.
    Within,
    /// Above the soft limit: a victim is kept ready.
    AboveSoft,
    /// Above the hard limit: a process has to be killed.
    Broken,
}

/// One limited user, or group of users.
#[derive(Clone, Debug)]
pub struct Account {
    /// Whose it is.
    pub id: AccountId,
    pub(crate) layers: LimitLayers,
    pub(crate) limit: Limit,
    pub(crate) source: Source,
    pub(crate) reading: Reading,
}

impl Account {
    /// Of a cgroup, of which only the configuration speaks.
    pub(crate) fn of_cgroup(id: CgroupId, limit: Limit) -> Self {
        let (layers, source) = (LimitLayers::default(), Source::Config);
        Self { id: AccountId::Cgroup(id), layers, limit, source, reading: Reading::default() }
    }

    /// The limit that counts.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// All that was said of it.
    pub fn layers(&self) -> LimitLayers {
        self.layers
    }

    /// Where the limit comes from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The latest reading.
    pub fn reading(&self) -> Reading {
        self.reading
    }

    /// Where the latest reading stands against the limit.
    pub fn phase(&self) -> Phase {
        match self.reading.used_bytes {
            used if used > self.limit.hard_bytes() => Phase::Broken,
            used if used > self.limit.soft_bytes() => Phase::AboveSoft,
            _ => Phase::Within,
        }
    }
}
