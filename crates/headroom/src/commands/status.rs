//! `headroom status`: state of the daemons.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use control::{binderd, oomd};
use headroom_daemon::message::plain;
use owners::bounds::{self, Bound};
use serde::Serialize;

use crate::arguments::Globals;
use crate::helpers::output::printable;
use crate::helpers::status_line::{binderd_line, oomd_line};
use crate::helpers::{client, kernel_limits, oom_daemons, output};

#[derive(Serialize)]
struct Both {
    binderd: Daemon<binderd::Status>,
    oomd: Daemon<oomd::Status>,
    /// Without the OOM daemon: whether its limits are still enforced in the kernel. `None`: it
    /// runs, or only root sees it.
    limits_left_in_kernel: Option<bool>,
    /// Other programs that act on a shortage of memory.
    other_oom_daemons: Vec<&'static str>,
}

/// One daemon; exactly one of the two fields is set.
#[derive(Serialize)]
struct Daemon<S> {
    status: Option<S>,
    error: Option<String>,
}

impl<S> From<anyhow::Result<S>> for Daemon<S> {
    fn from(result: anyhow::Result<S>) -> Self {
        match result {
            Ok(status) => Self { status: Some(status), error: None },
            Err(error) => Self { status: None, error: Some(plain(&format!("{error:#}"))) },
        }
    }
}

/// A row of `headroom status --bounds`.
#[derive(Serialize)]
struct BoundRow {
    name: &'static str,
    daemon: &'static str,
    resource: &'static str,
    all: String,
    root: String,
    owner: String,
    beyond: &'static str,
}

impl From<&Bound> for BoundRow {
    fn from(bound: &Bound) -> Self {
        let [all, root, owner] = bound.cells();
        let Bound { name, daemon, resource, share: _, beyond, test: _ } = *bound;
        Self { name, daemon: daemon.name(), resource, all, root, owner, beyond }
    }
}

/// Runs `headroom status --bounds`.
pub fn bounds(globals: &Globals) -> anyhow::Result<()> {
    let rows: Vec<BoundRow> = bounds::ALL.iter().map(BoundRow::from).collect();
    output::print_as(globals.format(), &rows, || {
        let mut text = String::new();
        for BoundRow { name, daemon, resource, all, root, owner, beyond } in &rows {
            let _ = writeln!(text, "{name} ({daemon}): {resource}");
            for (label, cell) in [("all", all), ("root", root), ("an owner", owner)] {
                if !cell.is_empty() {
                    let _ = writeln!(text, "        {label}: {cell}");
                }
            }
            let _ = writeln!(text, "        beyond: {beyond}");
        }
        text
    })?;
    Ok(())
}

/// Runs the command. The exit code is 1 if no daemon runs.
pub fn status(globals: &Globals) -> anyhow::Result<ExitCode> {
    let oomd = client::oomd_status(&globals.oomd_socket);
    let both = Both {
        binderd: client::binderd_status(&globals.binderd_socket).into(),
        limits_left_in_kernel: oomd.is_err().then(kernel_limits::are_left).flatten(),
        oomd: oomd.into(),
        other_oom_daemons: oom_daemons::running(Path::new("/proc")),
    };
    output::print_as(globals.format(), &both, || {
        let mut text = paragraph("binder", &both.binderd, binderd_line, |s| &s.degraded);
        text += &paragraph("oom", &both.oomd, oomd_line, |s| &s.degraded);
        if both.limits_left_in_kernel == Some(true) {
            let _ = writeln!(text, "        {}", kernel_limits::STILL_ENFORCED);
        }
        if !both.other_oom_daemons.is_empty() {
            let names = both.other_oom_daemons.join(", ");
            let _ = writeln!(text, "        also running: {names} (see `headroom doctor`)");
        }
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
