//! `headroom top` on a real terminal and in a pipe, with a simulated daemon.

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};

use control::Uid;
use control::oomd::{AccountRef, Reply, Request, Status, UserLimit};
use rustix::process::Signal;
use support::pty::Pty;
use support::{FakeDaemon, headroom, run};

/// Leaves the alternate screen.
const LEAVE: &str = "\x1b[?1049l";
const MIB: u64 = 1 << 20;

/// A daemon with `users` users, and the requests for changes that it received.
fn daemon(dir: &Path, users: u32) -> (FakeDaemon, Arc<Mutex<Vec<Request>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let changes = requests.clone();
    let answer = move |request: Request| match request {
        Request::Status => Reply::Status(Status {
            version: "0.1.0".into(),
            protocol: 1,
            pid: 1,
            notifier: "bpf".into(),
            attached: true,
            limited_users: users,
            ..Default::default()
        }),
        Request::ListLimits => Reply::Limits { limits: (0..users).map(limit).collect() },
        Request::Why { .. } => Reply::Why { records: Vec::new() },
        request => {
            changes.lock().unwrap().push(request);
            Reply::Done
        }
    };
    (FakeDaemon::start(dir.join("oomd.sock"), answer), requests)
}

/// The limit of a user without a name; the first ones use most.
fn limit(number: u32) -> UserLimit {
    UserLimit {
        account: AccountRef::user(Uid(4_000_000_000 + number)),
        group: None,
        cgroup: None,
        members: Vec::new(),
        counts: Vec::new(),
        hard_bytes: 2000 * MIB,
        soft_bytes: 1900 * MIB,
        used_bytes: (1500 - u64::from(number)) * MIB,
        dying_bytes: 0,
        peak_bytes: 0,
        usage_source: None,
        leased_bytes: 0,
        leaseholders: 0,
        source: "runtime".into(),
        details: control::oomd::LimitDetails::default(),
    }
}

fn top(dir: &Path) -> std::process::Command {
    let mut command = headroom(dir);
    command.args(["top", "-d", "0.1"]);
    command
}

#[test]
fn on_a_terminal_keys_select_and_set_a_limit_and_the_terminal_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, requests) = daemon(dir.path(), 1000);
    let mut pty = Pty::start(top(dir.path()), 100, 30);
    pty.shows("4000000000");
    pty.shows("1 of 1000");
    assert!(!pty.is_ordinary());
    pty.types("G");
    pty.shows("4000000999");
    pty.types("l512M\r");
    pty.shows("done");
    let expected = Request::SetLimit {
        account: AccountRef::user(Uid(4_000_000_999)),
        hard_bytes: 512 * MIB,
        soft_bytes: None,
        grace_s: None,
    };
    assert_eq!(*requests.lock().unwrap(), [expected]);
    pty.resize(44, 10);
    // Redrawn: two columns, four users, the selected one last.
    pty.shows("4000000999       501.0 MiB     2.0 GiB\n");
    pty.types("q");
    assert!(pty.ended().success());
    pty.wrote(LEAVE);
    assert!(pty.is_ordinary());
}

#[test]
fn a_dumb_terminal_gets_text() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, _) = daemon(dir.path(), 3);
    let mut command = top(dir.path());
    command.env("TERM", "dumb");
    let mut pty = Pty::start(command, 80, 24);
    pty.shows("4000000002");
    assert!(pty.is_ordinary());
    pty.signal(Signal::TERM);
    pty.ended();
    assert!(!pty.written().contains('\u{1b}'), "{}", pty.written());
}

#[test]
fn on_sigterm_it_restores_the_terminal() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let (_daemon, _) = daemon(dir.path(), 3);
        let mut pty = Pty::start(top(dir.path()), 80, 24);
        pty.shows("4000000002");
        pty.signal(signal);
        assert!(pty.ended().success(), "{signal:?}: {}", pty.seen());
        pty.wrote(LEAVE);
        assert!(pty.is_ordinary(), "{signal:?}");
    }
}

#[test]
fn a_closed_terminal_ends_it_without_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, _) = daemon(dir.path(), 3);
    let mut pty = Pty::start_apart(top(dir.path()), 80, 24);
    pty.shows("4000000002");
    assert_eq!(pty.hang_up().code(), Some(129));
}

#[test]
fn a_daemon_that_restarts_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = daemon(dir.path(), 2);
    let mut pty = Pty::start(top(dir.path()), 80, 24);
    pty.shows("4000000001");
    drop(first);
    pty.shows("as it was: ");
    let (_next, _) = daemon(dir.path(), 3);
    pty.shows("4000000002");
    pty.types("\x03");
    assert!(pty.ended().success());
}

#[test]
fn without_a_daemon_top_fails_and_leaves_the_terminal_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let mut pty = Pty::start(top(dir.path()), 80, 24);
    assert_eq!(pty.ended().code(), Some(1));
    pty.shows("is not running");
    assert!(!pty.written().contains('\x1b') && pty.is_ordinary());
}

#[test]
fn output_to_a_pipe_is_text_or_json() {
    let dir = tempfile::tempdir().unwrap();
    let (_daemon, _) = daemon(dir.path(), 5);
    let (code, text, stderr) = run(headroom(dir.path()).args(["top", "--once"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(text.matches("400000000").count(), 5, "{text}");
    assert!(!text.contains('\x1b'));
    let (code, text, _) = run(top(dir.path()).args(["--plain", "-n", "3"]));
    assert_eq!((code, text.matches("4000000004").count()), (Some(0), 3), "{text}");
    let (code, text, stderr) = run(top(dir.path()).args(["-n", "2"]));
    assert_eq!((code, text.matches("4000000004").count()), (Some(0), 2), "{stderr}");
    let (code, text, _) = run(headroom(dir.path()).args(["top", "--once", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, json["users"].as_array().unwrap().len()), (Some(0), 5));
    assert_eq!(json["users"][0]["used_bytes"], 1500 * MIB);
    let (code, _, stderr) = run(headroom(dir.path()).args(["top", "-d", "0"]));
    assert_eq!(code, Some(2), "{stderr}");
}
