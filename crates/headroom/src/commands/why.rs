//! Decisions and their reasons: `headroom why` those of the past, `headroom explain` the one that
//! would be taken now, and `headroom run-oom-killer` those that it causes.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::ControlFlow;

use anyhow::{Context, anyhow};
use control::client::Subscription;
use control::oomd::{AccountRef, Event, Explanation, Outcome, Reply, Request, Why};

use crate::arguments::Globals;
use crate::helpers::client::{self, call_oomd, unexpected};
use crate::helpers::decision::{self, memory, others, process};
use crate::helpers::output::{self, Format, count, printable};
use crate::helpers::quantity::Size;
use crate::helpers::user::{self, User, Visibility};

/// The decisions to show.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// Maximum number of decisions.
    pub number: u32,
    /// Only the one with this number.
    pub id: Option<u64>,
    /// Only those about this user, group or cgroup.
    pub user: Option<&'a User>,
}

/// Runs `headroom why`.
pub fn why(globals: &Globals, selection: Selection) -> anyhow::Result<()> {
    let Selection { id, user, .. } = selection;
    let mut records = selected(globals, selection)?;
    if let Some(id) = id {
        let range = match (records.last(), records.first()) {
            (Some(oldest), Some(newest)) => format!("{} to {} are known", oldest.id, newest.id),
            _ => "no decision is known".into(),
        };
        records.retain(|record| record.id == id);
        if records.is_empty() {
            return Err(anyhow!("there is no decision {id} that you may see; {range}"));
        }
    }
    let document = serde_json::json!({ "decisions": records });
    output::print_as(globals.format(), &document, || match &records[..] {
        [] => match user {
            Some(user) => format!("no decision about {user} is recorded that you may see\n"),
            None => format!("{}\n", Visibility::ours().no_decision()),
        },
        records => decision::explain_all(records),
    })
}

/// The latest decisions that are about the selected user; all that are kept for an id.
fn selected(globals: &Globals, selection: Selection) -> anyhow::Result<Vec<Why>> {
    let Selection { number, id, user } = selection;
    let all = id.is_some() || user.is_some();
    let mut records = client::records(&globals.oomd_socket, if all { u32::MAX } else { number })?;
    if let Some(user) = user {
        records.retain(|why| is_about(why, user));
        records.truncate(number as usize);
    }
    Ok(records)
}

fn is_event_about(event: &Event, user: &User) -> bool {
    match event {
        Event::Decided { why } | Event::Ended { why } => is_about(why, user),
        Event::SoftLimitCrossed(warning) => match user {
            User::Uid(uid) => warning.account == AccountRef::user(*uid),
            User::Group(name) => warning.group.as_ref() == Some(name),
            User::Cgroup(path) => warning.cgroup.as_ref() == Some(path),
        },
    }
}

/// Whether a decision is for the limit of this user, group or cgroup, or its victim the user's.
fn is_about(why: &Why, user: &User) -> bool {
    match user {
        User::Uid(uid) => {
            let victim_uid = why.victim.as_ref().and_then(|victim| victim.uid);
            why.account == AccountRef::user(*uid) || victim_uid == Some(*uid)
        }
        User::Group(name) => why.group.as_ref() == Some(name),
        User::Cgroup(path) => why.cgroup.as_ref() == Some(path),
    }
}

/// Explains the latest decisions, oldest first, and then new ones as they happen.
pub fn follow(globals: &Globals, selection: Selection) -> anyhow::Result<()> {
    let is_selected = |event: &Event| selection.user.is_none_or(|user| is_event_about(event, user));
    // Subscribes before the records are read, so that no decision is missed in between.
    let events = Subscription::start(&globals.oomd_socket)
        .map_err(|error| client::connect_error("headroom-oomd", error))?;
    let records = selected(globals, selection)?;
    let mut printed = BTreeSet::new();
    for why in records.iter().rev().filter(|why| why.outcome != Outcome::Dying) {
        if print_event(globals, &Event::Ended { why: Box::new(why.clone()) })?.is_break() {
            return Ok(());
        }
        printed.insert(why.id);
    }
    for event in events {
        let event = event.context("headroom-oomd sent no event")?;
        let wanted = match &event {
            // No victim was found: no outcome will follow.
            Event::Decided { why } => why.killer.is_none() && !printed.contains(&why.id),
            Event::Ended { why } => !printed.contains(&why.id),
            Event::SoftLimitCrossed(_) => true,
        };
        if wanted && is_selected(&event) && print_event(globals, &event)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// `Break` when the reader has closed the pipe.
fn print_event(globals: &Globals, event: &Event) -> anyhow::Result<ControlFlow<()>> {
    if globals.format() == Format::Json {
        return output::print_json_line(event);
    }
    output::print_on(&match event {
        Event::Decided { why } | Event::Ended { why } => format!("{}\n", decision::explain(why)),
        Event::SoftLimitCrossed(it) => format!(
            "{} exceeds its {}: {} of {}\n\n",
            user::owner(it.account, it.group.as_deref(), it.cgroup.as_deref()),
            it.level.as_str(),
            Size(it.used_bytes),
            Size(it.hard_bytes)
        ),
    })
}

/// Runs `headroom explain`: the process that would be killed now, and the reason.
pub fn explain(globals: &Globals, user: Option<&User>) -> anyhow::Result<()> {
    let account = user.map(|user| user.account(&globals.oomd_socket)).transpose()?;
    match call_oomd(&globals.oomd_socket, &Request::Explain { account })? {
        Reply::Explained(found) => {
            output::print_as(globals.format(), &found, || explanation(&found))
        }
        reply => Err(unexpected(&reply)),
    }
}

fn explanation(found: &Explanation) -> String {
    let mut text = String::new();
    let mut line = |title: &str, content: String| {
        let _ = writeln!(text, "{title:<9} {content}");
    };
    line("now", printable(&found.state).to_string());
    match &found.victim {
        Some(victim) => line("victim", format!("{}, {}", process(victim), memory(victim))),
        None => line("victim", "none".into()),
    }
    if !found.others.is_empty() {
        line("and", others(&found.others));
    }
    let considered = count(found.considered, "process", "processes");
    line("because", format!("{} ({considered} looked at)", printable(&found.rule)));
    if let Some(next) = &found.runner_up {
        line("next", format!("{}, {}", process(next), memory(next)));
    }
    text
}

/// Runs `headroom run-oom-killer`: makes the daemon check all limits now.
pub fn run_oom_killer(globals: &Globals, user: Option<&User>) -> anyhow::Result<()> {
    let account = user.map(|user| user.account(&globals.oomd_socket)).transpose()?;
    match call_oomd(&globals.oomd_socket, &Request::RunOomKiller { account })? {
        Reply::OomKillerRan { kills } => {
            let document = serde_json::json!({ "decisions": kills });
            output::print_as(globals.format(), &document, || match (&kills[..], user) {
                ([], None) => "no limit is exceeded\n".into(),
                ([], Some(user)) => format!("{user} does not exceed its limit\n"),
                (kills, _) => decision::explain_all(kills),
            })
        }
        reply => Err(unexpected(&reply)),
    }
}

#[cfg(test)]
mod tests {
    use control::oomd::Candidate;

    use super::*;

    #[test]
    fn the_text_names_the_victim_the_reason_and_the_next_candidate() {
        let candidate = |pid, comm: &str| Candidate {
            pid,
            uid: None,
            comm: comm.to_owned(),
            rss_bytes: 64 << 20,
            swap_bytes: 0,
            unmapped_bytes: 0,
            grown_bytes: 0,
            details: None,
        };
        let mut found = Explanation {
            state: "900 MiB in use of 1024 MiB allowed".into(),
            victim: Some(candidate(7, "leak\n")),
            others: vec![candidate(8, "child")],
            runner_up: Some(candidate(9, "editor")),
            considered: 3,
            rule: "it grew".into(),
        };
        let shown = explanation(&found);
        for part in ["900 MiB in use", "pid 7", "pid 8", "pid 9", "it grew (3 processes looked at)"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(shown.lines().count(), 5, "a name cannot add lines: {shown}");
        found.victim = None;
        assert!(
            explanation(&found)
                .lines()
                .any(|line| line.starts_with("victim") && line.ends_with("none"))
        );
    }
}
