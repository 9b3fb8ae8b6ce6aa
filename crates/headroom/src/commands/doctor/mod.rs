//! `headroom doctor`: features of this machine, tested by using them where that is harmless.

mod binder;
#[cfg(feature = "bpf")]
mod memory;

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::process::ExitCode;

use headroom_daemon::message::plain;
use rustix::thread::CapabilitySet;
use serde::Serialize;

use crate::arguments::Globals;
use crate::commands::status::{STILL_ENFORCED, binderd_line, limits_are_left, oomd_line};
use crate::helpers::client;
use crate::helpers::output::{self, printable};
use crate::helpers::programs::start_command;

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
    let system = System::look();
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
fn oom(system: &System) -> Vec<Check> {
    memory::checks(system)
}

#[cfg(not(feature = "bpf"))]
fn oom(_: &System) -> Vec<Check> {
    vec![Check::new(
        "checks",
        Err("not in the static headroom".into()),
        "what headroom-oomd finds on this machine is not known",
        "install the package headroom",
    )]
}

fn daemons(globals: &Globals) -> Vec<Check> {
    let binderd = client::binderd_status(&globals.binderd_socket)
        .map(|s| line_with_degraded(binderd_line(&s), &s.degraded))
        .map_err(|e| format!("{e:#}"));
    let oomd = client::oomd_status(&globals.oomd_socket)
        .map(|s| line_with_degraded(oomd_line(&s), &s.degraded))
        .map_err(|error| match limits_are_left() {
            Some(true) => format!("{error:#}; {STILL_ENFORCED}"),
            _ => format!("{error:#}"),
        });
    vec![
        Check::new(
            "headroom-binderd",
            binderd,
            "no binder device is served",
            start_command("headroom-binderd"),
        ),
        Check::new(
            "headroom-oomd",
            oomd,
            "no limit can be set, and nothing acts when the machine runs short of memory",
            start_command("headroom-oomd"),
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

/// Result of one check.
#[derive(Debug, Serialize)]
struct Check {
    /// Name of the checked feature.
    capability: &'static str,
    /// The feature is available.
    present: bool,
    /// Details of the result.
    found: String,
    /// Consequence if it is missing; empty if it is present.
    lost: &'static str,
    /// Remedy for an operator; empty if it is present.
    remedy: Cow<'static, str>,
    /// The daemon that cannot work at all without it.
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
        match found {
            Ok(found) => {
                let remedy = Cow::Borrowed("");
                Self { capability, present: true, found, lost: "", remedy, disables: None }
            }
            Err(error) => {
                let (found, remedy) = (plain(&error), remedy.into());
                Self { capability, present: false, found, lost, remedy, disables: None }
            }
        }
    }

    /// Marks the feature as required: if it is missing, `daemon` cannot work.
    fn needed_by(mut self, daemon: &'static str) -> Self {
        self.disables = (!self.present).then_some(daemon);
        self
    }
}

/// The tested machine.
struct System {
    /// Kernel release, as `6.18.44-amd64`.
    release: String,
    /// Its first two numbers.
    version: Version,
    /// Capabilities of this process.
    capabilities: Capabilities,
}

impl System {
    /// Reads them.
    fn look() -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self { version: Version::of(&release), release, capabilities: Capabilities::ours() }
    }

    /// A feature that each kernel has since this version, and that has no harmless probe.
    fn since(&self, major: u32, minor: u32) -> Result<String, String> {
        if self.version < (Version { major, minor }) {
            return Err(format!("kernel {} has none", self.version));
        }
        Ok(format!("kernel {} has it", self.version))
    }
}

/// The first two numbers of a kernel's release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    fn of(release: &str) -> Self {
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self { major: next(), minor: next() }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A capability that a check requires.
#[derive(Clone, Copy, Debug)]
enum Capability {
    // Of the OOM manager's checks, which the static program does not have.
    #[cfg_attr(not(feature = "bpf"), expect(dead_code))]
    Kill,
    SysAdmin,
}

impl Capability {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "CAP_KILL",
            Self::SysAdmin => "CAP_SYS_ADMIN",
        }
    }

    fn bit(self) -> CapabilitySet {
        match self {
            Self::Kill => CapabilitySet::KILL,
            Self::SysAdmin => CapabilitySet::SYS_ADMIN,
        }
    }
}

/// The effective set.
struct Capabilities(CapabilitySet);

impl Capabilities {
    /// The set of this process; empty if it cannot be read.
    fn ours() -> Self {
        Self(rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |it| it.effective))
    }

    /// `Ok` with the capability's name, or `Err` with the message that it is missing.
    fn require(&self, capability: Capability) -> Result<String, String> {
        let name = capability.name();
        if self.0.contains(capability.bit()) {
            Ok(name.into())
        } else {
            Err(format!("{name} is not effective"))
        }
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

    #[test]
    fn a_missing_capability_is_named() {
        let set = Capabilities(CapabilitySet::KILL);
        assert!(set.require(Capability::Kill).is_ok());
        let missing = set.require(Capability::SysAdmin).unwrap_err();
        assert_eq!(missing, "CAP_SYS_ADMIN is not effective");
    }

    #[test]
    fn kernel_releases_of_all_shapes_have_a_version() {
        let text = |release| Version::of(release).to_string();
        assert_eq!(text("6.18.44-fc-v595"), "6.18");
        assert_eq!(text("7.2-rc1"), "7.2");
        assert_eq!(text("6.1.0-28-amd64"), "6.1");
        assert_eq!(text("strange"), "0.0");
    }
}
