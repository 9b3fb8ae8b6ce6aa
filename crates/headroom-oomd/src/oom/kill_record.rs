//! Decisions as they are recorded and reported.

use control::oomd::{Candidate, Explanation, KilledBy, Outcome, Trigger, Why};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{Account, AccountId, Choice, NoVictim, Process};

use super::kill_plan::{KillPlan, Method, Purpose};
use crate::account_ref::to_ref;
use crate::clock::epoch_micros;

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
        Err(none) => Explanation {
            state,
            victim: None,
            others: Vec::new(),
            runner_up: None,
            considered: 0,
            rule: none.to_string(),
        },
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
