//! `headroom why`: decisions and their reasons.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use anyhow::{Context, anyhow};
use control::oomd::{Event, Outcome};
use control::subscription::Subscription;

use crate::arguments::Globals;
use crate::helpers::output::{self, Format};
use crate::helpers::size::Size;
use crate::helpers::visibility::Visibility;
use crate::helpers::{client, decision, user};

/// Runs the command.
pub fn why(globals: &Globals, number: u32, id: Option<u64>) -> anyhow::Result<()> {
    let mut records = client::records(&globals.oomd_socket, id.map_or(number, |_| u32::MAX))?;
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
        [] => format!("{}\n", Visibility::ours().no_decision()),
        records => decision::explain_all(records),
    })
}

/// Explains the latest decisions, oldest first, and then new ones as they happen.
pub fn follow(globals: &Globals, number: u32) -> anyhow::Result<()> {
    // Subscribes before the records are read, so that no decision is missed in between.
    let events = Subscription::start(&globals.oomd_socket)
        .map_err(|error| client::connect_error("headroom-oomd", error))?;
    let records = client::records(&globals.oomd_socket, number)?;
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
            Event::SoftLimitCrossed { .. } => true,
        };
        if wanted && print_event(globals, &event)?.is_break() {
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
        Event::SoftLimitCrossed { account, group, cgroup, used_bytes, hard_bytes, .. } => format!(
            "{} exceeds its soft limit: {} of {}\n\n",
            user::owner(*account, group.as_deref(), cgroup.as_deref()),
            Size(*used_bytes),
            Size(*hard_bytes)
        ),
    })
}
