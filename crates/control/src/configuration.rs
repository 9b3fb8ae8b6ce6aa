//! The effective configuration, for users and programs.

use owners::Uid;
use serde::{Deserialize, Serialize};

/// The merged configuration files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// The files that were read, in their order.
    pub files: Vec<String>,
    /// Decisions are recorded, and no process is killed.
    #[serde(default)]
    pub observe: bool,
    /// The slices of limited users have a limit of the memory controller as well.
    #[serde(default)]
    pub backstop: bool,
    /// Sorted by uid, then the default limit.
    pub limits: Vec<ConfiguredLimit>,
    /// `None`: system memory is not monitored.
    pub machine: Option<MachineLevels>,
    /// In their order, one line each.
    pub rules: Vec<String>,
    /// Metrics, hooks and warnings, one line each.
    #[serde(default)]
    pub notifications: Vec<String>,
    /// How long a limit that is lowered below the usage does not act, seconds.
    #[serde(default)]
    pub grace_s: u32,
    /// The first and the last local uid of ordinary users, to whom a limit for `*` applies. It
    /// applies to those of directories, from 65536 on, as well.
    pub ordinary_uids: [Uid; 2],
    /// Unreadable optional files, and limits and rules that do not act, a sentence each.
    pub warnings: Vec<String>,
}

/// A limit in the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfiguredLimit {
    /// A uid, `*` for each ordinary user separately, `each of @` and the name of a group for each
    /// member separately, `@` and the name of a group that shares the limit, or a path of cgroups,
    /// which begins with `/`; `*` and `?` in it are wildcards.
    pub user: String,
    /// Hard limit, bytes.
    pub hard_bytes: u64,
    /// Soft limit, bytes.
    pub soft_bytes: u64,
    /// Usage at which the user is warned, bytes; `None`: at the soft limit only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warn_bytes: Option<u64>,
    /// Time between SIGTERM for a process above the soft limit and SIGKILL, milliseconds; `None`:
    /// no SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_signal_ms: Option<u32>,
    /// There is no limit; both numbers are larger than any machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exempt: bool,
    /// The kinds of memory that count, of `anon`, `shmem`, `swap` and `file`; empty: the first
    /// three.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<String>,
    /// The known uids of the group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Uid>,
}

/// When the system counts as short of memory, as in the file's `[machine]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineLevels {
    /// Available memory at the soft level: `10%`, or `1000 bytes`.
    pub soft: String,
    /// Available memory at the hard level, in the same form.
    pub hard: String,
    /// Free swap at the soft level, in the same form.
    pub swap_soft: String,
    /// Free swap at the hard level, in the same form.
    pub swap_hard: String,
    /// Forecast, milliseconds ahead; 0: never.
    pub forecast_ms: u64,
    /// Share of the time in which all tasks stalled, percent.
    pub stall_percent: u32,
    /// Period of that share, milliseconds; 0: never.
    pub stall_ms: u64,
    /// After this number of kills only the hard level and the forecast kill ...
    #[serde(default)]
    pub max_kills: u32,
    /// ... within this period, milliseconds; 0: no maximum.
    #[serde(default)]
    pub max_kills_window_ms: u64,
}
