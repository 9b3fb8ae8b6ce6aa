//! A kill that a detector has decided on, and that the executor carries out.

use control::oomd::Trigger;
use memory_ledger::{AccountId, CgroupId, ChargedAccount, Choice, NoVictim, Process};
use memory_watch::ProcessSample;
use reclaim::{Holdings, Identity, OpenError, Victim};

/// What has to be done about an account.
#[expect(clippy::large_enum_variant, reason = "boxing would allocate on the way to a kill")]
pub(super) enum Decision {
    /// Nothing: it is within its limit, or a kill is in flight for it.
    Nothing,
    /// The chosen process is gone, or is charged to another account by now: decide anew.
    Retry,
    Kill(KillPlan),
    NoVictim(Unarmed),
}

/// Why there is no victim.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unarmed {
    #[error(transparent)]
    NoVictim(#[from] NoVictim),
    #[error("the chosen process cannot be pinned: {0}")]
    Open(#[from] OpenError),
}

/// The limit or shortage that a kill is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The limit of a user or group.
    Limit(AccountId),
    /// The limit of a cgroup.
    Cgroup(CgroupScope),
    /// A system that runs short of memory.
    System,
}

impl Purpose {
    pub(super) fn cgroup(&self) -> Option<&CgroupScope> {
        match self {
            Self::Cgroup(scope) => Some(scope),
            Self::Limit(_) | Self::System => None,
        }
    }
}

/// A cgroup with a limit: only its processes are killed for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupScope {
    pub(super) id: CgroupId,
    pub(super) path: String,
}

impl CgroupScope {
    pub(super) fn account(&self) -> AccountId {
        AccountId::Cgroup(self.id)
    }
}

/// How the victim is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// SIGKILL: one system call.
    Kill,
    /// SIGTERM, and SIGKILL after so many milliseconds.
    Ask { grace_ms: u64 },
    /// The kernel program sent SIGKILL at this time, nanoseconds.
    SentByKernel { at_ns: u64 },
}

/// A process with its pidfd open: whatever happens to its pid, the signal reaches this process.
pub(super) struct PinnedVictim {
    pub(super) victim: Victim,
    /// What its death does not give back, as text.
    pub(super) kept: String,
}

impl PinnedVictim {
    pub(super) fn open(process: &Process) -> Result<Self, OpenError> {
        let victim = open(process)?;
        Ok(Self { victim, kept: kept_by(process.id.pid) })
    }
}

/// Opens a pidfd of this very process.
pub(super) fn open(process: &Process) -> Result<Victim, OpenError> {
    let Process { id, uid, .. } = *process;
    let sample = ProcessSample { start_time_ns: id.start_time, ..ProcessSample::default() };
    Victim::open_as(Identity { pid: id.pid, uid, start_ticks: sample.start_ticks() })
}

/// What a process's death would not give back. To be read before it is killed.
pub(super) fn kept_by(pid: u32) -> String {
    Holdings::of(pid).map(|holdings| holdings.kept()).unwrap_or_default()
}

/// The only representation of a kill, whichever detector decided on it.
pub(super) struct KillPlan {
    pub(super) purpose: Purpose,
    pub(super) trigger: Trigger,
    pub(super) method: Method,
    /// The victim, the others of a group kill or fork bomb, and the reason.
    pub(super) choice: Choice,
    /// The account that pays for the victim, whatever the kill is for. If it has a limit, it awaits
    /// the victim's memory: no other process is killed for that limit meanwhile.
    pub(super) payer: ChargedAccount,
    /// The name of the group whose limit the kill is for.
    pub(super) group: Option<String>,
    /// `None`: the kernel program's victim was gone before it could be pinned.
    pub(super) pinned: Option<PinnedVictim>,
    /// What the account that the kill is for held, or the system, bytes.
    pub(super) used_bytes: u64,
    /// The limit that is broken, bytes; 0: none.
    pub(super) hard_bytes: u64,
    /// The state of the system as text; empty for a limit.
    pub(super) state: String,
    /// When the limit was broken or the shortage measured, nanoseconds; `None`: unknown.
    pub(super) noticed_ns: Option<u64>,
}
