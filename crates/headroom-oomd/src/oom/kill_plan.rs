//! A kill that a detector decided on and the executor carries out, and its record.

use control::oomd::{Candidate, Explanation, KilledBy, Outcome, Trigger, Why};
use headroom_linux::clock::{epoch_micros, monotonic_ns};
use memory_ledger::{Account, AccountId, CgroupId, ChargedAccount, Choice, NoVictim, Process};
use reclaim::{Holdings, Identity, OpenError, Victim};

use crate::oom::control::to_ref;

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

/// The record of a kill. `remark`: a note on too many recent kills; may be empty.
pub(super) fn kill_record(plan: KillPlan, signalled_ns: u64, remark: &str) -> Why {
    let choice = &plan.choice;
    let account: AccountId = match &plan.purpose {
        Purpose::Limit(account) => *account,
        Purpose::Cgroup(_) | Purpose::System => choice.victim.uid.into(),
    };
    let killer = match plan.method {
        Method::SentByKernel { .. } => KilledBy::Kernel,
        Method::Kill | Method::Terminate { .. } => KilledBy::Daemon,
    };
    let ago_micros = monotonic_ns().saturating_sub(signalled_ns) / 1000;
    let decide_ns = plan.noticed_ns.map(|noticed_ns| signalled_ns.saturating_sub(noticed_ns));
    Why {
        id: 0,
        at_micros: epoch_micros().saturating_sub(ago_micros),
        account: to_ref(account),
        group: plan.group,
        cgroup: plan.purpose.cgroup().map(|scope| scope.path.clone()),
        trigger: plan.trigger,
        state: plan.state,
        killer: Some(killer),
        hard_bytes: plan.hard_bytes,
        used_bytes: plan.used_bytes,
        victim: Some(candidate(&choice.victim)),
        others: choice.others.iter().map(candidate).collect(),
        runner_up: choice.runner_up.as_ref().map(candidate),
        considered: choice.considered,
        rule: format!("{}{remark}", choice.cause),
        kept: plan.pinned.map(|pinned| pinned.kept).unwrap_or_default(),
        decide_micros: decide_ns.map(|ns| ns / 1000),
        outcome: Outcome::Dying,
    }
}

/// The record of a kill that is not carried out.
pub(super) fn observed_record(plan: KillPlan) -> Why {
    let why = kill_record(plan, monotonic_ns(), "");
    Why { killer: None, outcome: Outcome::Observed, ..why }
}

/// The record of an exceeded limit for which no process can be killed.
pub(super) fn no_victim_record(account: &Account, trigger: Trigger, reason: String) -> Why {
    Why {
        hard_bytes: account.limit().hard_bytes(),
        used_bytes: account.reading().used_bytes,
        ..no_kill_record(account.id, trigger, reason)
    }
}

/// The record of a limit or a shortage for which no process can be killed, for any account.
pub(super) fn no_kill_record(account: AccountId, trigger: Trigger, reason: String) -> Why {
    Why {
        id: 0,
        at_micros: epoch_micros(),
        account: to_ref(account),
        group: None,
        cgroup: None,
        trigger,
        killer: None,
        hard_bytes: 0,
        used_bytes: 0,
        state: String::new(),
        victim: None,
        others: Vec::new(),
        runner_up: None,
        considered: 0,
        rule: String::new(),
        kept: String::new(),
        decide_micros: None,
        outcome: Outcome::NoVictim { reason },
    }
}

/// The explanation of a choice that is not carried out.
pub(super) fn explanation(state: String, choice: Result<Choice, NoVictim>) -> Explanation {
    match choice {
        Ok(choice) => Explanation {
            state,
            victim: Some(candidate(&choice.victim)),
            others: choice.others.iter().map(candidate).collect(),
            runner_up: choice.runner_up.as_ref().map(candidate),
            considered: choice.considered,
            rule: choice.cause.to_string(),
        },
        Err(none) => Explanation { state, rule: none.to_string(), ..Explanation::default() },
    }
}

fn candidate(process: &Process) -> Candidate {
    Candidate {
        pid: process.id.pid,
        uid: Some(process.uid),
        comm: process.comm.to_string(),
        rss_bytes: process.rss_bytes,
        swap_bytes: process.swap_bytes,
        unmapped_bytes: process.unmapped_bytes,
        grown_bytes: process.grown_bytes,
        details: None,
    }
}
