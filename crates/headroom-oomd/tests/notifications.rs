//! Notifications of kills and warnings to programs and the journal.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use control::oomd::{Event, LimitLevel, Outcome, Reloaded, Reply, Request, Why};
use control::{Client, Uid};
use support::daemon::{Daemon, command};
use support::hog::Hog;
use support::journal::{Entry, Journal};
use support::{MIB, eventually, privileged};

const UID: Uid = Uid(62950);

/// A shell script that only root can change, and the file it writes to.
struct Hook {
    dir: tempfile::TempDir,
}

impl Hook {
    fn new(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hook");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir }
    }

    /// The hook as a value of the configuration: the program, with the file as its argument.
    fn value(&self) -> String {
        let (program, out) = (self.dir.path().join("hook"), self.out());
        format!("[\"{}\", \"{}\"]", program.display(), out.display())
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    /// The output of the script, if its last line is complete.
    fn output(&self) -> Option<String> {
        std::fs::read_to_string(self.out()).ok().filter(|text| text.ends_with('\n'))
    }
}

/// Makes one process of the user exceed its limit, and waits until the kill is recorded: the kernel
/// kills before the daemon knows.
fn break_a_limit(daemon: &Daemon, uid: Uid) -> Hog {
    daemon.set_limit(uid, 64 * MIB);
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    hog.died();
    let recorded = || {
        let Reply::Why { records } = daemon.request(&Request::Why { last: 1000 }) else {
            panic!("no records");
        };
        let mut victims = records.iter().filter_map(|record| record.victim.as_ref());
        victims.any(|victim| victim.pid == hog.pid()).then_some(())
    };
    eventually("the record of the kill", recorded);
    hog
}

#[test]
fn the_after_hook_gets_the_victim_and_the_reason() {
    if !privileged() {
        return;
    }
    let hook = Hook::new(
        "echo $HEADROOM_HOOK $HEADROOM_PID $HEADROOM_UID $HEADROOM_LIMIT_BYTES $HEADROOM_OUTCOME \
         >> \"$1\"",
    );
    let daemon = Daemon::start(&format!("[hooks]\nafter = {}\n", hook.value()), &[]);
    let hog = break_a_limit(&daemon, UID);
    let output = eventually("the program is run", || hook.output());
    assert_eq!(output, format!("after {} {UID} {} reclaimed\n", hog.pid(), 64 * MIB));
}

#[test]
fn the_before_hook_runs_before_the_kill_and_cannot_delay_it() {
    if !privileged() {
        return;
    }
    let quick = Hook::new("head -n 1 /proc/$HEADROOM_PID/status >> \"$1\"");
    let config =
        |hook: &Hook, ms| format!("[hooks]\nbefore = {}\nbudget-ms = {ms}\n", hook.value());
    let mut daemon = Daemon::start(&config(&quick, 1000), &["--notifier=proc"]);
    drop(break_a_limit(&daemon, Uid(62951)));
    let output = eventually("the program is run", || quick.output());
    assert!(output.starts_with("Name:"), "{output}");
    daemon.stop();

    // The script continues only when the test creates a file, which is after the kill.
    let slow = Hook::new("while ! [ -e \"$1.go\" ]; do sleep 0.01; done; echo late > \"$1\"");
    let daemon = Daemon::start(&config(&slow, 5), &["--notifier=proc"]);
    drop(break_a_limit(&daemon, Uid(62952)));
    assert!(matches!(daemon.ended(Uid(62952)).outcome, Outcome::Reclaimed { .. }));
    assert_eq!(slow.output(), None);
    std::fs::write(slow.dir.path().join("out.go"), "").unwrap();
    eventually("it ends by itself", || slow.output());
}

#[test]
fn a_user_near_its_limit_is_warned_once_by_a_program() {
    if !privileged() {
        return;
    }
    let uid = Uid(62953);
    let hook = Hook::new("echo $HEADROOM_UID $HEADROOM_LIMIT_BYTES >> \"$1\"");
    let config = format!("[hooks]\nwarn = {}\n", hook.value());
    let daemon = Daemon::start(&config, &[]);
    daemon.set_limit(uid, 64 * MIB);
    let mut hog = Hog::start(uid);
    hog.grow(60 * 1024);
    assert!(hog.survived());
    let output = eventually("the program is run", || hook.output());
    assert_eq!(output, format!("{uid} {}\n", 64 * MIB));
    // The usage falls below the limit and crosses it again: the warning is not repeated.
    hog.grow(1024);
    assert!(hog.survived());
    daemon.request(&Request::Status);
    assert_eq!(hook.output().unwrap().lines().count(), 1);
}

#[test]
fn a_user_is_warned_at_the_warning_level_and_at_the_soft_limit() {
    if !privileged() {
        return;
    }
    let uid = Uid(62987);
    let hook = Hook::new("echo $HEADROOM_UID $HEADROOM_LEVEL >> \"$1\"");
    let config = format!(
        "[[limit]]\nuser = {uid}\nhard = \"100M\"\nsoft = \"80M\"\nwarn = \"50%\"\n\
         [hooks]\nwarn = {}\n",
        hook.value()
    );
    let daemon = Daemon::start(&config, &[]);
    let mut subscriber = Client::connect(&daemon.socket()).unwrap();
    assert_eq!(subscriber.call::<Reply>(&Request::Subscribe).unwrap(), Reply::Subscribed);
    let mut hog = Hog::start(uid);
    for (grow_mib, expected) in [(60, LimitLevel::Warn), (26, LimitLevel::Soft)] {
        hog.grow(grow_mib << 10);
        assert!(hog.survived());
        let reply = subscriber.receive::<Reply>().unwrap();
        let Reply::Event(Event::SoftLimitCrossed(it)) = reply else { panic!("{reply:?}") };
        assert_eq!((it.level, it.hard_bytes), (expected, 100 * MIB));
        assert!(it.used_bytes > 50 * MIB, "{it:?}");
    }
    eventually("both are handled", || {
        hook.output().filter(|lines| *lines == format!("{uid} warn\n{uid} soft\n"))
    });
    assert_eq!(daemon.why(uid), []);
}

#[test]
fn the_journal_gets_each_kill_once_with_every_fact_in_a_field_of_its_own() {
    if !privileged() {
        return;
    }
    let journal = Journal::bind();
    let daemon = Daemon::start_with_journal("", &[], &journal, |_| ());
    let hog = break_a_limit(&daemon, Uid(62954));
    let pid = hog.pid().to_string();
    let of_the_victim = |entry: &Entry| entry.get("HEADROOM_PID") == Some(&pid);
    let mut entries = Vec::new();
    // A warning may precede the kill.
    while entries.len() < 2 {
        entries.extend(Some(journal.receive()).filter(of_the_victim));
    }
    let [killed, ended] = <[Entry; 2]>::try_from(entries).unwrap();
    for (name, value) in [
        ("MESSAGE_ID", "f3a1c9d2b6e84f0795c3d81b2e6a4f10"),
        ("PRIORITY", "4"),
        ("SYSLOG_IDENTIFIER", "headroom-oomd"),
        ("HEADROOM_UID", "62954"),
        ("HEADROOM_NAME", "hog"),
        ("HEADROOM_LIMIT_BYTES", "67108864"),
        ("HEADROOM_OUTCOME", "dying"),
    ] {
        assert_eq!(killed.get(name).map(String::as_str), Some(value), "{name} in {killed:#?}");
    }
    assert!(killed["MESSAGE"].starts_with(&format!("killed hog (pid {pid}) of uid 62954: ")));
    assert_eq!(ended["MESSAGE_ID"], "0b7d5e92c8134a6fa2e1f6409d3c7b58");
    assert_eq!((&ended["PRIORITY"][..], &ended["HEADROOM_OUTCOME"][..]), ("6", "reclaimed"));
    assert!(ended["HEADROOM_BYTES_BACK"].parse::<u64>().unwrap() > 0, "{ended:#?}");

    // Lines on standard error are in the journal as well.
    let (_, _, log) = daemon.end(rustix::process::Signal::TERM);
    assert!(log.iter().any(|line| line.contains("ready")), "{log:#?}");
    assert!(!log.iter().any(|line| line.contains("killed") || line.contains(&pid)), "{log:#?}");
    assert_eq!(journal.rest().into_iter().filter(of_the_victim).count(), 0);
}

#[test]
fn elsewhere_a_kill_is_logged_on_standard_error_alone() {
    if !privileged() {
        return;
    }
    let journal = Journal::bind();
    // Standard error was redirected after systemd connected it to the journal.
    let redirected = |command: &mut std::process::Command| {
        command.env("JOURNAL_STREAM", "1:1");
    };
    let daemon = Daemon::start_with_journal("", &[], &journal, redirected);
    let hog = break_a_limit(&daemon, Uid(62957));
    let (_, _, log) = daemon.end(rustix::process::Signal::TERM);
    let message = format!("killed hog (pid {}) of uid {}: ", hog.pid(), Uid(62957));
    assert_eq!(log.iter().filter(|line| line.contains(&message)).count(), 1, "{log:#?}");
    assert_eq!(journal.rest(), Vec::<Entry>::new());
}

#[test]
fn another_configuration_of_hooks_is_applied() {
    if !privileged() {
        return;
    }
    let hook = Hook::new("echo $HEADROOM_UID >> \"$1\"");
    let daemon = Daemon::start("[machine]\nenabled = false\n", &[]);
    let config = format!("[machine]\nenabled = false\n[hooks]\nafter = {}\n", hook.value());
    daemon.write_config("oomd.toml", &config);
    let Reply::Reloaded(Reloaded { changes, problems }) = daemon.request(&Request::Reload) else {
        panic!()
    };
    assert_eq!((changes, problems), (vec!["notifications".to_owned()], vec![]));
    let uid = Uid(62955);
    drop(break_a_limit(&daemon, uid));
    let output = eventually("the program is run", || hook.output());
    assert_eq!(output, format!("{uid}\n"));
}

#[test]
fn a_program_that_others_could_exchange_keeps_the_daemon_from_starting() {
    if !privileged() {
        return;
    }
    let hook = Hook::new("true");
    let program = hook.dir.path().join("hook");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o777)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = format!("[hooks]\nafter = {}\n", hook.value());
    let done = command(dir.path(), &config).arg("--check-config").output().unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success());
    assert!(
        stderr.contains("oomd.toml:2: ") && stderr.contains("is writable by every user"),
        "{stderr}"
    );
}

#[test]
fn hook_processes_are_reaped() {
    if !privileged() {
        return;
    }
    let hook = Hook::new("echo $$ >> \"$1\"");
    let daemon = Daemon::start(&format!("[hooks]\nafter = {}\n", hook.value()), &[]);
    drop(break_a_limit(&daemon, Uid(62956)));
    let pid = eventually("the program is run", || hook.output());
    let stat = PathBuf::from(format!("/proc/{}/stat", pid.trim()));
    eventually("it is waited for", || (!stat.exists()).then_some(()));
}

#[test]
fn a_kill_loop_of_a_user_costs_others_no_after_hook() {
    if !privileged() {
        return;
    }
    let hook = Hook::new("sleep 1; echo $HEADROOM_UID >> \"$1\"");
    let daemon = Daemon::start(&format!("[hooks]\nafter = {}\n", hook.value()), &[]);
    let (looping, other) = (Uid(62967), Uid(62968));
    for _ in 0..8 {
        drop(break_a_limit(&daemon, looping));
    }
    for _ in 0..3 {
        drop(break_a_limit(&daemon, other));
    }
    let all = || {
        let output = hook.output()?;
        let of = |uid: Uid| output.lines().filter(|line| *line == uid.to_string()).count();
        (of(looping) == 8 && of(other) == 3).then_some(())
    };
    eventually("each kill has its hook", all);
}

#[test]
fn a_record_names_the_command_of_the_victim_for_its_owner_and_for_the_hook() {
    const OWNER: Uid = Uid(62961);
    const OTHER: Uid = Uid(62962);
    if !privileged() {
        return;
    }
    let hook = Hook::new(
        "echo \"$HEADROOM_PID $HEADROOM_COMMAND $HEADROOM_FOLDER $HEADROOM_PARENT_PID\" >> \"$1\"",
    );
    let config = format!(
        "[hooks]\nafter = {}\n\
         [[limit]]\nname = \"lab\"\nusers = [{OWNER}, {OTHER}]\nhard = \"64M\"\n",
        hook.value()
    );
    let daemon = Daemon::start(&config, &[]);
    let record = |uid, pid| {
        let Reply::Why { records } = daemon.request_as(uid, &Request::Why { last: 99 }) else {
            panic!("no records");
        };
        let is_it = |record: &Why| record.victim.as_ref().is_some_and(|victim| victim.pid == pid);
        records.into_iter().find(is_it)
    };
    let details = |uid, pid| record(uid, pid)?.victim?.details;
    // The details are read while the process is armed. It may exceed the limit before that.
    let (pid, found) = eventually("a victim whose details were read", || {
        let mut hog = Hog::start(OWNER);
        hog.grow(60 * 1024);
        assert!(hog.survived());
        hog.grow(30 * 1024);
        hog.died();
        let ended = || record(OWNER, hog.pid()).filter(|it| it.outcome != Outcome::Dying);
        eventually("the outcome", ended);
        details(OWNER, hog.pid()).map(|found| (hog.pid(), found))
    });
    let own = std::process::id();
    assert!(found.command.ends_with("/hog"), "{found:?}");
    assert_eq!((found.folder.as_str(), found.parent_pid), ("/", own));
    assert!(!found.parent.is_empty(), "{found:?}");
    let expected = format!("{pid} {} / {own}", found.command);
    eventually("the program is run", || hook.output()?.contains(&expected).then_some(()));
    assert!(record(OTHER, pid).is_some() && details(OTHER, pid).is_none(), "a member of the group");
    assert_eq!(details(Uid(0), pid), Some(found), "root");
}
