//! `headroom doctor`: what works on this machine, and the features that decide it, tested by using
//! them where that is harmless.

mod binder;
#[cfg(feature = "bpf")]
mod memory;

use std::borrow::Cow;
use std::fmt::Write;
use std::process::ExitCode;

use clap::ValueEnum;
use control::oomd::{ActsOn, Status};
use headroom_daemon::message::plain;
use headroom_linux::features::has_capability;
use rustix::process::geteuid;
use rustix::thread::CapabilitySet;
use serde::Serialize;

use crate::arguments::Globals;
use crate::commands::status::{STILL_ENFORCED, binderd_line, limits_are_left, oomd_line};
use crate::helpers::client;
use crate::helpers::output::{self, printable};
use crate::helpers::programs::Remedy;

#[derive(Serialize)]
struct Report {
    kernel: String,
    root: bool,
    verdicts: Vec<Verdict>,
    binder: Vec<Check>,
    oom: Vec<Check>,
    daemons: Vec<Check>,
}

/// Runs the command. The exit code is 1 if the wanted use does not work; or, without one, if a use
/// lacks something else than a daemon that is installed and started.
pub fn doctor(globals: &Globals, wanted: Option<Use>) -> anyhow::Result<ExitCode> {
    let oomd = client::oomd_status(&globals.oomd_socket);
    let daemons = daemons(globals, &oomd);
    let mut report = Report {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        root: geteuid().is_root(),
        verdicts: Vec::new(),
        binder: binder::checks(),
        oom: oom(),
        daemons,
    };
    let all: Vec<&Check> = report.binder.iter().chain(&report.oom).chain(&report.daemons).collect();
    let uses = Use::value_variants().iter().filter(|one| wanted.is_none_or(|it| it == **one));
    let verdicts: Vec<_> = uses.map(|one| Verdict::of(*one, &all, oomd.as_ref().ok())).collect();
    let fails = match wanted {
        Some(_) => verdicts.iter().any(|verdict| !verdict.works),
        None => all.iter().any(|check| check.disables.is_some()),
    };
    report.verdicts = verdicts;
    if let Some(wanted) = wanted {
        for checks in [&mut report.binder, &mut report.oom, &mut report.daemons] {
            checks.retain(|check| wanted.needs().contains(&check.capability));
        }
    }
    output::print_as(globals.format(), &report, || text(&report))?;
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A use of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// A bus for one command: `headroom run`
    PrivateBus,
    /// The bus of the machine: headroom-binderd
    MachineBus,
    /// Memory limits of users
    UserLimits,
    /// Limits that act in the page fault that exceeds them
    FaultLimits,
    /// Kills when the machine runs short of memory
    MachineShortage,
}

impl Use {
    /// Its name on the command line, and its description there.
    fn texts(self) -> (String, String) {
        let value = self.to_possible_value().unwrap_or_default();
        let help = value.get_help().map(ToString::to_string);
        (value.get_name().to_owned(), help.unwrap_or_default())
    }

    /// The checks that decide whether it works. If the last one succeeds, it does.
    fn needs(self) -> &'static [&'static str] {
        match self {
            Self::PrivateBus => &["fuse", "user-namespaces", "private-bus"],
            Self::MachineBus => &["fuse", "cap-sys-admin", "process-vm", "headroom-binderd"],
            Self::UserLimits | Self::MachineShortage => {
                &["pidfd", "cap-kill", "proc", "configuration", "headroom-oomd"]
            }
            Self::FaultLimits => &[
                "pidfd",
                "cap-kill",
                "proc",
                "configuration",
                "cap-bpf",
                "cap-perfmon",
                "kernel-btf",
                "bpf-ring-buffer",
                "bpf-notifier",
                "headroom-oomd",
            ],
        }
    }

    /// Why a running daemon does not do it, and the remedy if no check has one.
    fn refusal(self, oomd: &Status) -> Option<(String, Option<String>)> {
        const POLLS: &str = "/proc on a timer";
        match (self, oomd.acts_on) {
            (Self::PrivateBus | Self::MachineBus, _) => None,
            (_, ActsOn::Nothing) => Some((
                "headroom-oomd only observes (`observe = true`, or --observe)".into(),
                Some(format!("remove this, then {}", Remedy::Restart.of("headroom-oomd"))),
            )),
            (Self::MachineShortage, ActsOn::Limits) => Some((
                "headroom-oomd does not monitor the machine's memory".into(),
                Some(
                    "set `enabled = true` in [machine] of /etc/headroom/oomd.toml, then `headroom \
                      config reload`"
                        .into(),
                ),
            )),
            (Self::FaultLimits, _) if oomd.notifier != "bpf" => {
                let reason = oomd.degraded.iter().find(|sentence| sentence.contains(POLLS));
                let reason =
                    reason.cloned().unwrap_or_else(|| format!("headroom-oomd reads {POLLS}"));
                // The fact, the remedy if the daemon knows one, and the consequence.
                match reason.splitn(3, "; ").collect::<Vec<_>>()[..] {
                    [fact, remedy, _] => Some((fact.into(), Some(remedy.into()))),
                    _ => Some((reason, None)),
                }
            }
            _ => None,
        }
    }
}

/// Whether a use works.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Verdict {
    #[serde(rename = "use")]
    wanted: Use,
    works: bool,
    /// What works, or why it does not.
    found: String,
    /// What to do about it first; empty if it works.
    remedy: String,
    /// The checks that decide it.
    decided_by: &'static [&'static str],
}

impl Verdict {
    /// A running daemon decides by its status, the first missing check otherwise.
    fn of(wanted: Use, checks: &[&Check], oomd: Option<&Status>) -> Self {
        let needs = wanted.needs();
        let all =
            || needs.iter().filter_map(|name| checks.iter().find(|it| it.capability == *name));
        let refusal = oomd.and_then(|status| wanted.refusal(status));
        let works = refusal.is_none() && all().next_back().is_some_and(|check| check.present);
        let missing = all().find(|check| !check.present && check.tested);
        let of_check = |check: &&Check| check.remedy.clone().into_owned();
        let (found, remedy) = match (works, refusal, missing.or(all().next_back())) {
            (false, Some((found, remedy)), _) => {
                let remedy = remedy.or_else(|| missing.map(of_check));
                (found, remedy.unwrap_or_else(|| Remedy::Restart.of("headroom-oomd")))
            }
            (false, None, Some(check)) => (check.found.clone(), of_check(check)),
            _ => (wanted.texts().1, String::new()),
        };
        Self { wanted, works, found, remedy, decided_by: needs }
    }
}

#[cfg(feature = "bpf")]
fn oom() -> Vec<Check> {
    memory::checks()
}

#[cfg(not(feature = "bpf"))]
fn oom() -> Vec<Check> {
    let unknown = Err("not in the static headroom".into());
    let lost = "what headroom-oomd finds on this machine is not known";
    vec![Check::new("checks", unknown, lost, Remedy::Install.of("headroom")).untested()]
}

fn daemons(globals: &Globals, oomd: &anyhow::Result<Status>) -> Vec<Check> {
    let binderd = client::binderd_status(&globals.binderd_socket)
        .map(|s| line_with_degraded(binderd_line(&s), &s.degraded))
        .map_err(|e| format!("{e:#}"));
    let oomd = oomd
        .as_ref()
        .map(|s| line_with_degraded(oomd_line(s), &s.degraded))
        .map_err(|error| format!("{error:#}"));
    let left = oomd.is_err() && limits_are_left() == Some(true);
    let lost = "no limit can be set, and nothing acts when the machine runs short of memory";
    let mut oomd = daemon("headroom-oomd", oomd, lost);
    if left {
        oomd.found = format!("{}; {STILL_ENFORCED}", oomd.found);
    }
    vec![daemon("headroom-binderd", binderd, "no binder device is served"), oomd]
}

fn daemon(name: &'static str, found: Result<String, String>, lost: &'static str) -> Check {
    // The message of the client ends with the command.
    let found = found.map_err(|error| {
        error.split_once(". Start it: ").map_or(error.clone(), |(fact, _)| fact.to_owned())
    });
    Check::new(name, found, lost, Remedy::Start.of(name))
}

fn line_with_degraded(line: String, degraded: &[String]) -> String {
    degraded.iter().fold(line, |line, sentence| format!("{line}; degraded: {sentence}"))
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for Verdict { wanted, works, found, remedy, .. } in &report.verdicts {
        let state = if *works { "works" } else { "fails" };
        let _ = write!(text, "{state:<10} {:<22} {}", wanted.texts().0, printable(found));
        let remedy = if *works { String::new() } else { format!("; do: {remedy}") };
        let _ = writeln!(text, "{remedy}");
    }
    let _ = writeln!(text, "kernel {}", printable(&report.kernel));
    if !report.root {
        text += "not root: only root can find out what is unknown; the daemons run as root\n";
    }
    for (title, checks) in [
        ("binder driver", &report.binder),
        ("OOM manager", &report.oom),
        ("daemons", &report.daemons),
    ] {
        if !checks.is_empty() {
            let _ = writeln!(text, "{title}");
        }
        for check in checks {
            describe(&mut text, check);
        }
    }
    text
}

fn describe(text: &mut String, check: &Check) {
    let state = match (check.present, check.tested) {
        (true, _) => "ok",
        (false, true) => "missing",
        (false, false) => "unknown",
    };
    let _ = writeln!(text, "  {state:<8} {:<22} {}", check.capability, printable(&check.found));
    if state == "missing" {
        let _ = writeln!(text, "  {:<31} lost: {}", "", check.lost);
        let _ = writeln!(text, "  {:<31} do:   {}", "", check.remedy);
    }
    if let Some(daemon) = check.disables {
        let _ = writeln!(text, "  {:<31} {daemon} cannot work without it", "");
    }
}

/// Result of one check.
#[derive(Debug, Serialize)]
struct Check {
    /// Name of the checked feature.
    capability: &'static str,
    /// The feature is available.
    present: bool,
    /// False: that it is not available to this process does not mean that a daemon lacks it.
    tested: bool,
    /// Details of the result.
    found: String,
    /// Consequence if it is missing; empty if it is present.
    lost: &'static str,
    /// Remedy for an operator; empty if it is present.
    remedy: Cow<'static, str>,
    /// The program that cannot work at all without it.
    disables: Option<&'static str>,
}

impl Check {
    /// `found` describes what is available (`Ok`) or why it is missing (`Err`).
    fn new(
        capability: &'static str,
        found: Result<String, String>,
        lost: &'static str,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        let present = found.is_ok();
        let (lost, remedy) = if present { ("", "".into()) } else { (lost, remedy.into()) };
        let found = found.unwrap_or_else(|error| plain(&error));
        Self { capability, present, tested: true, found, lost, remedy, disables: None }
    }

    /// Marks the feature as required: if it is missing, `program` cannot work.
    fn needed_by(mut self, program: &'static str) -> Self {
        self.disables = (!self.present).then_some(program);
        self
    }

    /// Marks it as unknown if it is missing.
    fn untested(self) -> Self {
        Self { tested: self.present, disables: None, ..self }
    }

    /// Marks it as unknown if it is missing and this process is not root, as the daemons are.
    fn of_root(self) -> Self {
        if geteuid().is_root() { self } else { self.untested() }
    }
}

/// `Ok` with the capability's name if it is effective, or `Err` with the message that it is not.
fn require(name: &str, capability: CapabilitySet) -> Result<String, String> {
    if has_capability(capability) {
        Ok(name.to_owned())
    } else {
        Err(format!("{name} is not effective"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, found: Result<&str, &str>) -> Check {
        let found = found.map(str::to_owned).map_err(str::to_owned);
        Check::new(name, found, "everything", format!("remedy of {name}"))
    }

    /// All checks, of which the named ones are missing.
    fn machine(missing: &[&str]) -> Vec<Check> {
        let needs: std::collections::BTreeSet<&str> =
            Use::value_variants().iter().flat_map(|one| one.needs().iter().copied()).collect();
        let one = |name: &'static str| {
            let lacks = format!("no {name}");
            check(name, if missing.contains(&name) { Err(&lacks) } else { Ok("there") })
        };
        needs.into_iter().map(one).collect()
    }

    #[test]
    fn a_missing_capability_is_reported_with_its_effect_and_remedy() {
        let missing = || check("fuse", Err("no /dev/fuse")).needed_by("headroom-binderd");
        let mut text = String::new();
        describe(&mut text, &missing());
        for part in
            ["missing", "no /dev/fuse", "lost: everything", "do:   remedy of fuse", "cannot work"]
        {
            assert!(text.contains(part), "'{part}' is missing in\n{text}");
        }
        let mut text = String::new();
        describe(&mut text, &missing().untested());
        assert_eq!(text, "  unknown  fuse                   no /dev/fuse\n");
    }

    #[test]
    fn present_capabilities_disable_nothing() {
        let check = check("fuse", Ok("opens")).needed_by("headroom-binderd").untested();
        assert!(check.present && check.tested && check.disables.is_none());
        assert!(check.lost.is_empty() && check.remedy.is_empty());
    }

    #[test]
    fn a_missing_capability_is_named() {
        assert_eq!(
            require("nothing", CapabilitySet::empty()).unwrap_err(),
            "nothing is not effective"
        );
    }

    #[test]
    fn each_use_has_its_verdict_without_daemons() {
        use Use::{FaultLimits, MachineBus, MachineShortage, PrivateBus, UserLimits};
        let stopped = ["headroom-binderd", "headroom-oomd"];
        // What is missing, and for each use the check that decides; none: it works.
        let cases: &[(&[&'static str], [Option<&str>; 5])] = &[
            (&[], [None; 5]),
            (
                &stopped,
                [
                    None,
                    Some("headroom-binderd"),
                    Some("headroom-oomd"),
                    Some("headroom-oomd"),
                    Some("headroom-oomd"),
                ],
            ),
            (
                &["fuse", "private-bus", "headroom-binderd"],
                [Some("fuse"), Some("fuse"), None, None, None],
            ),
            (&["user-namespaces"], [None; 5]),
            (
                &["user-namespaces", "private-bus"],
                [Some("user-namespaces"), None, None, None, None],
            ),
            (&["private-bus"], [Some("private-bus"), None, None, None, None]),
            (
                &["configuration", "kernel-btf", "headroom-oomd"],
                [None, None, Some("configuration"), Some("configuration"), Some("configuration")],
            ),
            (
                &["kernel-btf", "bpf-notifier", "headroom-oomd"],
                [None, None, Some("headroom-oomd"), Some("kernel-btf"), Some("headroom-oomd")],
            ),
        ];
        for (missing, expected) in cases {
            let checks = machine(missing);
            let checks: Vec<&Check> = checks.iter().collect();
            let uses = [PrivateBus, MachineBus, UserLimits, FaultLimits, MachineShortage];
            for (wanted, decides) in uses.into_iter().zip(expected) {
                let Verdict { works, found, remedy, .. } = Verdict::of(wanted, &checks, None);
                assert_eq!(works, decides.is_none(), "{missing:?}: {wanted:?}: {found}");
                let expected =
                    decides.map(|name| (format!("no {name}"), format!("remedy of {name}")));
                let (fact, of_check) = expected.unwrap_or((wanted.texts().1, String::new()));
                assert_eq!((found, remedy), (fact, of_check), "{missing:?}: {wanted:?}");
            }
        }
    }

    #[test]
    fn what_only_root_can_test_does_not_decide() {
        let missing =
            ["cap-sys-admin", "cap-kill", "bpf-notifier", "headroom-oomd", "headroom-binderd"];
        let own = ["headroom-oomd", "headroom-binderd"];
        let of_root = |it: Check| if own.contains(&it.capability) { it } else { it.untested() };
        let checks: Vec<Check> = machine(&missing).into_iter().map(of_root).collect();
        let checks: Vec<&Check> = checks.iter().collect();
        for (wanted, found) in
            [(Use::MachineBus, "no headroom-binderd"), (Use::FaultLimits, "no headroom-oomd")]
        {
            assert_eq!(Verdict::of(wanted, &checks, None).found, found);
        }
        // A program that is not installed cannot be tried; nothing else is missing.
        let mut checks = machine(&["private-bus"]);
        checks.iter_mut().for_each(|check| check.tested = check.present);
        let checks: Vec<&Check> = checks.iter().collect();
        let verdict = Verdict::of(Use::PrivateBus, &checks, None);
        assert_eq!((verdict.works, &*verdict.remedy), (false, "remedy of private-bus"));
    }

    #[test]
    fn the_status_of_a_running_daemon_decides() {
        let status = |notifier: &str, acts_on| Status {
            notifier: notifier.into(),
            acts_on,
            degraded: vec!["no limit holds".into(), "no BPF; reads /proc on a timer".into()],
            ..Status::default()
        };
        let both = ActsOn::LimitsAndShortages;
        // The fact and the remedy; none: it works.
        type Failure = Option<(&'static str, &'static str)>;
        let cases: &[(Status, &[&str], [Failure; 3])] = &[
            (status("bpf", both), &[], [None; 3]),
            // The rights of this process are not the daemon's.
            (status("bpf", both), &["cap-kill", "bpf-notifier", "configuration"], [None; 3]),
            (
                status("proc", both),
                &[],
                [None, Some(("no BPF; reads /proc", "headroom-oomd")), None],
            ),
            (
                status("proc", both),
                &["kernel-btf"],
                [None, Some(("no BPF; reads /proc", "remedy of kernel-btf")), None],
            ),
            (
                Status {
                    degraded: vec!["no cap-bpf; run it as root; reads /proc on a timer".into()],
                    ..status("proc", both)
                },
                &["kernel-btf"],
                [None, Some(("no cap-bpf", "run it as root")), None],
            ),
            (
                status("bpf", ActsOn::Limits),
                &[],
                [None, None, Some(("does not monitor", "enabled = true"))],
            ),
            (status("bpf", ActsOn::Nothing), &[], [Some(("only observes", "remove this")); 3]),
        ];
        for (status, missing, expected) in cases {
            let checks = machine(missing);
            let checks: Vec<&Check> = checks.iter().collect();
            let uses = [Use::UserLimits, Use::FaultLimits, Use::MachineShortage];
            for (wanted, expected) in uses.into_iter().zip(expected) {
                let verdict = Verdict::of(wanted, &checks, Some(status));
                assert_eq!(verdict.works, expected.is_none(), "{missing:?}: {verdict:?}");
                let title = wanted.texts().1;
                let (found, remedy) = expected.unwrap_or((&title, ""));
                assert!(verdict.found.contains(found), "{verdict:?}");
                assert!(verdict.remedy.contains(remedy), "{verdict:?}");
            }
        }
    }
}
