//! A kill that a detector decided on and the executor carries out.

use control::oomd::Trigger;
use memory_ledger::{AccountId, CgroupId, ChargedAccount, Choice, NoVictim, Process};
use reclaim::{Holdings, Identity, OpenError, Victim};

/// The action that an account requires.
#[expect(clippy::large_enum_variant, reason = "boxing would allocate on the way to a kill")]
pub(super) enum Decision {
    /// None: the account is within its limit, or a kill is in flight for it.
    Nothing,
    /// The chosen process has exited, or is charged to another account by now: decide again.
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

/// The limit or shortage for which a process is killed.
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

/// A cgroup with a limit: for that limit, only its processes are killed.
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

/// How the victim is signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// SIGKILL: one system call.
    Kill,
    /// SIGTERM, and SIGKILL after this time, milliseconds.
    Terminate { grace_ms: u64 },
    /// The kernel program sent SIGKILL at this time, nanoseconds.
    SentByKernel { at_ns: u64 },
}

/// A victim with its pidfd: the signal reaches this process even if its pid is reused.
pub(super) struct PinnedVictim {
    pub(super) victim: Victim,
    /// Memory that the exit of the victim does not free, as text.
    pub(super) kept: String,
}

impl PinnedVictim {
    pub(super) fn open(process: &Process) -> Result<Self, OpenError> {
        let victim = open(process)?;
        Ok(Self { victim, kept: kept_by(process.id.pid) })
    }
}

/// Opens a pidfd of exactly this process.
pub(super) fn open(process: &Process) -> Result<Victim, OpenError> {
    let Process { id, uid, .. } = *process;
    Victim::open_as(Identity { pid: id.pid, uid, start_number: id.start_time })
}

/// Memory that the exit of a process would not free, as text. Must be read before the kill.
pub(super) fn kept_by(pid: u32) -> String {
    Holdings::of(pid).map(|holdings| holdings.kept()).unwrap_or_default()
}

/// The representation of a kill, the same for all detectors.
pub(super) struct KillPlan {
    pub(super) purpose: Purpose,
    pub(super) trigger: Trigger,
    pub(super) method: Method,
    /// The victim, the others of a group kill or fork bomb, and the reason.
    pub(super) choice: Choice,
    /// The account that the victim is charged to, whatever the kill is for. If that account has a
    /// limit, it awaits the victim's memory: no other process is killed for that limit meanwhile.
    pub(super) payer: ChargedAccount,
    /// The name of the group whose limit the kill is for.
    pub(super) group: Option<String>,
    /// `None`: the kernel program's victim had exited before it could be pinned.
    pub(super) pinned: Option<PinnedVictim>,
    /// Usage of the account that the kill is for, or of the system, bytes.
    pub(super) used_bytes: u64,
    /// The exceeded limit, bytes; 0: none.
    pub(super) hard_bytes: u64,
    /// The state of the system as text; empty for a limit.
    pub(super) state: String,
    /// When the limit was exceeded or the shortage measured, nanoseconds, CLOCK_MONOTONIC; `None`:
    /// unknown.
    pub(super) noticed_ns: Option<u64>,
}
