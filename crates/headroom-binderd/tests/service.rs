//! The daemon in the environment of its systemd unit: with no more capabilities than the unit
//! allows.
#![cfg(target_arch = "x86_64")]
#![allow(missing_docs)]

mod common;

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;

use binder_client::{Errno, Parcel, Payload, Session};
use common::{Daemon, cannot_mount, is_mounted, open, wait_for, wait_for_end};
use confinement::{Confinement, opinion_of_systemd};
use control::binderd::{Reclaimed, Reply, Request, Upgraded};

const UNIT: &str = include_str!("../../../dist/systemd/headroom-binderd.service");

/// Starts a daemon confined like the unit; also returns the socket of its service manager.
fn confined(dir: tempfile::TempDir, args: &[&str]) -> (Daemon, UnixDatagram) {
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_nonblocking(true).unwrap();
    let prepare = |command: &mut Command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
        Confinement::of(UNIT).unwrap().apply(command);
    };
    (Daemon::start_prepared(dir, args, prepare), manager)
}

fn notification(manager: &UnixDatagram) -> Option<String> {
    let mut message = [0; 256];
    let length = manager.recv(&mut message).ok()?;
    Some(String::from_utf8_lossy(&message[..length]).into_owned())
}

/// Passes a socket to the server, which writes to it.
fn pass_a_file(session: &mut Session<'_>) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let parcel = Parcel::new().fd(theirs.as_fd());
    let reply = session.call(0, 1, parcel.payload()).unwrap();
    session.free(reply);
    let mut word = [0; 4];
    ours.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"here");
}

#[test]
fn under_the_unit_calls_carry_descriptors_and_priorities_and_idle_memory_is_reclaimed() {
    if cannot_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut daemon, manager) = confined(dir, &["--stats", "global"]);
    let degraded = daemon.status().degraded;
    // Depends on the machine, not on the unit.
    let expected = |what: &String| what.contains("oom_score_adj");
    assert!(degraded.iter().all(expected), "{degraded:?}");
    assert_eq!(daemon.status().mapping, "passthrough");
    assert_eq!(wait_for("a notification", || notification(&manager)), "STATUS=starting\n");
    let first = wait_for("another one", || notification(&manager));
    assert!(first.starts_with("READY=1\nSTATUS=0 opens on "), "{first}");

    let mut server = daemon.client("write-to-files");
    let client = open(daemon.binder());
    let mut session = Session::new(&client);
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let parcel = Parcel::new().fd(theirs.as_fd());
    let reply = session.call(0, 1, parcel.payload()).unwrap();
    assert_eq!(reply.data().unwrap(), 0_i32.to_ne_bytes(), "it serves at its caller's priority");
    session.free(reply);
    let mut word = [0; 4];
    ours.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"here");
    let reply = session.call(0, 2, Payload::bytes(&[1; 64 << 10])).unwrap();
    session.free(reply);
    session.flush().unwrap();
    let logs = daemon.mount().join("binder_logs/stats");
    assert!(std::fs::read_to_string(logs).unwrap().contains("BC_TRANSACTION: 2"));
    let reply = daemon.request(&Request::Reclaim { pages: u64::MAX });
    assert!(matches!(reply, Reply::Reclaimed(Reclaimed { pages, .. }) if pages > 0), "{reply:?}");
    wait_for("a sign of life", || {
        notification(&manager).filter(|text| text.starts_with("WATCHDOG=1"))
    });
    server.child.kill().unwrap();
    wait_for_end(&mut server);
    daemon.wait_until_gone(server.pid());
    assert_eq!(daemon.stop().code(), Some(0));
    wait_for("a last word", || notification(&manager).filter(|text| text == "STOPPING=1\n"));
    assert!(!is_mounted(&daemon.mount()));
}

#[test]
fn under_the_unit_a_sandboxed_receiver_of_another_user_gets_descriptors() {
    if cannot_mount() {
        return;
    }
    let (mut daemon, _manager) = confined(tempfile::tempdir().unwrap(), &[]);
    let _server = daemon.client("write-to-files-sandboxed");
    let client = open(daemon.binder());
    let mut session = Session::new(&client);
    for _ in 0..3 {
        pass_a_file(&mut session);
    }
    session.flush().unwrap();
    drop(client);
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn under_the_unit_the_guardian_ends_the_bus_of_a_killed_daemon() {
    if cannot_mount() {
        return;
    }
    let (mut daemon, _manager) = confined(tempfile::tempdir().unwrap(), &[]);
    let client = open(daemon.binder());
    daemon.signal(libc::SIGKILL);
    daemon.wait();
    wait_for("the bus to end", || (!is_mounted(&daemon.mount())).then_some(()));
    assert_eq!(client.version().unwrap_err().errno(), Some(Errno::NOTCONN));
}

#[test]
fn under_the_unit_buffers_can_be_stored_by_notices() {
    if cannot_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mut daemon, _manager) = confined(dir, &["--mapping", "notify-store"]);
    let _server = daemon.client("write-to-files");
    let client = open(daemon.binder());
    let mut session = Session::new(&client);
    let reply = session.call(0, 1, Payload::bytes(&[7; 9000])).unwrap();
    assert_eq!(reply.data().unwrap().len(), 4);
    session.free(reply);
    session.flush().unwrap();
    drop(client);
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn under_the_unit_the_daemon_is_upgraded() {
    if cannot_mount() {
        return;
    }
    let (mut daemon, manager) = confined(tempfile::tempdir().unwrap(), &[]);
    let degraded = daemon.status().degraded;
    let _server = daemon.client("write-to-files");
    let client = open(daemon.binder());
    let mut session = Session::new(&client);
    for _ in 0..2 {
        while notification(&manager).is_some() {}
        let reply = daemon.request(&Request::Upgrade { program: None });
        assert!(matches!(reply, Reply::Upgraded(Upgraded { processes: 2, .. })), "{reply:?}");
        wait_for("readiness", || notification(&manager).filter(|text| text.contains("READY=1")));
        assert_eq!(daemon.status().degraded, degraded);
        pass_a_file(&mut session);
    }
    assert_eq!(daemon.stop().code(), Some(0));
    assert!(!is_mounted(&daemon.mount()));
}

#[test]
fn systemd_understands_the_unit() {
    let program = "/usr/local/bin/headroom-binderd";
    match opinion_of_systemd("headroom-binderd.service", UNIT, program, 75) {
        Ok(findings) => assert_eq!(findings, None),
        Err(error) => test_support::skip(format_args!("systemd-analyze: {error}")),
    }
}

#[test]
fn nothing_in_the_unit_is_a_seccomp_filter() {
    let filters = [
        "SystemCall",
        "Restrict",
        "MemoryDenyWriteExecute",
        "LockPersonality",
        "ProtectClock",
        "ProtectHostname",
        "ProtectKernel",
        "PrivateDevices",
    ];
    for line in UNIT.lines() {
        assert!(!filters.iter().any(|setting| line.starts_with(setting)), "{line}");
    }
}

#[test]
fn nothing_in_the_unit_hides_the_mount_from_other_processes() {
    let apart =
        ["Private", "ProtectSystem", "ProtectHome", "ProtectKernel", "ProtectControlGroups"];
    let apart = [
        &apart[..],
        &["ReadWritePaths", "InaccessiblePaths", "TemporaryFileSystem", "ProtectProc"],
    ];
    for line in UNIT.lines() {
        assert!(!apart.concat().iter().any(|setting| line.starts_with(setting)), "{line}");
    }
}
