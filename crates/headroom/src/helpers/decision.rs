//! A decision of `headroom-oomd` as text.

use std::fmt::Write;

use control::oomd::{Candidate, KilledBy, Outcome, ProcessDetails, Trigger, Why};

use super::output::{count, printable};
use super::quantity::{Size, duration, point_in_time};
use super::user;

/// Explains each decision, in paragraphs separated by blank lines.
pub fn explain_all(records: &[Why]) -> String {
    records.iter().map(explain).collect::<Vec<_>>().join("\n")
}

/// One line: the killed process, or the reason why there is none.
pub fn headline(why: &Why) -> String {
    let together = match (&why.group, &why.cgroup) {
        (_, Some(path)) => Some(format!("cgroup {}", printable(path))),
        (Some(group), None) => Some(user::owner(why.account, Some(group), None)),
        (None, None) => None,
    };
    let whose = match (together, why.victim.as_ref().and_then(|victim| victim.uid)) {
        (Some(together), Some(uid)) => format!("user {} in {together}", user::name(uid)),
        (Some(together), None) => together,
        (None, _) => format!("user {}", user::owner(why.account, None, None)),
    };
    match &why.victim {
        Some(victim) if why.outcome == Outcome::Observed => {
            format!("would have killed {} of {whose}", process(victim))
        }
        Some(victim) => format!("killed {} of {whose}", process(victim)),
        None if why.trigger.is_of_the_machine() => "killed no process".to_owned(),
        None => format!("killed no process of {whose}"),
    }
}

/// A paragraph: the decision, its reasons and its outcome.
pub fn explain(why: &Why) -> String {
    let mut text = format!("#{}  {}  {}\n", why.id, point_in_time(why.at_micros), headline(why));
    let mut line = |title: &str, content: String| {
        let _ = writeln!(text, "    {title:<9} {content}");
    };
    if why.trigger.is_of_the_machine() {
        line("machine", printable(&why.state));
    } else {
        line("limit", over(why));
    }
    line("trigger", trigger(why));
    if let Some(victim) = &why.victim {
        line("victim", format!("{}; {}", memory(victim), choice(why)));
        if let Some(details) = &victim.details {
            details_of(details).into_iter().for_each(|(title, text)| line(title, text));
        }
    }
    if !why.others.is_empty() {
        line("and", others(&why.others));
    }
    match &why.runner_up {
        Some(next) => line("next", format!("{}, {}", process(next), memory(next))),
        None if why.victim.is_some() => line("next", "none: it was the only candidate".into()),
        None => {}
    }
    line("outcome", outcome(&why.outcome));
    if !why.kept.is_empty() {
        line("kept", printable(&why.kept).to_string());
    }
    text
}

/// Title and text of each detail that is known.
fn details_of(details: &ProcessDetails) -> Vec<(&'static str, String)> {
    let ProcessDetails { command, cgroup, folder, parent_pid, parent } = details;
    let parent = match (parent.as_str(), parent_pid) {
        ("", 0) => String::new(),
        ("", pid) => format!("pid {pid}"),
        (name, pid) => format!("{name} (pid {pid})"),
    };
    let all = [("command", command), ("cgroup", cgroup), ("folder", folder), ("parent", &parent)];
    let known = all.into_iter().filter(|(_, text)| !text.is_empty());
    known.map(|(title, text)| (title, printable(text))).collect()
}

fn over(why: &Why) -> String {
    let (hard, used) = (why.hard_bytes, why.used_bytes);
    let shares = format!("{} in use of {} allowed", Size(used), Size(hard));
    match used.checked_sub(hard) {
        None => format!("{shares}: {} below it", Size(hard - used)),
        Some(0) => format!("{shares}: exactly at it"),
        Some(excess) => {
            let pages = count(excess.div_ceil(rustix::param::page_size() as u64), "page", "pages");
            format!("{shares}: {} over it ({pages})", Size(excess))
        }
    }
}

fn trigger(why: &Why) -> String {
    let seen = match why.trigger {
        Trigger::Notifier => "an event of the notifier: usage above the limit",
        Trigger::Timer => "the timer: usage above the limit",
        Trigger::Request => "a client requested it",
        Trigger::LimitSet => {
            &format!("the limit was set to {}, below the usage", Size(why.hard_bytes))
        }
        Trigger::SoftLimit => "usage above the soft limit, whose soft-signal is TERM",
        Trigger::Memory => "the machine's memory fell below its level",
        Trigger::Forecast => "the machine's memory was running out too fast to wait",
        Trigger::Stall => "the machine did little but wait for memory",
    };
    let delay = why.decide_micros.map(|t| format!(", {} later", duration(t)));
    match why.killer {
        Some(KilledBy::Kernel) => format!("{seen}; the signal was sent in the page fault itself"),
        Some(KilledBy::Daemon) => {
            format!("{seen}; the daemon sent the signal{}", delay.unwrap_or_default())
        }
        None => seen.into(),
    }
}

fn choice(why: &Why) -> String {
    let considered = count(why.considered, "process", "processes");
    format!("{} ({considered} looked at)", printable(&why.rule))
}

/// Outcome of a decision.
pub fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Dying => "signalled; its memory is not back yet".into(),
        Outcome::Observed => "no signal was sent: headroom-oomd observes".into(),
        Outcome::Unknown => "signalled; the daemon ended before its memory was back".into(),
        Outcome::Reclaimed { bytes_back, micros, mreleased } => {
            let helped = if *mreleased { ", with process_mrelease" } else { "" };
            format!("{} back in {}{helped}", Size(*bytes_back), duration(*micros))
        }
        Outcome::Stuck { reason } => {
            format!("stuck, the next one was chosen: {}", printable(reason))
        }
        Outcome::NoVictim { reason } => {
            format!("no process could be killed: {}", printable(reason))
        }
    }
}

/// Maximum of the other victims of a herd that are named.
const NAMED: usize = 4;

/// The processes that were killed with the victim.
pub fn others(others: &[Candidate]) -> String {
    let named: Vec<String> = others.iter().take(NAMED).map(process).collect();
    let bytes = others.iter().map(|other| other.rss_bytes + other.swap_bytes).sum();
    let more = others.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("with it, {} more in all: {}{more}", Size(bytes), named.join(", "))
}

/// Name and pid.
pub fn process(candidate: &Candidate) -> String {
    format!("{} (pid {})", printable(&candidate.comm), candidate.pid)
}

/// Memory of a process.
pub fn memory(candidate: &Candidate) -> String {
    let mut has = Size(candidate.rss_bytes).to_string();
    if candidate.swap_bytes > 0 {
        has += &format!(" and {} swapped", Size(candidate.swap_bytes));
    }
    // Page tables of ordinary programs are a 512th of their memory.
    if candidate.unmapped_bytes > (candidate.rss_bytes / 64).max(1 << 20) {
        let unmapped = Size(candidate.unmapped_bytes);
        has += &format!(" and {unmapped} in page tables and files held open");
    }
    match candidate.grown_bytes {
        0 => has,
        grown => format!("{has}, {} of it taken in the last seconds", Size(grown)),
    }
}

#[cfg(test)]
mod tests {
    use control::Uid;
    use control::oomd::{AccountKind, AccountRef};

    use super::*;

    fn record() -> Why {
        let candidate = |pid, comm: &str, mib: u64| Candidate {
            pid,
            uid: Some(Uid(4_000_000_000)),
            comm: comm.into(),
            rss_bytes: mib << 20,
            swap_bytes: 0,
            unmapped_bytes: 0,
            grown_bytes: 0,
            details: None,
        };
        Why {
            id: 7,
            at_micros: 1_700_000_000_000_000,
            account: AccountRef::user(Uid(4_000_000_000)),
            group: None,
            cgroup: None,
            trigger: Trigger::Notifier,
            state: String::new(),
            others: Vec::new(),
            killer: Some(KilledBy::Daemon),
            hard_bytes: 256 << 20,
            used_bytes: (256 << 20) + 4096,
            victim: Some(candidate(42, "eater", 180)),
            runner_up: Some(candidate(43, "sh\x1b[2J", 40)),
            considered: 3,
            rule: "largest of the user".into(),
            kept: "64 MiB of shared memory stay".into(),
            decide_micros: Some(39),
            outcome: Outcome::Reclaimed { bytes_back: 180 << 20, micros: 12_300, mreleased: true },
        }
    }

    #[test]
    fn an_explanation_has_the_victim_the_limit_the_excess_the_next_candidate_and_the_duration() {
        let text = explain(&record());
        for part in [
            "#7  ",
            "killed eater (pid 42) of user 4000000000",
            "256.0 MiB in use of 256.0 MiB allowed: 4.0 KiB over it (1 page)",
            "an event of the notifier: usage above the limit; the daemon sent the signal, 39 µs \
             later",
            "180.0 MiB; largest of the user (3 processes looked at)",
            "sh\\u{1b}[2J (pid 43), 40.0 MiB",
            "180.0 MiB back in 12.3 ms, with process_mrelease",
            "kept      64 MiB of shared memory stay",
        ] {
            assert!(text.contains(part), "'{part}' is missing in\n{text}");
        }
    }

    #[test]
    fn an_explanation_has_the_details_that_are_known_and_the_cause() {
        let mut why = record();
        why.trigger = Trigger::LimitSet;
        why.victim.as_mut().unwrap().details = Some(Box::new(ProcessDetails {
            command: "python3 train.py --x \x1b[2J".into(),
            cgroup: "/user.slice/run-7.scope".into(),
            folder: String::new(),
            parent_pid: 40,
            parent: "make".into(),
        }));
        let text = explain(&why);
        for part in [
            "command   python3 train.py --x \\u{1b}[2J\n",
            "cgroup    /user.slice/run-7.scope\n",
            "parent    make (pid 40)\n",
            "the limit was set to 256.0 MiB, below the usage; the daemon sent the signal",
        ] {
            assert!(text.contains(part), "'{part}' is missing in\n{text}");
        }
        assert!(!text.contains("folder"), "{text}");
    }

    #[test]
    fn a_group_is_shown_by_name_with_the_owner_of_the_process() {
        let number = AccountRef { kind: AccountKind::Group, uid: 4_294_901_760 };
        let of_group = Why { account: number, group: Some("students".into()), ..record() };
        let text = explain(&of_group);
        assert!(text.contains("killed eater (pid 42) of user 4000000000 in @students"), "{text}");
        let without_victim = headline(&Why { victim: None, ..of_group });
        assert_eq!(without_victim, "killed no process of @students");
    }

    #[test]
    fn a_cgroup_is_shown_by_path_with_the_owner_of_the_process() {
        let of_cgroup = Why { cgroup: Some("/a/ci\n.service".into()), ..record() };
        let expected = "killed eater (pid 42) of user 4000000000 in cgroup /a/ci\\n.service";
        assert_eq!(headline(&of_cgroup), expected);
        let without_victim = headline(&Why { victim: None, ..of_cgroup });
        assert_eq!(without_victim, "killed no process of cgroup /a/ci\\n.service");
    }

    #[test]
    fn a_decision_without_a_victim_has_the_reason() {
        let without_victim = Why {
            victim: None,
            runner_up: None,
            killer: None,
            decide_micros: None,
            trigger: Trigger::Timer,
            outcome: Outcome::NoVictim { reason: "all are protected".into() },
            ..record()
        };
        let text = explain(&without_victim);
        assert!(text.contains("killed no process"), "{text}");
        assert!(text.contains("no process could be killed: all are protected"), "{text}");
        assert!(!text.contains("next "), "{text}");
    }
}
