//! `headroom doctor`: what this machine offers, tried out rather than looked up where that is harmless.

mod binder;
mod capabilities;
mod memory;
mod notifier;
mod system;

use std::fmt::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use rustix::io::Errno;
use serde::Serialize;

use crate::arguments::Globals;
use crate::output::{self, printable};
use crate::{daemon, status};

/// One capability that we use.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What it is called.
    pub capability: &'static str,
    /// It is there.
    pub present: bool,
    /// What was found.
    pub found: String,
    /// What is lost when it is missing; empty when it is there.
    pub lost: &'static str,
    /// What an operator can do; empty when it is there.
    pub remedy: &'static str,
    /// Without it this daemon cannot work at all.
    pub disables: Option<&'static str>,
}

impl Check {
    /// `found` says what is there (`Ok`) or how it is missing (`Err`).
    fn new(
        capability: &'static str,
        found: Result<String, String>,
        lost: &'static str,
        remedy: &'static str,
    ) -> Self {
        match found {
            Ok(found) => {
                Self { capability, present: true, found, lost: "", remedy: "", disables: None }
            }
            Err(found) => Self { capability, present: false, found, lost, remedy, disables: None },
        }
    }

    /// If it is missing, `daemon` cannot work.
    fn needed_by(mut self, daemon: &'static str) -> Self {
        self.disables = (!self.present).then_some(daemon);
        self
    }
}

#[derive(Serialize)]
struct Report {
    kernel: String,
    root: bool,
    binder: Vec<Check>,
    oom: Vec<Check>,
    daemons: Vec<Check>,
}

/// Runs the command. The exit code is 1 if something is missing that a daemon cannot do without.
pub fn doctor(globals: &Globals) -> anyhow::Result<ExitCode> {
    let system = system::System::look();
    let report = Report {
        kernel: system.release.clone(),
        root: rustix::process::geteuid().is_root(),
        binder: binder::checks(&system),
        oom: memory::checks(&system).into_iter().chain(notifier::checks()).collect(),
        daemons: daemons(globals),
    };
    output::print_as(globals.json, &report, || text(&report))?;
    let disabled = report.binder.iter().chain(&report.oom).any(|check| check.disables.is_some());
    Ok(if disabled { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The file descriptor that a raw system call returned, or its error.
fn system_fd(returned: libc::c_long) -> Result<OwnedFd, Errno> {
    match i32::try_from(returned) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

fn daemons(globals: &Globals) -> Vec<Check> {
    let binderd = daemon::binderd_status(&globals.binderd_socket)
        .map(|s| status::binderd_line(&s))
        .map_err(|e| format!("{e:#}"));
    let oomd = daemon::oomd_status(&globals.oomd_socket)
        .map(|s| status::oomd_line(&s))
        .map_err(|e| format!("{e:#}"));
    let remedy = "headroom up";
    vec![
        Check::new("headroom-binderd", binderd, "no binder device is served", remedy),
        Check::new("headroom-oomd", oomd, "no limit is enforced", remedy),
    ]
}

fn text(report: &Report) -> String {
    let mut text = format!("kernel {}\n", printable(&report.kernel));
    if !report.root {
        text += "not root: this is what an unprivileged process finds; the daemons run as root\n";
    }
    for (title, checks) in [
        ("binder driver", &report.binder),
        ("OOM manager", &report.oom),
        ("daemons", &report.daemons),
    ] {
        let _ = writeln!(text, "{title}");
        for check in checks {
            describe(&mut text, check);
        }
    }
    text
}

fn describe(text: &mut String, check: &Check) {
    let state = if check.present { "ok" } else { "missing" };
    let _ = writeln!(text, "  {state:<8} {:<22} {}", check.capability, printable(&check.found));
    if !check.present {
        let _ = writeln!(text, "  {:<31} lost: {}", "", check.lost);
        let _ = writeln!(text, "  {:<31} do:   {}", "", check.remedy);
    }
    if let Some(daemon) = check.disables {
        let _ = writeln!(text, "  {:<31} {daemon} cannot work without it", "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_says_what_is_lost_and_what_to_do() {
        let check = Check::new("FUSE", Err("no /dev/fuse".into()), "everything", "modprobe fuse")
            .needed_by("headroom-binderd");
        let mut text = String::new();
        describe(&mut text, &check);
        for part in
            ["missing", "no /dev/fuse", "lost: everything", "do:   modprobe fuse", "cannot work"]
        {
            assert!(text.contains(part), "'{part}' is missing in\n{text}");
        }
    }

    #[test]
    fn what_is_there_disables_nothing() {
        let check = Check::new("FUSE", Ok("opens".into()), "everything", "modprobe fuse");
        let check = check.needed_by("headroom-binderd");
        assert!(check.present && check.disables.is_none() && check.lost.is_empty());
    }
}
