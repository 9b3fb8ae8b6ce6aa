//! What a configuration says, for people and programs.

use serde::{Deserialize, Serialize};

/// All that is in force of the files, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The files that were read, in their order.
    pub files: Vec<String>,
    /// By uid, then that of everyone.
    pub limits: Vec<ConfiguredLimit>,
    /// `None`: the machine as a whole is not watched.
    pub machine: Option<MachineLevels>,
    /// In their order, a line each.
    pub rules: Vec<String>,
    /// Who is told of what happens, a line each.
    #[serde(default)]
    pub tell: Vec<String>,
    /// The first and the last uid of ordinary users, of whom a limit of `*` speaks.
    pub ordinary_uids: [u32; 2],
    /// What could not be read and is done without, a sentence each.
    pub complaints: Vec<String>,
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
    pub members: Vec<u32>,
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
    /// After so many victims only the hard level and the forecast kill ...
    #[serde(default)]
    pub most_kills: u32,
    /// ... within so many milliseconds; 0: any number.
    #[serde(default)]
    pub most_kills_ms: u64,
}
