//! What is said to `headroom-oomd`.

use serde::{Deserialize, Serialize};

/// Kind of an account.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum AccountKind {
    /// One user's.
    #[default]
    User,
    /// That of several users together.
    Group,
    /// A cgroup's.
    Cgroup,
}

/// An account.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct AccountRef {
    /// What it is; a user's in records of earlier versions.
    #[serde(default)]
    pub kind: AccountKind,
    /// A user's uid; of a group or a cgroup the number that the daemon has given it, which is
    /// larger than any uid.
    pub uid: u32,
}

impl AccountRef {
    /// A user's own.
    pub fn user(uid: u32) -> Self {
        Self { kind: AccountKind::User, uid }
    }
}

/// A request. Root may do all of it for anybody. A user may see and lower its own limit, see its
/// own kills, and have its own largest process killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Is it up, and how does it work here?
    Status,
    /// Sets a user's limit, from now on until cleared or restarted. Who shares a group's limit has
    /// none of its own.
    SetLimit {
        /// Whose.
        account: AccountRef,
        /// Bytes that may not be exceeded.
        hard_bytes: u64,
        /// Bytes at which the daemon gets ready; 90 % of the hard limit when `None`.
        soft_bytes: Option<u64>,
    },
    /// Removes a user's limit.
    ClearLimit {
        /// Whose.
        account: AccountRef,
    },
    /// Limits and use of all users and cgroups that the peer may see: a user sees its own
    /// sessions'.
    ListLimits,
    /// Looks now, and kills where a limit is broken.
    RunOomKiller {
        /// Only this account, or that of the group that the user is in; otherwise all that is
        /// limited.
        account: Option<AccountRef>,
    },
    /// Who would die now, and why.
    Explain {
        /// If this account's limit were broken, or that which the user shares; `None`: if the
        /// machine ran short.
        account: Option<AccountRef>,
    },
    /// Reads the configuration anew and puts it into force; only root may ask for it.
    Reload,
    /// What was counted since the start.
    Counters,
    /// From now on this connection hears of what happens: of the asker's own user, root of all.
    /// What comes is [`Reply::Happened`]; who does not read loses the connection.
    Subscribe,
    /// How the asker's user sees one of its own processes: it counts among that user's own, when
    /// its limit is broken. When the machine runs short, and against rules of the administrator, it
    /// does not count.
    SetImportance {
        /// The process; `None`: the asker itself.
        pid: Option<u32>,
        /// Until the process ends, or something else is said.
        importance: Importance,
    },
    /// The latest decisions, newest first.
    Why {
        /// At the most so many.
        last: u32,
    },
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Status`].
    Status(Status),
    /// To [`Request::SetLimit`] and [`Request::ClearLimit`].
    Done,
    /// To [`Request::ListLimits`].
    Limits {
        /// By account.
        limits: Vec<UserLimit>,
    },
    /// To [`Request::RunOomKiller`]: one decision a user that was over its limit.
    Ran {
        /// Empty when nobody was over.
        kills: Vec<Why>,
    },
    /// To [`Request::Why`].
    Why {
        /// Newest first.
        records: Vec<Why>,
    },
    /// To [`Request::Reload`], when the files make sense; otherwise the old configuration stays in
    /// force, and the answer is an error.
    Reloaded {
        /// What is different now, a line each.
        changes: Vec<String>,
        /// What could not be put into force, a line each.
        problems: Vec<String>,
    },
    /// To [`Request::Counters`].
    Counters(Counters),
    /// To [`Request::Subscribe`].
    Subscribed,
    /// Without a question, to those who have subscribed.
    Happened(Event),
    /// To [`Request::Explain`].
    Explained(Explanation),
    /// The request was refused or failed.
    Error {
        /// For a person.
        message: String,
    },
}

/// The daemon in a few numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Crate version.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// How memory is watched: `bpf` or `proc`.
    pub notifier: String,
    /// The notifier is attached (a limit is set).
    pub attached: bool,
    /// Users with a limit.
    pub limited_users: u32,
    /// Cgroups with a limit, login sessions among them.
    #[serde(default)]
    pub limited_cgroups: u32,
    /// Victims since start.
    pub kills: u64,
    /// Idle memory that others gave back when they were asked to, bytes since start.
    pub given_back_bytes: u64,
    /// Processes that lease memory.
    #[serde(default)]
    pub leaseholders: u32,
    /// Requests for more memory that were refused since start.
    #[serde(default)]
    pub refused: u64,
    /// What does not work here and what is lost by it, a sentence each.
    pub degraded: Vec<String>,
}

/// What subscribers hear of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A decision was made.
    Decided {
        /// With all that went into it; its end is not known yet, unless nobody can be killed.
        why: Box<Why>,
    },
    /// It is known how a decision ended.
    Ended {
        /// The same, with its end.
        why: Box<Why>,
    },
    /// A user, group or cgroup has crossed its soft limit.
    Near {
        /// Whose account; of a login session, its user.
        #[serde(flatten)]
        account: AccountRef,
        /// The group's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<String>,
        /// The cgroup's path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<String>,
        /// Charged, bytes.
        used_bytes: u64,
        /// Hard limit, bytes.
        hard_bytes: u64,
    },
}

impl Event {
    /// Whom it is about.
    pub fn account(&self) -> AccountRef {
        match self {
            Self::Decided { why } | Self::Ended { why } => why.account,
            Self::Near { account, .. } => *account,
        }
    }
}

/// How a user sees a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Importance {
    /// It is to die only when nobody else is left.
    Avoid,
    /// Like any other.
    Ordinary,
    /// It can be done without: it is to die first.
    Prefer,
}

/// What was counted since the daemon's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Decisions to kill, by trigger and killer; those that cannot be are left out.
    pub kills: Vec<Kills>,
    /// Processes killed; of a herd, all.
    pub processes: u64,
    /// Limits broken while nobody could be killed.
    pub without_victim: u64,
    /// Victims still there when their grace was over.
    pub stuck: u64,
    /// Memory that victims gave back, bytes.
    pub bytes_back: u64,
    /// From the break of a limit to the signal, where the break was timed.
    pub decide: Histogram,
    /// From the signal until the memory was back.
    pub reclaim: Histogram,
}

/// Decisions of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kills {
    /// What made the daemon look.
    pub trigger: Trigger,
    /// Who sent the signal.
    pub killer: Killer,
    /// How many.
    pub count: u64,
}

/// Upper bounds of a histogram's buckets, microseconds; what is longer is in one bucket more. From
/// a kill in the page fault to a victim that hardly gets a CPU.
pub const BOUNDS_US: [u64; 6] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// Times, by length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Not cumulative.
    pub counts: [u64; BOUNDS_US.len() + 1],
    /// All together, microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Counts a time, in microseconds.
    pub fn add(&mut self, micros: u64) {
        let at = BOUNDS_US.iter().take_while(|bound| micros > **bound).count();
        self.counts[at] += 1;
        self.sum_us = self.sum_us.saturating_add(micros);
    }

    /// How many were counted.
    pub fn all(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// A user's limit and account, or those that several share, or a cgroup's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserLimit {
    /// Whose.
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
    pub members: Vec<u32>,
    /// The kinds of memory that count, of `anon`, `shmem`, `swap` and `file`; empty: the first
    /// three.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<String>,
    /// Hard limit, bytes.
    pub hard_bytes: u64,
    /// Soft limit, bytes.
    pub soft_bytes: u64,
    /// Charged now, bytes: what counts.
    pub used_bytes: u64,
    /// Of these, bytes of a victim that is not gone yet.
    pub dying_bytes: u64,
    /// The most that was ever charged since the limit was set, bytes.
    #[serde(default)]
    pub peak_bytes: u64,
    /// How `used_bytes` is known near the limit: `resident sets` (a page counts for each process
    /// that has it), `proportional set sizes` or `memory controller`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_source: Option<String>,
    /// Promised to processes that have not touched it yet, bytes. With `used_bytes` it never
    /// exceeds the hard limit.
    #[serde(default)]
    pub leased_bytes: u64,
    /// Processes that lease.
    #[serde(default)]
    pub leaseholders: u32,
    /// Where the limit comes from: `config` or `runtime`.
    pub source: String,
}

/// What made the daemon look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// The notifier saw the hard limit broken.
    Notifier,
    /// The timer found a limit broken.
    Timer,
    /// Somebody asked for it.
    Request,
    /// Available memory and swap were below their levels.
    Memory,
    /// At its rate the machine was to be out of memory before the kill had helped.
    Forecast,
    /// All programs waited for memory most of the time.
    Stall,
}

impl Trigger {
    /// In a word, as in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Notifier => "notifier",
            Self::Timer => "timer",
            Self::Request => "request",
            Self::Memory => "memory",
            Self::Forecast => "forecast",
            Self::Stall => "stall",
        }
    }

    /// It was about the whole machine, not about one user's limit.
    pub fn is_of_the_machine(self) -> bool {
        matches!(self, Self::Memory | Self::Forecast | Self::Stall)
    }
}

/// Who would die now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Where the user's account, or the machine, stands; a sentence.
    pub state: String,
    /// The first to die.
    pub victim: Option<Candidate>,
    /// Who would die with it.
    pub others: Vec<Candidate>,
    /// Who would be next.
    pub runner_up: Option<Candidate>,
    /// Processes that were looked at.
    pub considered: u32,
    /// The rule in words, or why nobody could be killed.
    pub rule: String,
}

/// Who sent the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Killer {
    /// The notifier's program, inside the kernel, in the page fault that broke the limit.
    Kernel,
    /// The daemon, through a pidfd.
    Daemon,
}

impl Killer {
    /// In a word, as in JSON.
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
    pub uid: Option<u32>,
    /// Its name.
    pub comm: String,
    /// Anonymous and shared memory, bytes.
    pub rss_bytes: u64,
    /// Swapped memory, bytes.
    pub swap_bytes: u64,
    /// Growth in the last seconds, bytes.
    #[serde(default)]
    pub grown_bytes: u64,
}

/// How the victim ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Outcome {
    /// Signalled; its memory is not back yet.
    Dying,
    /// Gone, and its memory is back.
    Reclaimed {
        /// Bytes by which the user's account fell.
        bytes_back: u64,
        /// From the signal until the memory was back, microseconds.
        micros: u64,
        /// `process_mrelease` helped.
        mreleased: bool,
    },
    /// Still there when its grace was over; the next one was chosen.
    Stuck {
        /// Why, as far as it can be told.
        reason: String,
    },
    /// The daemon ended before it was known.
    Unknown,
    /// Nobody could be killed.
    NoVictim {
        /// Why.
        reason: String,
    },
}

/// One decision with all that went into it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// Counts up from 1.
    pub id: u64,
    /// When, microseconds since the epoch.
    pub at_micros: u64,
    /// Whose limit; where it was about the machine or a cgroup, whose process.
    #[serde(flatten)]
    pub account: AccountRef,
    /// The name of the group whose limit it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The path of the cgroup whose limit it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// What made the daemon look.
    pub trigger: Trigger,
    /// What was wrong with the machine, in words; empty when a limit was broken.
    #[serde(default)]
    pub state: String,
    /// Who sent the signal; `None` when nobody was killed.
    pub killer: Option<Killer>,
    /// Hard limit, bytes; 0 where it was about the machine.
    pub hard_bytes: u64,
    /// Charged at the decision, bytes; where it was about the machine, what was in use.
    pub used_bytes: u64,
    /// Who died.
    pub victim: Option<Candidate>,
    /// Who died with it: others of its family that grew together.
    #[serde(default)]
    pub others: Vec<Candidate>,
    /// Who would have been next.
    pub runner_up: Option<Candidate>,
    /// Processes of the user that were looked at.
    pub considered: u32,
    /// The rule, in words.
    pub rule: String,
    /// What the victim's death does not give back (page cache, shared memory, swap ...), in words;
    /// empty where that is nothing to speak of.
    #[serde(default)]
    pub kept: String,
    /// From the break of the limit to the signal, microseconds; `None` when the break was not
    /// timed.
    pub decide_micros: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
}
