//! `headroom up` with the real daemons: they start together, stop together, and leave nothing
//! behind.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::{headroom, run};

/// Limit for any wait.
const PATIENCE: Duration = Duration::from_secs(40);

/// Why the daemons cannot run on this machine.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".into());
    }
    let us = Path::new(env!("CARGO_BIN_EXE_headroom"));
    for daemon in ["headroom-binderd", "headroom-oomd"] {
        if !us.with_file_name(daemon).exists() {
            return Some(format!("{daemon} is not built: cargo build --workspace --bins"));
        }
    }
    let fuse = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    fuse.err().map(|error| format!("/dev/fuse: {error}"))
}

macro_rules! need_daemons {
    () => {
        if let Some(reason) = obstacle() {
            test_support::skip(reason);
            return;
        }
    };
}

/// `headroom up` with a private mount and private sockets.
struct Up {
    dir: tempfile::TempDir,
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Up {
    fn start(more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut child = headroom(dir.path())
            .arg("up")
            .arg("--mount")
            .arg(dir.path().join("bus"))
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("cannot start headroom up");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let also = sender.clone();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|l| sender.send(l))
        });
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|l| also.send(l))
        });
        Self { dir, child, lines, seen: Vec::new() }
    }

    /// Waits for a line that starts with `start` and contains `part`.
    fn expect(&mut self, start: &str, part: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no line '{start}...{part}' in:\n{}", self.seen.join("\n"));
            };
            self.seen.push(line.clone());
            if line.starts_with(start) && line.contains(part) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it has exited; returns the exit code.
    fn end(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().or(status.signal().map(|signal| 128 + signal));
            }
            assert!(Instant::now() < deadline, "up does not end: {}", self.seen.join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn mount(&self) -> PathBuf {
        self.dir.path().join("bus")
    }

    fn is_mounted(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.lines().any(|line| line.split(' ').nth(1) == self.mount().to_str())
    }

    /// Both daemons' pids, binderd's first.
    fn daemons(&self) -> [Pid; 2] {
        let (code, stdout, stderr) = run(headroom(self.dir.path()).args(["status", "--json"]));
        assert_eq!(code, Some(0), "{stderr}");
        let status: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        ["binderd", "oomd"].map(|name| {
            let pid = status[name]["status"]["pid"].as_i64().unwrap_or_else(|| panic!("{stdout}"));
            Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
        })
    }

    fn assert_nothing_is_left(&self, daemons: &[Pid]) {
        let deadline = Instant::now() + PATIENCE;
        let gone = |pid: &Pid| test_kill_process(*pid).is_err();
        while !daemons.iter().all(gone) || self.is_mounted() {
            assert!(Instant::now() < deadline, "something is left: {}", self.seen.join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
        for socket in ["binderd.sock", "oomd.sock"] {
            assert!(!self.dir.path().join(socket).exists(), "{socket} is left");
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // In a failed test, make it clean up, by force if necessary.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::TERM);
            let deadline = Instant::now() + PATIENCE;
            while self.child.try_wait().is_ok_and(|status| status.is_none()) {
                if Instant::now() > deadline {
                    let _ = self.child.kill();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn both_daemons_come_up_and_ctrl_c_takes_them_down() {
    need_daemons!();
    for signal in [Signal::INT, Signal::TERM] {
        let mut up = Up::start(&[]);
        up.expect("headroom ", "ready");
        assert!(up.seen.iter().any(|line| line.starts_with("binder ") && line.contains("serves")));
        assert!(up.seen.iter().any(|line| line.starts_with("oom ") && line.contains("watches")));
        assert!(up.is_mounted());
        let daemons = up.daemons();
        up.signal(signal);
        assert_eq!(up.end(), Some(0), "{}", up.seen.join("\n"));
        up.assert_nothing_is_left(&daemons);
    }
}

#[test]
fn status_lines_follow_what_changes() {
    need_daemons!();
    let mut up = Up::start(&["--no-binder"]);
    up.expect("headroom ", "ready");
    let (code, _, stderr) = run(headroom(up.dir.path()).args(["limit", "set", "60124", "8G"]));
    assert_eq!(code, Some(0), "{stderr}");
    up.expect("oom ", "1 limited user,");
    let (code, _, stderr) = run(headroom(up.dir.path()).args(["limit", "clear", "60124"]));
    assert_eq!(code, Some(0), "{stderr}");
    up.expect("oom ", "0 limited users");
    up.signal(Signal::TERM);
    assert_eq!(up.end(), Some(0));
}

#[test]
fn one_daemon_that_cannot_start_takes_the_other_down() {
    need_daemons!();
    let mut up = Up::start(&["--config", "/nonexistent/oomd.toml"]);
    assert_eq!(up.end(), Some(1));
    up.expect("headroom: ", "oom ended with exit code 1");
    let why = up.seen.iter().any(|line| line.contains("/nonexistent/oomd.toml"));
    assert!(why, "the daemon's own words are missing: {}", up.seen.join("\n"));
    up.assert_nothing_is_left(&[]);
}

#[test]
fn a_killed_daemon_is_reported_and_the_other_one_runs_on() {
    need_daemons!();
    for (victim, name, socket) in [(0, "binder", "binderd.sock"), (1, "oom", "oomd.sock")] {
        let mut up = Up::start(&[]);
        up.expect("headroom ", "ready");
        let daemons = up.daemons();
        kill_process(daemons[victim], Signal::KILL).unwrap();
        up.expect("headroom: ", &format!("{name} was killed by signal 9"));
        assert!(!up.dir.path().join(socket).exists(), "{socket} is left");
        test_kill_process(daemons[1 - victim]).expect("the other daemon has ended");
        assert_eq!(up.is_mounted(), name == "oom", "the bus");
        up.signal(Signal::INT);
        assert_eq!(up.end(), Some(1));
        up.expect("headroom ", "not cleanly");
        up.assert_nothing_is_left(&daemons);
    }
}

#[test]
fn up_ends_with_the_last_daemon() {
    need_daemons!();
    let mut up = Up::start(&[]);
    up.expect("headroom ", "ready");
    let daemons = up.daemons();
    for (daemon, name) in daemons.into_iter().zip(["binder", "oom"]) {
        kill_process(daemon, Signal::KILL).unwrap();
        up.expect("headroom: ", &format!("{name} was killed by signal 9"));
    }
    assert_eq!(up.end(), Some(1));
    up.assert_nothing_is_left(&daemons);
}

#[test]
fn the_daemons_stop_when_up_is_killed() {
    need_daemons!();
    let mut up = Up::start(&[]);
    up.expect("headroom ", "ready");
    let daemons = up.daemons();
    up.signal(Signal::KILL);
    assert_eq!(up.end(), Some(128 + 9));
    up.assert_nothing_is_left(&daemons);
}

#[test]
fn a_second_up_reports_the_first_and_leaves_it_alone() {
    need_daemons!();
    let mut up = Up::start(&[]);
    up.expect("headroom ", "ready");
    let daemons = up.daemons();
    let (code, _, stderr) =
        run(headroom(up.dir.path()).arg("up").arg("--mount").arg(up.dir.path().join("other")));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("another daemon listens"), "{stderr}");
    assert_eq!(up.daemons(), daemons, "the first is not what it was");
    up.signal(Signal::INT);
    assert_eq!(up.end(), Some(0));
    up.assert_nothing_is_left(&daemons);
}

#[test]
fn daemons_are_looked_for_beside_the_command_and_nowhere_else() {
    if !test_support::privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let lonely = dir.path().join("headroom");
    // Copied by another process: a child that another test forks at the same time would have the
    // copy open for writing.
    let copied =
        std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_headroom")).arg(&lonely).status();
    assert!(copied.unwrap().success());
    let (code, _, stderr) = run(std::process::Command::new(&lonely).arg("up"));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("headroom-binderd is missing; build headroom-binderd beside headroom"),
        "{stderr}"
    );
}
