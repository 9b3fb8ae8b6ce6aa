//! The daemon under the restrictions of its systemd unit: only the system calls and capabilities
//! that the unit allows.
#![cfg(target_arch = "x86_64")]

mod support;

use std::path::PathBuf;
use std::process::Command;

use confinement::{Confinement, opinion_of_systemd};
use control::Uid;
use control::oomd::{AccountRef, KilledBy, Outcome, Reply, Request};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support::cgroup::Cgroup;
use support::daemon::Daemon;
use support::hog::Hog;
use support::journal::Journal;
use support::{MIB, eventually, privileged};

const UID: Uid = Uid(62910);
const UNIT: &str = include_str!("../../../dist/systemd/headroom-oomd.service");

/// Applies the restrictions of the unit.
fn confine(command: &mut Command) {
    Confinement::of(UNIT).unwrap().apply(command);
}

/// A process of a limited user exceeds its limit. Returns the killer on record.
fn break_a_limit(daemon: &Daemon, uid: Uid) -> Option<KilledBy> {
    daemon.set_limit(uid, 64 * MIB);
    let mut hog = Hog::start(uid);
    hog.grow(60 * 1024);
    hog.survived();
    hog.grow(32 * 1024);
    let why = daemon.ended(uid);
    eventually("the process dies", || (!hog.is_alive()).then_some(()));
    assert_eq!(why.victim.as_ref().map(|victim| victim.pid), Some(hog.pid()), "{why:#?}");
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");
    why.killer
}

#[test]
fn with_the_service_settings_the_notifier_kills_and_a_successor_takes_over() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let bpffs = dir.path().join("bpf");
    std::fs::create_dir(&bpffs).unwrap();
    mount("bpf", &bpffs, "bpf", MountFlags::empty(), None).unwrap();
    let _unmount = Unmount(bpffs.clone());
    let pins = format!("--bpf-pin-dir={}", bpffs.join("headroom").display());
    let state = format!("--state-dir={}", dir.path().join("state").display());
    let mut daemon = Daemon::start_prepared("", &["--notifier=bpf", &pins, &state], confine);
    let without = ["oom_score_adj"];
    let degraded = daemon.status().degraded;
    let unexpected = |what: &&String| !without.iter().any(|known| what.contains(known));
    assert_eq!(degraded.iter().filter(unexpected).count(), 0, "{degraded:?}");
    // At the first pages over a limit, the kernel program may leave the kill to the daemon: pages
    // that a fork has copied are not certain until they are measured.
    let mut users = (0..5).map(|number| Uid(UID.0 + 10 * number));
    let is_by_kernel = |&uid: &Uid| break_a_limit(&daemon, uid) == Some(KilledBy::Kernel);
    let uid = users.find(is_by_kernel).expect("the kernel program kills for none of five users");
    assert!(matches!(daemon.request(&Request::Explain { account: None }), Reply::Explained(_)));
    daemon.die();
    daemon.start_again("");
    assert_eq!(daemon.why(uid).len(), 1);
    assert_eq!(daemon.limit(uid).map(|limit| limit.hard_bytes), Some(64 * MIB));
    daemon.stop();
    assert!(!bpffs.join("headroom").exists());
}

/// Unmounts the path on drop.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn with_the_service_settings_the_daemon_kills_without_the_notifier() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start_prepared("", &["--notifier=proc"], confine);
    assert_eq!(break_a_limit(&daemon, Uid(62911)), Some(KilledBy::Daemon));
    let reply =
        daemon.request(&Request::RunOomKiller { account: Some(AccountRef::user(Uid(62911))) });
    assert!(matches!(reply, Reply::OomKillerRan { .. }), "{reply:?}");
    let (status, _, log) = daemon.end(rustix::process::Signal::TERM);
    assert!(status.success(), "{log:?}");
}

#[test]
fn with_the_service_settings_all_notifications_are_sent() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let script = path("hook");
    std::fs::write(
        &script,
        "#!/bin/sh\necho \"$HEADROOM_PID\" > \"$1.new\"\nmv \"$1.new\" \"$1\"\n",
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let hook = |name: &str| format!("[\"{}\", \"{}\"]", script.display(), path(name).display());
    let config = format!(
        "[hooks]\nbefore = {}\nafter = {}\nwarn = {}\n",
        hook("before"),
        hook("after"),
        hook("warn"),
    );
    let journal = Journal::bind();
    let daemon = Daemon::start_with_journal(&config, &["--notifier=proc"], &journal, confine);
    assert_eq!(break_a_limit(&daemon, Uid(62912)), Some(KilledBy::Daemon));
    for name in ["before", "after", "warn"] {
        eventually(&format!("{name} is run"), || path(name).exists().then_some(()));
    }
    assert!(journal.receive().contains_key("MESSAGE_ID"));
    let (status, _, log) = daemon.end(rustix::process::Signal::TERM);
    assert!(status.success(), "{log:?}");
}

#[test]
fn the_manual_has_every_option() {
    let manual = include_str!("../../../dist/man/headroom-oomd.8").replace("\\-", "-");
    let help = Command::new(env!("CARGO_BIN_EXE_headroom-oomd")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let options: Vec<_> = words.filter(|word| word.len() > 2 && word.starts_with("--")).collect();
    assert!(options.len() > 8, "{help}");
    for option in options {
        assert!(manual.contains(option), "nothing about {option}");
    }
}

#[test]
fn the_manual_of_the_configuration_has_every_section_and_every_key_in_it() {
    let manual = include_str!("../../../dist/man/oomd.toml.5").replace("\\-", "-");
    for (section, keys) in headroom_oomd::config::SECTIONS {
        let start = manual.find(&format!(".SH \"[{section}]\""));
        let start = start.or_else(|| manual.find(&format!(".SH \"[[{section}]]\"")));
        let start = start.unwrap_or_else(|| panic!("no section on {section}"));
        let text = &manual[start + 3..];
        let text = &text[..text.find("\n.SH").unwrap_or(text.len())];
        let words: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with(".B"))
            .flat_map(|line| line.split([' ', '"', ',']))
            .collect();
        for key in keys {
            assert!(words.contains(key), "[{section}] does not describe {key}");
        }
    }
}

#[test]
fn systemd_accepts_the_unit_and_rates_it_as_confined() {
    let program = "/usr/local/bin/headroom-oomd";
    match opinion_of_systemd("headroom-oomd.service", UNIT, program, 30) {
        Ok(finding) => assert_eq!(finding, None),
        Err(error) => test_support::skip(format_args!("systemd-analyze: {error}")),
    }
}

#[test]
fn with_the_service_settings_a_cgroups_limit_is_enforced() {
    if !privileged() {
        return;
    }
    let Some(cgroup) = Cgroup::make("service") else { return };
    let config = format!("[[limit]]\ncgroup = \"{}*\"\nhard = \"64M\"\n", cgroup.path);
    let daemon = Daemon::start_prepared(&config, &["--notifier=bpf"], confine);
    assert_eq!(daemon.status().limited_cgroups, 1);
    let mut hog = Hog::start(Uid(62918));
    cgroup.take(&hog);
    hog.grow(96 * 1024);
    hog.died();
    let why = daemon.ended(Uid(62918));
    assert_eq!(why.cgroup.as_deref(), Some(&cgroup.path[..]));
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");
    drop(hog);
}
