//! Log entries about kills, and the part of each owner in them. Where standard error goes to the
//! journal, they go there natively, with a field for each fact: `journalctl HEADROOM_UID=1000`.
//!
//! A write to the journal blocks while journald does not read: never from the event loop.

use std::collections::BTreeMap;

use control::oomd::{AccountKind, Outcome, Why};
use owners::{Owner, TokenBuckets, bounds};

use super::hooks::Fact;

/// Log target of kills.
const KILLED: &str = "headroom_oomd::killed";
/// Log target of a victim's exit.
const ENDED: &str = "headroom_oomd::ended";
/// Log target of soft limits that were crossed.
const WARNED: &str = "headroom_oomd::warned";

/// The targets, each with its `MESSAGE_ID` in the journal.
pub const MESSAGE_IDS: [(&str, &str); 3] = [
    (KILLED, "f3a1c9d2b6e84f0795c3d81b2e6a4f10"),
    (ENDED, "0b7d5e92c8134a6fa2e1f6409d3c7b58"),
    (WARNED, "5c2e8f41a9d7463eb0f4a7c61d93e285"),
];

// In the journal each field has the prefix HEADROOM_, in capitals: the fields are those of `facts`
// and a few more. On standard error, values that users choose are quoted, with control characters
// escaped.

/// Logs a decision.
pub fn log_decision(why: &Why) {
    let account = match (&why.group, &why.cgroup) {
        (_, Some(cgroup)) => format!("cgroup {cgroup}"),
        (Some(group), None) => format!("group {group}"),
        (None, None) => format!("uid {}", why.account.uid),
    };
    let message = match (&why.victim, &why.outcome) {
        (Some(victim), outcome) => {
            let name = victim.comm.escape_default();
            let killed = if *outcome == Outcome::Observed { "would have killed" } else { "killed" };
            format!("{killed} {name} (pid {}) of {account}: {}", victim.pid, why.rule)
        }
        (None, Outcome::NoVictim { reason }) if why.trigger.is_of_the_machine() => {
            format!("{}, and no process can be killed: {reason}", why.state)
        }
        (None, Outcome::NoVictim { reason }) => {
            format!("{account} is over its limit, and no process can be killed: {reason}")
        }
        (None, _) => format!("{account} is over its limit, and no process was killed"),
    };
    let victim = why.victim.as_ref();
    let details = victim.and_then(|victim| victim.details.as_ref());
    let others = why.others.iter().map(|other| other.pid.to_string()).collect::<Vec<_>>().join(" ");
    tracing::warn!(
        target: KILLED,
        decision = why.id,
        reason = why.trigger.word(),
        limit_bytes = why.hard_bytes,
        used_bytes = why.used_bytes,
        rule = why.rule,
        uid = uid(why),
        group = why.group,
        cgroup = why.cgroup,
        pid = victim.map(|victim| victim.pid),
        name = victim.map(|victim| victim.comm.as_str()),
        bytes = victim.map(|victim| victim.rss_bytes + victim.swap_bytes),
        swap_bytes = victim.map(|victim| victim.swap_bytes),
        grown_bytes = victim.map(|victim| victim.grown_bytes),
        killer = why.killer.map(|killer| killer.word()),
        outcome = outcome(&why.outcome),
        others = (!others.is_empty()).then_some(others),
        state = why.state,
        considered = why.considered,
        runner_up = why.runner_up.as_ref().map(|next| next.pid),
        decide_micros = why.decide_micros,
        command = details.map(|details| details.command.as_str()),
        victim_cgroup = details.map(|details| details.cgroup.as_str()),
        folder = details.map(|details| details.folder.as_str()),
        parent_pid = details.map(|details| details.parent_pid),
        parent = details.map(|details| details.parent.as_str()),
        "{message}"
    );
}

/// Logs the outcome of a kill.
pub fn log_outcome(why: &Why) {
    let pid = why.victim.as_ref().map(|victim| victim.pid);
    let details = why.victim.as_ref().and_then(|victim| victim.details.as_ref());
    let command = details.map(|details| details.command.as_str());
    let (decision, uid, outcome) = (why.id, uid(why), outcome(&why.outcome));
    match &why.outcome {
        Outcome::Reclaimed { bytes_back, micros, mreleased } => {
            tracing::info!(
                target: ENDED, decision, uid, pid, command, outcome, bytes_back, micros, mreleased,
                "memory is back"
            );
        }
        Outcome::Stuck { reason } => {
            tracing::warn!(
                target: ENDED, decision, uid, pid, command, outcome,
                "the victim does not exit, choosing another: {reason}"
            );
        }
        Outcome::Dying | Outcome::Unknown | Outcome::Observed | Outcome::NoVictim { .. } => {}
    }
}

/// Logs that an account has crossed its soft limit.
pub fn log_warning(message: &str, facts: &[Fact]) {
    let fact = |name| facts.iter().find(|fact| fact.0 == name).map(|fact| fact.1.as_str());
    tracing::warn!(
        target: WARNED,
        uid = fact("HEADROOM_UID"),
        uids = fact("HEADROOM_UIDS"),
        group = fact("HEADROOM_GROUP"),
        cgroup = fact("HEADROOM_CGROUP"),
        bytes = fact("HEADROOM_BYTES"),
        limit_bytes = fact("HEADROOM_LIMIT_BYTES"),
        "{message}"
    );
}

/// Uid of the victim's user, or of the account.
fn uid(why: &Why) -> Option<u32> {
    let owner = why.victim.as_ref().and_then(|victim| victim.uid).map(|uid| uid.0);
    owner.or((why.account.kind == AccountKind::User).then_some(why.account.uid))
}

fn outcome(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Dying => "dying",
        Outcome::Unknown => "unknown",
        Outcome::Observed => "observed",
        Outcome::NoVictim { .. } => "no-victim",
        Outcome::Stuck { .. } => "stuck",
        Outcome::Reclaimed { .. } => "reclaimed",
    }
}

/// The fields of a decision, as environment variables of the hooks.
pub fn facts(why: &Why) -> Vec<Fact> {
    let mut facts = vec![
        ("HEADROOM_DECISION", why.id.to_string()),
        ("HEADROOM_REASON", why.trigger.word().to_owned()),
        ("HEADROOM_LIMIT_BYTES", why.hard_bytes.to_string()),
        ("HEADROOM_USED_BYTES", why.used_bytes.to_string()),
        ("HEADROOM_RULE", why.rule.clone()),
        ("HEADROOM_OUTCOME", outcome(&why.outcome).to_owned()),
    ];
    facts.extend(uid(why).map(|uid| ("HEADROOM_UID", uid.to_string())));
    facts.extend(why.group.iter().map(|group| ("HEADROOM_GROUP", group.clone())));
    facts.extend(why.cgroup.iter().map(|cgroup| ("HEADROOM_CGROUP", cgroup.clone())));
    if let Some(victim) = &why.victim {
        facts.push(("HEADROOM_PID", victim.pid.to_string()));
        facts.push(("HEADROOM_NAME", victim.comm.clone()));
        facts.push(("HEADROOM_BYTES", (victim.rss_bytes + victim.swap_bytes).to_string()));
        if let Some(details) = &victim.details {
            facts.push(("HEADROOM_COMMAND", details.command.clone()));
            facts.push(("HEADROOM_VICTIM_CGROUP", details.cgroup.clone()));
            facts.push(("HEADROOM_FOLDER", details.folder.clone()));
            facts.push(("HEADROOM_PARENT_PID", details.parent_pid.to_string()));
            facts.push(("HEADROOM_PARENT", details.parent.clone()));
        }
    }
    if let Some(killer) = why.killer {
        facts.push(("HEADROOM_KILLER", killer.word().to_owned()));
    }
    if let Outcome::Reclaimed { bytes_back, .. } = &why.outcome {
        facts.push(("HEADROOM_BYTES_BACK", bytes_back.to_string()));
    }
    facts
}

/// Lines that owners have left, and how many were left out.
pub(super) struct LogShare {
    buckets: TokenBuckets<Owner>,
    left_out: BTreeMap<Owner, u64>,
}

impl Default for LogShare {
    fn default() -> Self {
        Self {
            buckets: TokenBuckets::new(bounds::LOG_LINES.of_an_owner()),
            left_out: BTreeMap::new(),
        }
    }
}

impl LogShare {
    /// Whether a line of this owner is logged; otherwise it is counted.
    pub(super) fn take(&mut self, owner: Owner, now_ns: u64) -> bool {
        let is_logged = owner.is_root() || self.buckets.take(owner, now_ns);
        if !is_logged {
            *self.left_out.entry(owner).or_default() += 1;
        }
        is_logged
    }

    /// No line was left out that [`left_out`](Self::left_out) has not returned.
    pub(super) fn has_reported(&self) -> bool {
        self.left_out.is_empty()
    }

    /// Owners and the number of their lines that were left out, for those that have one line again.
    pub(super) fn left_out(&mut self, now_ns: u64) -> Vec<(Owner, u64)> {
        let mut reported = Vec::new();
        self.left_out.retain(|owner, count| {
            let is_due = self.buckets.take(*owner, now_ns);
            if is_due {
                reported.push((*owner, *count));
            }
            !is_due
        });
        reported
    }
}

#[cfg(test)]
mod tests {
    use owners::Uid;

    use super::*;

    #[test]
    fn a_flood_is_counted_and_leaves_lines_to_others() {
        const SECOND: u64 = 1_000_000_000;
        let rate = bounds::LOG_LINES.of_an_owner();
        let [loud, quiet] = [1, 2].map(|uid| Owner::User(Uid(uid)));
        let mut log = LogShare::default();
        let logged = (0..rate.burst + 500).filter(|_| log.take(loud, 0)).count() as u64;
        assert_eq!(logged, rate.burst);
        assert!(log.take(quiet, 0) && !log.has_reported());
        assert_eq!(log.left_out(0), [], "it has no line for that");
        assert_eq!(log.left_out(SECOND), [(loud, 500)]);
        assert!(log.has_reported());
        let more = (0..100).filter(|_| log.take(loud, SECOND)).count() as u64;
        assert_eq!(more, rate.per_second - 1, "one was for the number");
        assert!((0..1000).all(|_| log.take(Owner::User(Uid::ROOT), SECOND)));
    }
}
