//! Who is told of a kill, a warning, or a number: programs, terminals, the journal, scrapers.

mod support;

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};

use control::oomd::{Outcome, Reply, Request};
use support::daemon::{Daemon, command};
use support::hog::Hog;
use support::{MIB, eventually, privileged};

const UID: u32 = 62950;

#[test]
#[ignore = "a helper of the others"]
fn hog_that_other_tests_start() {
    support::hog::obey();
}

/// A shell script that root alone can change, and the file it writes to.
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

    /// As a value of the configuration: the program, and the file as its argument.
    fn value(&self) -> String {
        let (program, out) = (self.dir.path().join("hook"), self.out());
        format!("[\"{}\", \"{}\"]", program.display(), out.display())
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    /// What it has written, when the last line is whole.
    fn said(&self) -> Option<String> {
        std::fs::read_to_string(self.out()).ok().filter(|text| text.ends_with('\n'))
    }
}

/// One process of a user of ours breaks its limit.
fn break_a_limit(daemon: &Daemon, uid: u32) -> Hog {
    daemon.set_limit(uid, 64 * MIB);
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    hog.died();
    hog
}

#[test]
fn a_program_is_told_after_a_kill_what_died_and_why() {
    if !privileged() {
        return;
    }
    let hook = Hook::new(
        "echo $HEADROOM_HOOK $HEADROOM_PID $HEADROOM_UID $HEADROOM_LIMIT_BYTES $HEADROOM_OUTCOME >> \"$1\"",
    );
    let daemon = Daemon::start(&format!("[hooks]\nafter = {}\n", hook.value()), &[]);
    let hog = break_a_limit(&daemon, UID);
    let said = eventually("the program is run", || hook.said());
    assert_eq!(said, format!("after {} {UID} {} reclaimed\n", hog.pid(), 64 * MIB));
}

#[test]
fn a_program_before_a_kill_sees_the_victim_alive_and_one_that_hangs_holds_nobody_up() {
    if !privileged() {
        return;
    }
    let quick = Hook::new("head -n 1 /proc/$HEADROOM_PID/status >> \"$1\"");
    let config =
        |hook: &Hook, ms| format!("[hooks]\nbefore = {}\nbudget-ms = {ms}\n", hook.value());
    let mut daemon = Daemon::start(&config(&quick, 1000), &["--notifier=proc"]);
    drop(break_a_limit(&daemon, UID + 1));
    let said = eventually("the program is run", || quick.said());
    assert!(said.starts_with("Name:"), "{said}");
    daemon.stop();

    // It goes on only when the test says so, which is after the kill.
    let slow = Hook::new("while ! [ -e \"$1.go\" ]; do sleep 0.01; done; echo late > \"$1\"");
    let daemon = Daemon::start(&config(&slow, 5), &["--notifier=proc"]);
    drop(break_a_limit(&daemon, UID + 2));
    assert!(matches!(daemon.ended(UID + 2).outcome, Outcome::Reclaimed { .. }));
    assert_eq!(slow.said(), None);
    std::fs::write(slow.dir.path().join("out.go"), "").unwrap();
    eventually("it ends by itself", || slow.said());
}

#[test]
fn who_nears_its_limit_is_warned_once_by_a_program_and_on_its_terminals() {
    if !privileged() {
        return;
    }
    let uid = UID + 3;
    let mut terminal = Terminal::of(uid);
    let hook = Hook::new("echo $HEADROOM_UID $HEADROOM_LIMIT_BYTES >> \"$1\"");
    let config = format!("[hooks]\nwarn = {}\n[warnings]\nterminals = true\n", hook.value());
    let daemon = Daemon::start(&config, &[]);
    daemon.set_limit(uid, 64 * MIB);
    let mut hog = Hog::start(uid);
    hog.grow(60 * 1024);
    assert!(hog.survived());
    let said = eventually("the program is run", || hook.said());
    assert_eq!(said, format!("{uid} {}\n", 64 * MIB));
    let line = terminal.reads("will be killed");
    assert!(line.contains("of the 64 MiB that you may have"), "{line}");
    // Below and above once more: it has been said.
    hog.grow(1024);
    assert!(hog.survived());
    daemon.ask(&Request::Status);
    assert_eq!(hook.said().unwrap().lines().count(), 1);
}

/// A terminal that belongs to a user.
struct Terminal {
    ours: std::fs::File,
    _theirs: OwnedFd,
}

impl Terminal {
    fn of(uid: u32) -> Self {
        let (mut ours, mut theirs) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: both numbers are ours; nothing else is asked for.
        let done = unsafe {
            libc::openpty(&mut ours, &mut theirs, none, std::ptr::null(), std::ptr::null())
        };
        assert_eq!(done, 0);
        // SAFETY: openpty has just made them for us; they are changed by number here, and owned after.
        unsafe {
            assert_eq!(libc::fchown(theirs, uid, u32::MAX), 0);
            assert_eq!(libc::fchmod(theirs, 0o620), 0);
            Self { ours: std::fs::File::from_raw_fd(ours), _theirs: OwnedFd::from_raw_fd(theirs) }
        }
    }

    /// Waits for these words.
    fn reads(&mut self, words: &str) -> String {
        let mut text = String::new();
        rustix::fs::fcntl_setfl(&self.ours, rustix::fs::OFlags::NONBLOCK).unwrap();
        eventually("the terminal is written to", || {
            let mut part = [0; 512];
            if let Ok(len) = self.ours.read(&mut part) {
                text.push_str(&String::from_utf8_lossy(&part[..len]));
            }
            text.contains(words).then(|| text.clone())
        })
    }
}

#[test]
fn the_journal_gets_every_fact_in_a_field_of_its_own() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let journal = UnixDatagram::bind(&path).unwrap();
    journal.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let daemon = Daemon::start("", &[&format!("--journal={}", path.display())]);
    let hog = break_a_limit(&daemon, UID + 4);
    let pid = format!("HEADROOM_PID={}", hog.pid());
    let mut entries = Vec::new();
    // A warning may come first.
    while entries.len() < 2 {
        let mut entry = vec![0; 65536];
        let len = journal.recv(&mut entry).unwrap();
        let entry = String::from_utf8_lossy(&entry[..len]).into_owned();
        if entry.lines().any(|line| line == pid) {
            entries.push(entry);
        }
    }
    let has = |entry: &str, field: &str| {
        assert!(entry.lines().any(|line| line.starts_with(field)), "{field} is not in {entry}");
    };
    for field in [
        "MESSAGE=killed ",
        "MESSAGE_ID=f3a1c9d2b6e84f0795c3d81b2e6a4f10",
        "PRIORITY=4",
        "SYSLOG_IDENTIFIER=headroom-oomd",
        "HEADROOM_UID=62954",
        "HEADROOM_NAME=hog",
        "HEADROOM_LIMIT_BYTES=67108864",
        "HEADROOM_OUTCOME=dying",
    ] {
        has(&entries[0], field);
    }
    has(&entries[1], "HEADROOM_OUTCOME=reclaimed");
    has(&entries[1], "HEADROOM_BYTES_BACK=");
}

/// What a scraper gets.
fn scrape(socket: &Path, request: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn metrics_are_in_the_file_and_on_the_socket_until_the_configuration_says_otherwise() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("headroom.prom"), dir.path().join("metrics.sock"));
    let config = format!(
        "[metrics]\ntextfile = \"{}\"\nsocket = \"{}\"\ninterval-s = 1\n[machine]\nenabled = false\n",
        file.display(),
        socket.display()
    );
    let daemon = Daemon::start(&config, &[]);
    let uid = UID + 5;
    drop(break_a_limit(&daemon, uid));
    let killed = "headroom_processes_killed_total 1\n";
    eventually("the file has the kill", || {
        std::fs::read_to_string(&file).ok().filter(|text| text.contains(killed))
    });
    let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = eventually("the socket answers", || scrape(&socket, get));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(
        body.contains(&format!("headroom_user_memory_limit_bytes{{uid=\"{uid}\"}} 67108864\n"))
    );
    assert!(
        body.contains("headroom_up{daemon=\"binderd\"} 0\n") && body.contains(killed),
        "{body}"
    );
    let other = scrape(&socket, "GET /other HTTP/1.0\r\n\r\n").unwrap();
    assert!(other.starts_with("HTTP/1.0 404 "), "{other}");
    let post = scrape(&socket, "POST /metrics HTTP/1.0\r\n\r\n").unwrap();
    assert!(post.starts_with("HTTP/1.0 405 "), "{post}");
    // One that says nothing, and one that goes away, hold nobody up for long.
    let _silent = UnixStream::connect(&socket).unwrap();
    drop(UnixStream::connect(&socket).unwrap());
    eventually("others are served", || scrape(&socket, get));

    daemon.write_config("oomd.toml", "[machine]\nenabled = false\n");
    let Reply::Reloaded { changes, problems } = daemon.ask(&Request::Reload) else { panic!() };
    assert_eq!((changes, problems), (vec!["who is told".to_owned()], vec![]));
    assert!(!socket.exists());
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
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success());
    assert!(said.contains("oomd.toml:2: ") && said.contains("written to by everybody"), "{said}");
}

#[test]
fn programs_of_hooks_are_no_children_that_stay() {
    if !privileged() {
        return;
    }
    let hook = Hook::new("echo $$ >> \"$1\"");
    let daemon = Daemon::start(&format!("[hooks]\nafter = {}\n", hook.value()), &[]);
    drop(break_a_limit(&daemon, UID + 6));
    let pid = eventually("the program is run", || hook.said());
    let stat = PathBuf::from(format!("/proc/{}/stat", pid.trim()));
    eventually("it is waited for", || (!stat.exists()).then_some(()));
}
