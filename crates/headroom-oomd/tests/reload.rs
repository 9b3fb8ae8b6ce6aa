//! The configuration is reloaded at runtime.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use control::Uid;
use control::oomd::{AccountRef, Reloaded, Reply, Request};
use rustix::process::{Pid, Signal, kill_process};
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, eventually, privileged};

// Users are system-wide, even with several daemons: no two tests here share one.
const ALICE: Uid = Uid(62130);
const BOB: Uid = Uid(62131);
const CAROL: Uid = Uid(62132);
const DORA: Uid = Uid(62133);
const EMMA: Uid = Uid(62134);
const FRED: Uid = Uid(62135);
const GINA: Uid = Uid(62143);
const QUIET: &str = "[machine]\nenabled = false\n";

fn limit(uid: Uid, mib: u64) -> String {
    format!("[[limit]]\nuser = {uid}\nhard = \"{mib}M\"\n")
}

fn write(daemon: &Daemon, text: &str) {
    daemon.write_config("oomd.toml", &format!("{text}{QUIET}"));
}

fn reload(daemon: &Daemon) -> Vec<String> {
    match daemon.request(&Request::Reload) {
        Reply::Reloaded(Reloaded { changes, problems }) if problems.is_empty() => changes,
        other => panic!("{other:?}"),
    }
}

/// The limit of a user, MiB, and its source.
fn in_force(daemon: &Daemon, uid: Uid) -> Option<(u64, String)> {
    daemon.limit(uid).map(|limit| (limit.hard_bytes / MIB, limit.source))
}

#[test]
fn limits_of_the_files_come_change_and_go_and_those_set_meanwhile_stay() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start(&(limit(ALICE, 100) + &limit(BOB, 100)), &[]);
    let set = |uid: Uid, mib: u64| Request::SetLimit {
        account: AccountRef::user(uid),
        hard_bytes: mib * MIB,
        soft_bytes: None,
        grace_s: None,
    };
    assert_eq!(daemon.request_as(BOB, &set(BOB, 50)), Reply::Done);
    assert_eq!(daemon.request(&set(CAROL, 70)), Reply::Done);
    write(&daemon, &limit(BOB, 80));
    daemon.write_config("oomd.d/carol.toml", &limit(CAROL, 90));
    let changes = reload(&daemon);
    assert_eq!(changes, [format!("uid {ALICE}: no limit any more")]);
    assert_eq!(in_force(&daemon, ALICE), None);
    assert_eq!(in_force(&daemon, BOB), Some((50, "runtime".into())), "its own layer");
    assert_eq!(in_force(&daemon, CAROL), Some((70, "runtime".into())));
    assert_eq!(
        daemon.request_as(
            BOB,
            &Request::ClearLimit { account: AccountRef::user(BOB), grace_s: None }
        ),
        Reply::Done
    );
    assert_eq!(in_force(&daemon, BOB), Some((80, "config".into())));
    assert_eq!(daemon.request_as(BOB, &set(BOB, 60)), Reply::Done);
    write(&daemon, &(limit(BOB, 40) + &limit(ALICE, 30)));
    assert_eq!(reload(&daemon).len(), 2);
    assert_eq!(in_force(&daemon, BOB), Some((40, "config".into())), "not above the files'");
    assert_eq!(in_force(&daemon, ALICE), Some((30, "config".into())));
    assert!(reload(&daemon).is_empty(), "once is enough");
}

#[test]
fn an_invalid_file_changes_nothing_and_is_reported() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start(&limit(DORA, 100), &[]);
    write(&daemon, "[[limit]]\nuser = 62133\nhrad = \"50M\"\n");
    let refused = daemon.request(&Request::Reload);
    let Reply::Error { message } = refused else { panic!("{refused:?}") };
    assert!(
        message.contains("oomd.toml:3") && message.contains("did you mean \"hard\"?"),
        "{message}"
    );
    assert!(message.ends_with("the previous configuration stays in force"), "{message}");
    assert_eq!(in_force(&daemon, DORA), Some((100, "config".into())));
    assert_eq!(daemon.status().degraded.last(), Some(&message));
    write(&daemon, &limit(DORA, 50));
    assert_eq!(reload(&daemon).len(), 1);
    assert!(!daemon.status().degraded.contains(&message));
    let refused = daemon.request_as(DORA, &Request::Reload);
    assert!(matches!(refused, Reply::Error { message } if message.contains("only root")));
}

#[test]
fn sighup_reloads_the_configuration_and_enforces_a_lowered_limit() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start(&limit(EMMA, 500), &[]);
    const AT_ONCE: &str = "grace-s = 0\n";
    let mut hog = Hog::start(EMMA);
    hog.grow(100 << 10);
    assert!(hog.survived());
    write(&daemon, &(AT_ONCE.to_owned() + &limit(EMMA, 50)));
    kill_process(Pid::from_raw(daemon.pid() as i32).unwrap(), Signal::HUP).unwrap();
    hog.died();
    assert_eq!(daemon.ended(EMMA).hard_bytes, 50 * MIB);
}

#[test]
fn a_rule_added_by_a_reload_protects_the_armed_victim() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start(&limit(FRED, 100), &[]);
    let (mut large, mut small) = (Hog::start(FRED), Hog::start(FRED));
    large.name(1);
    large.grow(75 << 10);
    assert!(large.survived());
    small.name(2);
    small.grow(20 << 10);
    assert!(small.survived(), "above the soft limit: one is armed");
    let rule = format!("[[rule]]\nkill = \"never\"\nuser = {FRED}\nname = \"hog-1\"\n");
    write(&daemon, &(limit(FRED, 100) + &rule));
    assert_eq!(reload(&daemon), ["1 rules"]);
    large.grow(20 << 10);
    small.died();
    assert!(large.survived() && large.is_alive());
}

/// Starts a daemon for which only the uids from the first to the last are ordinary users.
fn with_ordinary_users(uids: [u32; 2], config: &str) -> (Daemon, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("login.defs");
    let text = format!("UID_MIN {}\nUID_MAX {}\n", uids[0], uids[1]);
    std::fs::write(&path, text).unwrap();
    (Daemon::start(config, &["--login-defs", path.to_str().unwrap()]), dir)
}

fn default_limit(mib: u64) -> String {
    format!("[[limit]]\nuser = \"*\"\nhard = \"{mib}M\"\n")
}

#[test]
fn the_default_limit_applies_to_present_and_later_ordinary_users_only() {
    if !privileged() {
        return;
    }
    const DAVE: Uid = Uid(62140);
    const ERIN: Uid = Uid(62141);
    const STRANGER: Uid = Uid(62139);
    let mut first = Hog::start(DAVE);
    let mut stranger = Hog::start(STRANGER);
    let (daemon, _dir) =
        with_ordinary_users([62140, 62142], &(default_limit(64) + &limit(Uid(62138), 100)));
    assert_eq!(in_force(&daemon, DAVE), Some((64, "default".into())), "it was there before");
    let mut later = Hog::start(ERIN);
    eventually("the newcomer is limited", || in_force(&daemon, ERIN));
    assert_eq!((in_force(&daemon, STRANGER), daemon.status().limited_users), (None, 3));
    for hog in [&mut first, &mut later] {
        hog.grow(100 << 10);
        hog.died();
    }
    stranger.grow(100 << 10);
    assert!(stranger.survived());
    assert_eq!(daemon.ended(ERIN).hard_bytes, 64 * MIB);
}

#[test]
fn a_users_limit_has_precedence_over_the_default_limit() {
    if !privileged() {
        return;
    }
    const DAVE: Uid = Uid(62151);
    let (daemon, _dir) =
        with_ordinary_users([62150, 62152], &(default_limit(64) + &limit(DAVE, 200)));
    let _hog = Hog::start(DAVE);
    let set = |uid: Uid, mib: u64| Request::SetLimit {
        account: AccountRef::user(uid),
        hard_bytes: mib * MIB,
        soft_bytes: None,
        grace_s: None,
    };
    let clear = Request::ClearLimit { account: AccountRef::user(DAVE), grace_s: None };
    assert_eq!(in_force(&daemon, DAVE), Some((200, "config".into())));
    write(&daemon, &default_limit(64));
    eventually("the default limit applies", || {
        reload(&daemon);
        in_force(&daemon, DAVE).filter(|it| *it == (64, "default".into()))
    });
    assert_eq!(daemon.request_as(DAVE, &set(DAVE, 32)), Reply::Done);
    let Reply::Error { message } = daemon.request_as(DAVE, &set(DAVE, 65)) else { panic!() };
    assert!(message.contains("can only lower it"), "{message}");
    assert_eq!(daemon.request_as(DAVE, &clear), Reply::Done);
    let Reply::Error { message } = daemon.request(&clear) else { panic!() };
    assert!(message.contains("none was set at run time"), "{message}");
    assert_eq!(daemon.request(&set(DAVE, 500)), Reply::Done);
    write(&daemon, &default_limit(48));
    reload(&daemon);
    assert_eq!(in_force(&daemon, DAVE), Some((500, "runtime".into())));
    assert_eq!(daemon.request(&clear), Reply::Done);
    assert_eq!(in_force(&daemon, DAVE), Some((48, "default".into())));
    write(&daemon, "");
    reload(&daemon);
    assert_eq!((in_force(&daemon, DAVE), daemon.status().limited_users), (None, 0));
}

#[test]
fn an_invalid_login_defs_is_reported_and_ignored() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("login.defs");
    std::fs::write(&path, "UID_MIN soon\n").unwrap();
    let daemon = Daemon::start("", &["--login-defs", path.to_str().unwrap()]);
    let reported = |line: &String| line.contains("UID_MIN soon") && line.contains("1000 to 60000");
    assert!(daemon.status().degraded.iter().any(reported), "{:?}", daemon.status().degraded);
}

#[test]
fn a_check_reports_the_resulting_limits_or_the_errors() {
    let dir = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        std::fs::write(dir.path().join("oomd.toml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_headroom-oomd"));
        let done = command.arg("--check-config").arg("--config").arg(dir.path().join("oomd.toml"));
        done.output().unwrap()
    };
    let good =
        check("[[limit]]\nuser = 62130\nhard = \"50M\"\n[[limit]]\nuser = \"*\"\nhard = \"10%\"\n");
    assert!(good.status.success(), "{good:?}");
    let checked: control::configuration::Configuration =
        serde_json::from_slice(&good.stdout).unwrap();
    let limits: Vec<(&str, bool)> =
        checked.limits.iter().map(|it| (it.user.as_str(), it.hard_bytes == 50 * MIB)).collect();
    assert_eq!(limits, [("62130", true), ("*", false)]);
    let bad = check("[[limit]]\nuser = 62130\n");
    assert_eq!(bad.status.code(), Some(1));
    let diagnostic = String::from_utf8(bad.stderr).unwrap();
    assert!(diagnostic.contains("oomd.toml:1: this limit has no \"hard\""), "{diagnostic}");
}

/// A program in place of systemctl, which appends its arguments to `log` in the folder.
fn fake_systemctl(folder: &Path) {
    let program = folder.join("systemctl");
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\n", folder.join("log").display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn a_backstop_follows_the_limits_of_users_and_ends_with_its_key() {
    if !privileged() {
        return;
    }
    const GUS: Uid = Uid(62136);
    let folder = tempfile::tempdir().unwrap();
    fake_systemctl(folder.path());
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let config = format!("backstop = true\n{}", limit(GUS, 160));
    let daemon = Daemon::start_prepared(&config, &[], move |command| {
        command.env("PATH", &path);
    });
    let last_is = |memory: &str, swap: &str| {
        let wanted = format!(
            "set-property --runtime user-{GUS}.slice MemoryMax={memory} MemorySwapMax={swap}"
        );
        eventually(&wanted, || {
            let log = std::fs::read_to_string(folder.path().join("log")).ok()?;
            (log.lines().last() == Some(&wanted)).then_some(())
        });
    };
    let bytes = |mib: u64| (mib * MIB).to_string();
    last_is(&bytes(160 + 10 + 256), &bytes(160 + 10));
    daemon.set_limit(GUS, 320 * MIB);
    last_is(&bytes(320 + 20 + 256), &bytes(320 + 20));
    write(&daemon, &limit(GUS, 160));
    assert!(reload(&daemon).contains(&"users' limits have no backstop any more".to_owned()));
    last_is("infinity", "infinity");
    assert!(!daemon.status().degraded.iter().any(|row| row.contains("backstop")));
}

#[test]
fn files_that_other_users_can_change_are_refused_and_the_old_limits_stay() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start(&limit(GINA, 100), &[]);
    let folder = daemon.socket().parent().unwrap().to_owned();
    let set = |name: &str, mode| {
        std::fs::set_permissions(folder.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let refused = |what: &str| {
        let reply = daemon.request(&Request::Reload);
        let Reply::Error { message } = reply else { panic!("{reply:?}") };
        assert!(message.contains(what) && message.contains("stays in force"), "{message}");
        assert_eq!(in_force(&daemon, GINA), Some((100, "config".into())));
    };
    write(&daemon, &limit(GINA, 900));
    set("oomd.toml", 0o666);
    refused("oomd.toml is writable by every user (mode 0666, owner uid 0)");
    set("oomd.toml", 0o644);
    std::os::unix::fs::chown(folder.join("oomd.toml"), Some(62_144), None).unwrap();
    refused("oomd.toml belongs to uid 62144 (mode 0644)");
    std::os::unix::fs::chown(folder.join("oomd.toml"), Some(0), None).unwrap();
    daemon.write_config("oomd.d/gina.toml", &limit(GINA, 800));
    set("oomd.d", 0o777);
    refused("oomd.d is writable by every user (mode 0777, owner uid 0)");
    set("oomd.d", 0o755);
    set("oomd.d/gina.toml", 0o646);
    refused("gina.toml is writable by every user (mode 0646, owner uid 0)");
    set("oomd.d/gina.toml", 0o644);
    assert_eq!(reload(&daemon).len(), 1);
    assert_eq!(in_force(&daemon, GINA), Some((800, "config".into())));
}
