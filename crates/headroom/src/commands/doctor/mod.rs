//! `headroom doctor`: features of this machine, tested by using them where that is harmless.

mod binder;
mod capabilities;
mod check;
#[cfg(feature = "bpf")]
mod memory;
#[cfg(feature = "bpf")]
mod notifier;
mod real_time;
mod system;

use std::fmt::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::arguments::Globals;
use crate::helpers::output::{self, printable};
use crate::helpers::{client, kernel_limits, starting, status_line};
use check::Check;

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
        oom: oom(&system),
        daemons: daemons(globals),
    };
    output::print_as(globals.format(), &report, || text(&report))?;
    let disabled = report.binder.iter().chain(&report.oom).any(|check| check.disables.is_some());
    Ok(if disabled { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(feature = "bpf")]
fn oom(system: &system::System) -> Vec<Check> {
    memory::checks(system).into_iter().chain(notifier::checks()).collect()
}

#[cfg(not(feature = "bpf"))]
fn oom(_: &system::System) -> Vec<Check> {
    vec![Check::new(
        "checks",
        Err("not in the static headroom".into()),
        "what headroom-oomd finds on this machine is not known",
        "install the package headroom",
    )]
}

fn daemons(globals: &Globals) -> Vec<Check> {
    let binderd = client::binderd_status(&globals.binderd_socket)
        .map(|s| line_with_degraded(status_line::binderd_line(&s), &s.degraded))
        .map_err(|e| format!("{e:#}"));
    let oomd = client::oomd_status(&globals.oomd_socket)
        .map(|s| line_with_degraded(status_line::oomd_line(&s), &s.degraded))
        .map_err(|error| match kernel_limits::are_left() {
            Some(true) => format!("{error:#}; {}", kernel_limits::STILL_ENFORCED),
            _ => format!("{error:#}"),
        });
    vec![
        Check::new(
            "headroom-binderd",
            binderd,
            "no binder device is served",
            starting::command("headroom-binderd"),
        ),
        Check::new(
            "headroom-oomd",
            oomd,
            "no limit can be set, and nothing acts when the machine runs short of memory",
            starting::command("headroom-oomd"),
        ),
    ]
}

fn line_with_degraded(line: String, degraded: &[String]) -> String {
    degraded.iter().fold(line, |line, sentence| format!("{line}; degraded: {sentence}"))
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
    fn a_missing_capability_is_reported_with_its_effect_and_remedy() {
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
    fn present_capabilities_disable_nothing() {
        let check = Check::new("FUSE", Ok("opens".into()), "everything", "modprobe fuse");
        let check = check.needed_by("headroom-binderd");
        assert!(check.present && check.disables.is_none() && check.lost.is_empty());
    }
}
