//! The effective configuration, for users and programs.

use owners::Uid;
use serde::{Deserialize, Serialize};

/// The merged configuration files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The files that were read, in their order.
    pub files: Vec<String>,
    /// By uid, then that of everyone.
    pub limits: Vec<ConfiguredLimit>,
    /// `None`: system memory is not monitored.
    pub machine: Option<MachineLevels>,
    /// In their order, a line each.
    pub rules: Vec<String>,
    /// Metrics, hooks and warnings, a line each.
    #[serde(default, alias = "tell")]
    pub notifications: Vec<String>,
    /// The first and the last uid of ordinary users, of whom a limit of `*` speaks.
    pub ordinary_uids: [Uid; 2],
    /// Deprecated keys and unreadable optional files, a sentence each.
    #[serde(alias = "complaints")]
    pub warnings: Vec<String>,
}

/// A limit of the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfiguredLimit {
    /// A uid, `*` for every ordinary user by itself, `@` and the name of a group that shares it, or
    /// the path of cgroups, which begins with `/`, `*` and `?` being wild.
    pub user: String,
    /// Hard limit, bytes.
    pub hard_bytes: u64,
    /// Soft limit, bytes.
    pub soft_bytes: u64,
    /// The kinds of memory that count, of `anon`, `shmem`, `swap` and `file`; empty: the first
    /// three.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<String>,
    /// The uids of the group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Uid>,
}

/// When the machine counts as short of memory, as in the file's `[machine]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineLevels {
    /// `10%`, or `1000 bytes`.
    pub soft: String,
    /// The same.
    pub hard: String,
    /// The same, of swap.
    pub swap_soft: String,
    /// The same, of swap.
    pub swap_hard: String,
    /// Milliseconds; 0: never.
    pub forecast_ms: u64,
    /// Percent of the time.
    pub stall_percent: u32,
    /// Milliseconds; 0: never.
    pub stall_ms: u64,
    /// After so many kills only the hard level and the forecast kill ...
    #[serde(default, alias = "most_kills")]
    pub max_kills: u32,
    /// ... within so many milliseconds; 0: no maximum.
    #[serde(default, alias = "most_kills_ms")]
    pub max_kills_window_ms: u64,
}
