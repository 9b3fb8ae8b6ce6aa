//! A snapshot as plain text or JSON, for pipes and programs, and the text that the screen shares.

use std::fmt::Write;

use control::oomd::{Status, UserLimit, Why};
use headroom_linux::machine_memory::Meminfo;
use headroom_linux::machine_memory::pressure::Averages;
use serde::Serialize;

use super::snapshot::Snapshot;
use super::view::Row;
use crate::helpers::decision;
use crate::helpers::output::{count, padded};
use crate::helpers::quantity::{Size, point_in_time};
use crate::helpers::user::Visibility;

/// Maximum width of a name that is shown completely, columns.
pub const NAME: usize = 16;

/// A column of the table.
pub struct Column {
    /// Title of the column.
    pub title: &'static str,
    /// Width, columns of the screen.
    pub width: usize,
    /// Text of the cell for a row.
    pub text: fn(&Row) -> String,
}

/// In order of priority: on a narrow screen the last ones are left out first.
pub const COLUMNS: [Column; 6] = [
    Column { title: "USED", width: 10, text: |row| Size(row.limit.used_bytes).to_string() },
    Column { title: "LIMIT", width: 10, text: |row| Size(row.limit.hard_bytes).to_string() },
    Column { title: "TIME TO LIMIT", width: 13, text: |row| row.limit_in.map_or("".into(), span) },
    Column { title: "GROWTH", width: 13, text: |row| row.growth.map_or("".into(), rate) },
    Column { title: "LEASED", width: 10, text: |row| unless_none(row.limit.leased_bytes) },
    Column { title: "PEAK", width: 10, text: |row| unless_none(row.limit.peak_bytes) },
];

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
        text.push_str(&padded(&row.name, NAME));
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

fn unless_none(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { Size(bytes).to_string() }
}

/// Growth as `+1.5 MiB/s`; empty for less than a page per second.
fn rate(bytes_per_s: i64) -> String {
    let size = bytes_per_s.unsigned_abs();
    let sign = if bytes_per_s < 0 { '-' } else { '+' };
    if size < 4096 { String::new() } else { format!("{sign}{}/s", Size(size)) }
}

/// A duration as `12 s`, `3 m 5 s`, `2 h 10 m`.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} m {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} m", seconds / 3600, seconds / 60 % 60),
    }
}

/// A bar as `[||||    ]`, `width` columns with the brackets.
pub fn bar(thousandths: u64, width: usize) -> String {
    let inside = width.saturating_sub(2);
    let filled = thousandths.min(1000) as usize * inside / 1000;
    // The smallest share is visible, and only a full one fills the bar.
    let filled = filled.max(usize::from(thousandths > 0)).min(inside);
    format!("[{}{}]", "|".repeat(filled), " ".repeat(inside - filled))
}

/// A percentage without decimals.
pub fn percent(thousandths: u64) -> String {
    format!("{}%", thousandths / 10)
}

/// Status of the daemon in one line.
pub fn daemon_line(status: &Status) -> String {
    let how = match status.notifier.as_str() {
        "bpf" => "BPF notifier",
        _ => "reading /proc",
    };
    let mut users = count(status.limited_users, "user with a limit", "users with a limit");
    if status.limited_cgroups > 0 {
        users += &format!(", {}", count(status.limited_cgroups, "cgroup", "cgroups"));
    }
    let kills = count(status.kills, "kill", "kills");
    let mut line = format!("headroom-oomd {}: {how}, {users}, {kills}", status.version);
    if !status.degraded.is_empty() {
        let n = status.degraded.len() as u64;
        let _ = write!(line, "; {} (headroom status)", count(n, "degradation", "degradations"));
    }
    line
}

/// A share of a whole, in thousandths.
pub fn thousandths(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1000 / u128::from(whole.max(1))).try_into().unwrap_or(u64::MAX)
}

/// The machine's memory, bytes.
pub struct MemoryUse {
    /// Memory that is not available.
    pub used: u64,
    pub total: u64,
}

/// Used memory of the machine.
pub fn memory_use(memory: &Meminfo) -> MemoryUse {
    let total = memory.total.unwrap_or(0);
    MemoryUse { used: total.saturating_sub(memory.available.unwrap_or(0)), total }
}

/// Text for the machine's memory.
pub fn memory_text(memory: &Meminfo) -> String {
    let (available, total) = (memory.available.unwrap_or(0), memory.total.unwrap_or(0));
    format!("{} available of {}", Size(available), Size(total))
}

/// Text for the machine's swap.
pub fn swap_text(memory: &Meminfo) -> String {
    match memory.swap_total {
        None | Some(0) => "none".to_owned(),
        Some(total) => format!("{} free of {}", Size(memory.swap_free.unwrap_or(0)), Size(total)),
    }
}

/// Text for the time that tasks wait for memory.
pub fn stall_text(snapshot: &Snapshot) -> String {
    let Some(pressure) = snapshot.pressure else { return "not reported by this kernel".to_owned() };
    let share = |averages: Option<Averages>| averages.map_or(0.0, |averages| averages.avg10);
    let (some, all) = (share(pressure.some), share(pressure.full));
    format!("some {some:.1} %, all {all:.1} % of the last 10 s")
}

/// A decision in one line.
pub fn decision(why: &Why) -> String {
    let at = point_in_time(why.at_micros);
    let time = at.get(..19).unwrap_or(&at);
    format!("{time} {}; {}", decision::headline(why), decision::outcome(&why.outcome))
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

    #[test]
    fn times_and_rates_are_short() {
        assert_eq!([span(59), span(185), span(7800)], ["59 s", "3 m 5 s", "2 h 10 m"]);
        assert_eq!([rate(4095), rate(-8192), rate(i64::MIN)], ["", "-8.0 KiB/s", "-8192.0 PiB/s"]);
    }

    #[test]
    fn a_bar_is_full_only_when_nothing_is_left() {
        assert_eq!(bar(0, 7), "[     ]");
        assert_eq!(bar(1, 7), "[|    ]");
        assert_eq!(bar(999, 7), "[|||| ]");
        assert_eq!([bar(1000, 7), bar(u64::MAX, 7)], ["[|||||]", "[|||||]"]);
        assert_eq!(bar(500, 0), "[]");
    }
}
