//! Requests to `headroom-oomd`, its replies and events.

use std::collections::BTreeMap;

use owners::Uid;
use serde::{Deserialize, Serialize};

use crate::configuration::ConfiguredLimit;

/// The kind of an account.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum AccountKind {
    /// A user.
    #[default]
    User,
    /// Several users that share a limit.
    Group,
    /// A control group.
    Cgroup,
}

/// An account.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct AccountRef {
    /// Absent in records of earlier versions, which knew only users.
    #[serde(default)]
    pub kind: AccountKind,
    /// The uid, or the number that the daemon assigned to a group or cgroup. Such numbers are
    /// larger than any uid.
    pub uid: u32,
}

impl AccountRef {
    /// The account of a user.
    pub fn user(uid: Uid) -> Self {
        Self { kind: AccountKind::User, uid: uid.0 }
    }

    /// The user, if it is the account of one user.
    pub fn as_user(self) -> Option<Uid> {
        (self.kind == AccountKind::User).then_some(Uid(self.uid))
    }
}

/// A request. Root may send all of them for any account. A user may see and lower its own limit,
/// see its own kills, and have its own largest process killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Version, notifier, counters and degradations.
    Status,
    /// Sets a runtime limit. A member of a group with a limit cannot have its own.
    SetLimit {
        /// A user or group.
        account: AccountRef,
        /// Limit in bytes.
        hard_bytes: u64,
        /// Soft limit in bytes; `None`: 90 % of the hard limit.
        soft_bytes: Option<u64>,
        /// How long it does not act if the usage is above it, and a limit above it was in force,
        /// seconds; `None`: as configured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_s: Option<u32>,
    },
    /// Clears the runtime limit: that of the configuration applies again.
    ClearLimit {
        /// A user or group.
        account: AccountRef,
        /// As in [`SetLimit`](Self::SetLimit).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_s: Option<u32>,
    },
    /// The limit that applies to a user, or will once it has a process. Root, and the user.
    GetLimit {
        /// A user.
        account: AccountRef,
    },
    /// The limits of the configuration that apply to each of several users by itself.
    DefaultLimits,
    /// Limits and usage of the accounts that the peer may see: all for root; for a user its own,
    /// its group's and its sessions'.
    ListLimits,
    /// Checks all limits now, and kills where one is exceeded.
    RunOomKiller {
        /// Only this account, or the group of this user; `None`: all.
        account: Option<AccountRef>,
    },
    /// The victim that would be selected now, with the reasons.
    Explain {
        /// If this account exceeded its limit; `None`: if the system ran short of memory.
        account: Option<AccountRef>,
    },
    /// Reads the configuration files again and applies them. Root only.
    Reload,
    /// Counters since the daemon's start.
    Counters,
    /// Sends [`Reply::Event`]s on this connection from now on: those of the peer's user, all for
    /// root. A subscriber that does not read is disconnected.
    Subscribe,
    /// Sets the kill preference of one of the peer's processes. It applies when the user's own
    /// limit is exceeded, not when the system runs short of memory, and rules of the administrator
    /// take precedence.
    SetImportance {
        /// The process; `None`: the peer.
        pid: Option<u32>,
        /// Valid until the process exits or another request replaces it.
        importance: Importance,
    },
    /// Memory that the sender, another daemon, holds for processes of users. It replaces the last
    /// report on this connection, and counts until the connection ends. Root only.
    ReportHeldMemory {
        /// At most as many as fit in a request.
        held: Vec<HeldMemory>,
    },
    /// The latest decisions, newest first.
    Why {
        /// Maximum number of records.
        last: u32,
    },
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Status`].
    Status(Status),
    /// To [`Request::SetLimit`], [`Request::ClearLimit`], [`Request::SetImportance`] and
    /// [`Request::ReportHeldMemory`].
    Done,
    /// To [`Request::ListLimits`] and [`Request::GetLimit`].
    Limits {
        /// By account.
        limits: Vec<UserLimit>,
    },
    /// To [`Request::DefaultLimits`].
    DefaultLimits {
        /// Those of groups' members, and then that of every ordinary user.
        limits: Vec<ConfiguredLimit>,
    },
    /// To [`Request::RunOomKiller`]: one decision per account that exceeded its limit.
    OomKillerRan {
        /// Empty if no account exceeded its limit.
        kills: Vec<Why>,
    },
    /// To [`Request::Why`].
    Why {
        /// Newest first.
        records: Vec<Why>,
    },
    /// To [`Request::Reload`] if the files are valid; otherwise the reply is an error and the old
    /// configuration stays in force.
    Reloaded(Reloaded),
    /// To [`Request::Counters`].
    Counters(Counters),
    /// To [`Request::Subscribe`].
    Subscribed,
    /// Unsolicited, to subscribers.
    Event(Event),
    /// To [`Request::Explain`].
    Explained(Explanation),
    /// The request was refused or failed.
    Error {
        /// Object, fact and remedy, for the user.
        message: String,
    },
}

/// Changes by a configuration that was read again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// One line per change.
    pub changes: Vec<String>,
    /// One line per setting that could not be applied.
    pub problems: Vec<String>,
}

/// Why the daemon kills, as it is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActsOn {
    /// Limits, and shortages of the machine.
    #[default]
    LimitsAndShortages,
    /// Limits only: the machine's memory is not monitored.
    Limits,
    /// Nothing: kills are only observed.
    Nothing,
}

/// Reply to [`Request::Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Crate version.
    pub version: String,
    /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of the daemon; 0 before it was introduced.
    #[serde(default)]
    pub protocol: u32,
    /// The daemon's process id.
    pub pid: u32,
    /// Source of memory events: `bpf` or `proc`.
    pub notifier: String,
    /// Why it kills.
    #[serde(default)]
    pub acts_on: ActsOn,
    /// The BPF programs are attached, because a limit is set.
    pub attached: bool,
    /// Users with a limit.
    pub limited_users: u32,
    /// Cgroups with a limit, login sessions among them.
    #[serde(default)]
    pub limited_cgroups: u32,
    /// Users whose actual usage is measured at present, by [source](UserLimit::usage_source).
    #[serde(default)]
    pub usage_sources: BTreeMap<String, u32>,
    /// Victims since start.
    pub kills: u64,
    /// Idle memory that reclaimers released on request, bytes since start.
    pub given_back_bytes: u64,
    /// Processes that lease memory.
    #[serde(default)]
    pub leaseholders: u32,
    /// Lease requests that were refused since start.
    #[serde(default)]
    pub refused: u64,
    /// The rules in force, in their order; for root only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleMatches>,
    /// One sentence per degradation: what is missing and its consequence.
    pub degraded: Vec<String>,
}

/// A level of a limit at which its user is notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitLevel {
    /// The soft limit.
    #[default]
    Soft,
    /// The warning level below it.
    Warn,
}

impl LimitLevel {
    /// The level as the hook receives it, and as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Warn => "warn",
        }
    }

    /// The level in a sentence: "exceeds its ...".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Soft => "soft limit",
            Self::Warn => "warning level",
        }
    }
}

/// A rule about processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleMatches {
    /// As [`Configuration::rules`](crate::configuration::Configuration::rules).
    pub rule: String,
    /// Processes that it decided about in the daemon's last scan; `None`: there was none since the
    /// rule came into force.
    pub processes: Option<u32>,
}

/// An event for subscribers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A victim was selected, or none was found.
    Decided {
        /// The record; its outcome is not known yet, unless there is no victim.
        why: Box<Why>,
    },
    /// The outcome of a decision is known.
    Ended {
        /// The complete record.
        why: Box<Why>,
    },
    /// A user, group or cgroup has crossed its soft limit, or the level of its limit at which it is
    /// warned.
    SoftLimitCrossed(SoftLimitWarning),
}

/// The usage of a user, group or cgroup has crossed a level of its limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoftLimitWarning {
    /// The account; in an event about a login session, its user.
    #[serde(flatten)]
    pub account: AccountRef,
    /// The group's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The cgroup's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The users of the group, or the owner of the cgroup; no event contains them.
    #[serde(skip)]
    pub members: Vec<Uid>,
    /// Charged when it crossed the level, bytes.
    pub used_bytes: u64,
    /// Hard limit, bytes.
    pub hard_bytes: u64,
    /// Which of the two.
    #[serde(default)]
    pub level: LimitLevel,
    /// The hard limit was lowered below `used_bytes`, and a process will be killed after this time,
    /// seconds, if the usage is above it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<u32>,
}

impl Event {
    /// The owner of the victim of a decision.
    pub fn victim_uid(&self) -> Option<Uid> {
        match self {
            Self::Decided { why } | Self::Ended { why } => why.victim.as_ref()?.uid,
            Self::SoftLimitCrossed(_) => None,
        }
    }

    /// For others than the victim's owner and root.
    pub fn without_details(mut self) -> Self {
        if let Self::Decided { why } | Self::Ended { why } = &mut self
            && let Some(victim) = &mut why.victim
        {
            victim.details = None;
        }
        self
    }

    /// The account that the event concerns.
    pub fn account(&self) -> AccountRef {
        match self {
            Self::Decided { why } | Self::Ended { why } => why.account,
            Self::SoftLimitCrossed(warning) => warning.account,
        }
    }
}

/// Kill preference of a process, set by its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Importance {
    /// Killed only if no other victim is left.
    Avoid,
    /// No preference.
    Ordinary,
    /// Killed first.
    Prefer,
}

/// Memory that a daemon holds for a user. No process of the user has it in its resident set, except
/// the part of the file that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldMemory {
    /// The user that it is charged to.
    pub uid: Uid,
    /// The process that it is held for, whose account is charged instead. Nothing is charged for
    /// one that does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Bytes, mapped or not.
    pub bytes: u64,
    /// The file through which the process maps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<MappedFile>,
}

/// A file as `/proc/PID/maps` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    /// Major device number.
    pub major: u32,
    /// Minor device number.
    pub minor: u32,
    /// Inode number.
    pub inode: u64,
}

/// Counters since the daemon's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Decisions to kill, by trigger and sender of the signal. Impossible pairs are omitted.
    pub kills: Vec<Kills>,
    /// Processes killed; of a herd, all.
    pub processes: u64,
    /// Decisions without a victim.
    pub without_victim: u64,
    /// Victims that did not exit in time.
    pub stuck: u64,
    /// Crossings of hard limits that a measurement of actual usage refuted: no process was killed.
    #[serde(default)]
    pub refuted_crossings: u64,
    /// Memory freed by victims, bytes.
    pub bytes_back: u64,
    /// From crossing the limit to the signal, where the crossing was timed.
    pub decide: Histogram,
    /// From the signal until the memory was free.
    pub reclaim: Histogram,
}

/// Decisions of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kills {
    /// Cause of the decision.
    pub trigger: Trigger,
    /// Sender of the signal.
    pub killer: KilledBy,
    /// Number of decisions.
    pub count: u64,
}

/// Upper bounds of a new histogram's buckets, microseconds: from a kill in the page fault to a
/// victim that hardly gets a CPU.
#[rustfmt::skip]
const BOUNDS_US: [u64; 19] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000,
    100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// Durations, counted in buckets. The message contains the bounds, since the program that reads it
/// may have another version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper bounds of the buckets, microseconds, ascending.
    pub bounds_us: Vec<u64>,
    /// Counts per bucket, not cumulative; the last one is of durations above all bounds.
    pub counts: Vec<u64>,
    /// Sum of all durations, microseconds.
    pub sum_us: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = vec![0; BOUNDS_US.len() + 1];
        Self { bounds_us: BOUNDS_US.to_vec(), counts, sum_us: 0 }
    }
}

impl Histogram {
    /// Counts a duration of `micros` microseconds.
    pub fn add(&mut self, micros: u64) {
        let at = self.bounds_us.partition_point(|bound| *bound < micros);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum_us = self.sum_us.saturating_add(micros);
    }

    /// Number of counted durations.
    pub fn all(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Limit and account of a user, a group or a cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserLimit {
    /// The account.
    #[serde(flatten)]
    pub account: AccountRef,
    /// The group's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The cgroup's path, from the root of the hierarchy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The uids of the group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Uid>,
    /// The kinds of memory that count, of `anon`, `shmem`, `swap` and `file`; empty: the first
    /// three.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<String>,
    /// Hard limit, bytes.
    pub hard_bytes: u64,
    /// Soft limit, bytes.
    pub soft_bytes: u64,
    /// Charged now, bytes: memory of the kinds that count.
    pub used_bytes: u64,
    /// Of these, memory of victims that have not exited yet, bytes.
    pub dying_bytes: u64,
    /// Maximum charged since the limit was set, bytes.
    #[serde(default)]
    pub peak_bytes: u64,
    /// Source of `used_bytes` near the limit: `resident sets` (a page counts for each process that
    /// has it), `proportional set sizes` or `memory controller`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_source: Option<String>,
    /// Leased to processes that have not touched it yet, bytes. With `used_bytes` it never exceeds
    /// the hard limit.
    #[serde(default)]
    pub leased_bytes: u64,
    /// Processes with a lease.
    #[serde(default)]
    pub leaseholders: u32,
    /// Origin of the limit: `config`, `default` or `runtime`.
    pub source: String,
    /// Its other limits.
    #[serde(flatten)]
    pub details: LimitDetails,
}

/// All limits of an account, and what shares them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitDetails {
    /// The limits by source, in the order of their precedence. The first one applies; while there
    /// is a grace, a limit above it is in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LimitLayer>,
    /// A lowered limit that does not act yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<PendingLimit>,
    /// The account has no limit; both numbers are larger than any machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exempt: bool,
    /// Resident sets and swap of the group's users that have a process, by uid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub member_usage: Vec<MemberUsage>,
}

/// A limit of one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitLayer {
    /// `own` (the user's own request), `runtime`, `config` or `default`.
    pub source: String,
    /// Hard limit, bytes.
    pub hard_bytes: u64,
}

/// A limit that does not act yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingLimit {
    /// Hard limit, bytes.
    pub hard_bytes: u64,
    /// It acts after this time, or once the usage is below it, seconds.
    pub seconds: u32,
}

/// The memory of one user of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberUsage {
    /// The user.
    pub uid: Uid,
    /// Bytes.
    pub used_bytes: u64,
}

/// Cause of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// The notifier reported that a hard limit was exceeded.
    Notifier,
    /// The periodic check found a limit exceeded.
    Timer,
    /// A client requested it.
    Request,
    /// A limit was set or lowered below the usage.
    LimitSet,
    /// Usage was above the soft limit of a limit with `soft-signal`.
    SoftLimit,
    /// Available memory and swap were below their levels.
    Memory,
    /// At the current rate memory would have run out before a kill could take effect.
    Forecast,
    /// All tasks stalled for memory most of the time.
    Stall,
}

impl Trigger {
    /// The name in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Notifier => "notifier",
            Self::Timer => "timer",
            Self::Request => "request",
            Self::LimitSet => "limit-set",
            Self::SoftLimit => "soft-limit",
            Self::Memory => "memory",
            Self::Forecast => "forecast",
            Self::Stall => "stall",
        }
    }

    /// Whether the system was short of memory, as opposed to an account over its limit.
    pub fn is_of_the_machine(self) -> bool {
        matches!(self, Self::Memory | Self::Forecast | Self::Stall)
    }
}

/// The victim that would be selected now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// State of the account, or of the system; a sentence.
    pub state: String,
    /// The victim.
    pub victim: Option<Candidate>,
    /// Processes that would be killed with it.
    pub others: Vec<Candidate>,
    /// The next victim after these.
    pub runner_up: Option<Candidate>,
    /// Number of candidates.
    pub considered: u32,
    /// The rule that selected the victim, or the reason why there is none.
    pub rule: String,
}

/// Sender of the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KilledBy {
    /// The BPF program, in the page fault that exceeded the limit.
    Kernel,
    /// The daemon, through a pidfd.
    Daemon,
}

impl KilledBy {
    /// The name in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Daemon => "daemon",
        }
    }
}

/// A process in a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Process id.
    pub pid: u32,
    /// Real uid of its owner; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// Name of the process.
    pub comm: String,
    /// Anonymous and shared memory, bytes.
    pub rss_bytes: u64,
    /// Swapped memory, bytes.
    pub swap_bytes: u64,
    /// Page tables, and memory files that it held open and had not mapped, bytes.
    #[serde(default)]
    pub unmapped_bytes: u64,
    /// Growth in the last seconds, bytes.
    #[serde(default)]
    pub grown_bytes: u64,
    /// Of a victim, if it could be read in time. A user gets those of its own processes, root all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<ProcessDetails>>,
}

impl Why {
    /// Removes the details of other users' processes: members of a group see each other's records.
    pub fn hide_details_from(&mut self, user: Uid) {
        let victim = self.victim.as_mut().filter(|victim| victim.uid != Some(user));
        if let Some(victim) = victim {
            victim.details = None;
        }
    }
}

/// What tells a process from others with its name. Texts have at most 256 bytes; characters that do
/// not print are escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessDetails {
    /// The command line, its arguments joined by blanks.
    pub command: String,
    /// The path of its control group (version 2), which names its unit or container; empty if
    /// unknown.
    #[serde(default)]
    pub cgroup: String,
    /// The working directory; empty if unknown.
    #[serde(default)]
    pub folder: String,
    /// The pid of its parent.
    pub parent_pid: u32,
    /// The name of its parent; empty if that has exited.
    #[serde(default)]
    pub parent: String,
}

/// The outcome of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Outcome {
    /// Signalled; its memory is not free yet.
    Dying,
    /// The victim exited and its memory is free.
    Reclaimed {
        /// Bytes by which the user's account fell.
        bytes_back: u64,
        /// From the signal until the memory was free, microseconds.
        micros: u64,
        /// `process_mrelease` released memory.
        mreleased: bool,
    },
    /// The victim did not exit in time; another was selected.
    Stuck {
        /// State of its tasks, as far as known.
        reason: String,
    },
    /// The daemon exited before the outcome was known.
    Unknown,
    /// Kills are not carried out: the victim would have been killed.
    Observed,
    /// There was no victim.
    NoVictim {
        /// The reason.
        reason: String,
    },
}

/// The record of one decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// Number of the decision; starts at 1.
    pub id: u64,
    /// Time, microseconds since the epoch.
    pub at_micros: u64,
    /// The account whose limit was exceeded; for the system or a cgroup, the owner of the victim.
    #[serde(flatten)]
    pub account: AccountRef,
    /// The group's name, if it was a group's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The cgroup's path, if it was a cgroup's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Cause of the decision.
    pub trigger: Trigger,
    /// State of the system, in words; empty if a limit was exceeded.
    #[serde(default)]
    pub state: String,
    /// Sender of the signal; `None` if there was no victim.
    pub killer: Option<KilledBy>,
    /// Hard limit, bytes; 0 if the system was short of memory.
    pub hard_bytes: u64,
    /// Usage at the decision, bytes: of the account, or of the system.
    pub used_bytes: u64,
    /// The killed process.
    pub victim: Option<Candidate>,
    /// Processes killed with it: others of its family that grew together.
    #[serde(default)]
    pub others: Vec<Candidate>,
    /// The next victim after these.
    pub runner_up: Option<Candidate>,
    /// Number of processes that were considered.
    pub considered: u32,
    /// The rule, in words.
    pub rule: String,
    /// Memory that the kill does not free (page cache, shared memory, swap ...), in words; empty if
    /// it is negligible.
    #[serde(default)]
    pub kept: String,
    /// From exceeding the limit to the signal, microseconds; `None` if that was not timed.
    pub decide_micros: Option<u64>,
    /// Outcome of the kill.
    pub outcome: Outcome,
}

impl Why {
    /// The killed processes.
    pub fn killed(&self) -> impl Iterator<Item = &Candidate> {
        self.victim.iter().chain(&self.others)
    }
}
