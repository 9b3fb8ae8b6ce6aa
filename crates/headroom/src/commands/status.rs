//! `headroom status`: which daemons run, and how.

use std::fmt::Write;
use std::process::ExitCode;

use control::{binderd, oomd};
use serde::Serialize;

use crate::arguments::Globals;
use crate::daemon;
use crate::output::{self, count, printable};
use crate::size::Size;

#[derive(Serialize)]
struct Both {
    binderd: Daemon<binderd::Status>,
    oomd: Daemon<oomd::Status>,
}

/// One daemon; exactly one of the two is there.
#[derive(Serialize)]
struct Daemon<S> {
    status: Option<S>,
    error: Option<String>,
}

impl<S> From<anyhow::Result<S>> for Daemon<S> {
    fn from(result: anyhow::Result<S>) -> Self {
        match result {
            Ok(status) => Self { status: Some(status), error: None },
            Err(error) => Self { status: None, error: Some(format!("{error:#}")) },
        }
    }
}

/// Runs the command. The exit code is 1 if no daemon runs.
pub fn status(globals: &Globals) -> anyhow::Result<ExitCode> {
    let both = Both {
        binderd: daemon::binderd_status(&globals.binderd_socket).into(),
        oomd: daemon::oomd_status(&globals.oomd_socket).into(),
    };
    output::print_as(globals.json, &both, || {
        let mut text = paragraph("binder", &both.binderd, binderd_line, |s| &s.degraded);
        text += &paragraph("oom", &both.oomd, oomd_line, |s| &s.degraded);
        text
    })?;
    let runs = both.binderd.status.is_some() || both.oomd.status.is_some();
    Ok(if runs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn paragraph<S>(
    name: &str,
    daemon: &Daemon<S>,
    line: fn(&S) -> String,
    degraded: fn(&S) -> &Vec<String>,
) -> String {
    let mut text = String::new();
    match (&daemon.status, &daemon.error) {
        (Some(status), _) => {
            let _ = writeln!(text, "{name:<7} {}", line(status));
            for sentence in degraded(status) {
                let _ = writeln!(text, "        degraded: {}", printable(sentence));
            }
        }
        (None, error) => {
            let _ = writeln!(text, "{name:<7} {}", error.as_deref().unwrap_or("no answer"));
        }
    }
    text
}

/// `headroom-binderd` in a line.
pub fn binderd_line(s: &binderd::Status) -> String {
    format!(
        "serves {} on {} (mapping: {}, pid {}): {}, {}; {} in buffers, {} of it idle",
        count(s.devices, "device", "devices"),
        printable(&s.mount),
        s.mapping,
        s.pid,
        count(s.processes, "process", "processes"),
        count(s.transactions, "transaction", "transactions"),
        Size(s.touched_pages * 4096),
        Size(s.idle_pages * 4096),
    )
}

/// `headroom-oomd` in a line.
pub fn oomd_line(s: &oomd::Status) -> String {
    let attached = if s.attached { "attached" } else { "detached: no user has a limit" };
    let mut line = format!(
        "watches memory (notifier: {}, {attached}, pid {}): {}, {}, {} given back by others",
        s.notifier,
        s.pid,
        count(s.limited_users, "limited user", "limited users"),
        count(s.kills, "kill", "kills"),
        Size(s.given_back_bytes),
    );
    if s.limited_cgroups > 0 {
        line += &format!("; {}", count(s.limited_cgroups, "limited cgroup", "limited cgroups"));
    }
    if s.leaseholders > 0 || s.refused > 0 {
        let holders = count(s.leaseholders, "process leases", "processes lease");
        let refusals = count(s.refused, "request", "requests");
        line += &format!("; {holders} memory, {refusals} refused");
    }
    line
}
