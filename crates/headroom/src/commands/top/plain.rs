//! A snapshot as plain text or JSON, for pipes and programs.

use std::fmt::Write;

use control::oomd::{Status, UserLimit, Why};
use serde::Serialize;

use super::snapshot::Snapshot;
use super::view::Row;
use super::words::{
    COLUMNS, NAME, daemon_line, decision, memory_text, percent, stall_text, swap_text,
};
use crate::helpers::visibility::Visibility;

/// A snapshot as text.
pub fn text(snapshot: &Snapshot, rows: &[Row]) -> String {
    let mut text = format!(
        "{}\nmemory  {}\nswap    {}\nstalled {}\n\n{:<NAME$}",
        daemon_line(&snapshot.status),
        memory_text(&snapshot.memory),
        swap_text(&snapshot.memory),
        stall_text(snapshot),
        "USER",
    );
    for column in &COLUMNS {
        let _ = write!(text, "  {:>w$}", column.title, w = column.width);
    }
    text.push_str("   SHARE\n");
    for row in rows {
        let _ = write!(text, "{:<NAME$}", row.name);
        for column in &COLUMNS {
            let _ = write!(text, "  {:>w$}", (column.text)(row), w = column.width);
        }
        let _ = writeln!(text, "  {:>6}", percent(row.share()));
    }
    if rows.is_empty() {
        let _ = writeln!(text, "{}", Visibility::ours().no_limit());
    }
    if !snapshot.decisions.is_empty() {
        text.push('\n');
    }
    for why in &snapshot.decisions {
        let _ = writeln!(text, "{}", decision(why));
    }
    text
}

/// A snapshot as JSON.
#[derive(Serialize)]
pub struct Document<'a> {
    status: &'a Status,
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    swap_total_bytes: Option<u64>,
    swap_free_bytes: Option<u64>,
    /// Percent of the last ten seconds in which some, or all, tasks waited for memory.
    stalled_some_percent: Option<f32>,
    stalled_all_percent: Option<f32>,
    users: Vec<UserDocument<'a>>,
    decisions: &'a [Why],
}

#[derive(Serialize)]
struct UserDocument<'a> {
    name: &'a str,
    #[serde(flatten)]
    limit: &'a UserLimit,
    growth_bytes_per_s: Option<i64>,
    limit_in_s: Option<u64>,
}

impl<'a> Document<'a> {
    /// Creates it from a snapshot.
    pub fn of(snapshot: &'a Snapshot, rows: &'a [Row]) -> Self {
        let Snapshot { status, memory, pressure, decisions, .. } = snapshot;
        let user = |row: &'a Row| UserDocument {
            name: &row.name,
            limit: &row.limit,
            growth_bytes_per_s: row.growth,
            limit_in_s: row.limit_in,
        };
        Self {
            status,
            total_bytes: memory.total,
            available_bytes: memory.available,
            swap_total_bytes: memory.swap_total,
            swap_free_bytes: memory.swap_free,
            stalled_some_percent: pressure.and_then(|it| it.some).map(|it| it.avg10),
            stalled_all_percent: pressure.and_then(|it| it.full).map(|it| it.avg10),
            users: rows.iter().map(user).collect(),
            decisions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::tests::view;
    use super::*;

    #[test]
    fn plain_text_has_every_user_and_every_decision() {
        let view = view();
        let text = text(&view.snapshot, &view.rows);
        for part in ["4000000003", "95%", "+5.0 MiB/s", "8 s", "killed eater\\u{1b}[2J (pid 77)"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(!text.contains('\x1b'));
        let document = serde_json::to_value(Document::of(&view.snapshot, &view.rows)).unwrap();
        assert_eq!(document["users"][1]["growth_bytes_per_s"], 5 << 20);
        assert_eq!(document["users"][1]["uid"], 4_000_000_001u32);
    }
}
