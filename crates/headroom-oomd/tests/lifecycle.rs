//! Start, shutdown and errors at start.

mod support;

use control::Uid;
use control::oomd::{AccountRef, Reply, Request};
use rustix::process::Signal;
use support::daemon::{self, Daemon};
use support::{MIB, eventually, privileged};

const UID: Uid = Uid(62201);

/// Number of tracing links that the process holds.
fn links(pid: u32) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let infos = fds.filter_map(|fd| std::fs::read_to_string(fd.unwrap().path()).ok());
    infos.filter(|info| info.contains("link_type:")).count()
}

#[test]
fn the_notifier_is_attached_with_the_first_limit_and_detached_with_the_last() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &["--notifier", "bpf"]);
    let attached = || (daemon.status().attached, links(daemon.pid()));
    assert_eq!(attached(), (false, 0));
    daemon.set_limit(UID, 64 * MIB);
    daemon.set_limit(Uid(62202), 64 * MIB);
    assert_eq!(attached(), (true, 1));
    assert_eq!(
        daemon.request(&Request::ClearLimit { account: AccountRef::user(UID), grace_s: None }),
        Reply::Done
    );
    assert_eq!(attached(), (true, 1));
    assert_eq!(
        daemon
            .request(&Request::ClearLimit { account: AccountRef::user(Uid(62202)), grace_s: None }),
        Reply::Done
    );
    assert_eq!(attached(), (false, 0));
}

#[test]
fn sigterm_and_sigint_end_it_and_nothing_is_left_behind() {
    if !privileged() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let daemon = Daemon::start("", &[]);
        daemon.set_limit(UID, 64 * MIB);
        let (status, dir, log) = daemon.end(signal);
        assert!(status.success(), "{status} {log:?}");
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "only the configuration: {left:?}");
        assert!(log.iter().any(|line| line.contains("stopping; limits")), "{log:?}");
    }
}

#[test]
fn missing_features_are_logged_once_and_in_the_status() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &["--notifier", "proc"]);
    let status = daemon.status();
    assert_eq!(status.notifier, "proc");
    assert!(status.degraded.iter().any(|what| what.contains("/proc")), "{:?}", status.degraded);
    for what in &status.degraded {
        let logged = || daemon.log().iter().filter(|line| line.contains(what)).count();
        assert_eq!(eventually("it is logged", || Some(logged()).filter(|logged| *logged > 0)), 1);
    }
}

#[test]
fn limits_of_the_configuration_are_in_force_when_it_answers() {
    if !privileged() {
        return;
    }
    let config = format!(
        "[[limit]]\nuser = \"daemon\"\nhard = \"3G\"\n\n[[limit]]\nuser = {UID}\nhard = \
         \"1.5G\"\nsoft = \"50%\"\n"
    );
    let daemon = Daemon::start(&config, &[]);
    let limit = daemon.limit(UID).unwrap();
    assert_eq!((limit.hard_bytes, limit.soft_bytes), (1536 * MIB, 768 * MIB));
    assert_eq!(limit.source, "config");
    assert_eq!(daemon.status().limited_users, 2);
}

#[test]
fn a_bad_configuration_ends_it_with_the_file_the_line_and_the_reason() {
    let cases = [
        (
            "[[limit]]\nuser = 62201\nhrad = \"1G\"\n",
            ":3: unknown key \"hrad\"; did you mean \"hard\"?",
        ),
        ("[[limit]]\nuser = 0\nhard = \"1G\"\n", ":2: uid 0 cannot be limited"),
        ("[[limit]]\nuser = 62201\nhard = \"1Q\"\n", ":3: \"1Q\" is not an amount of memory"),
        ("[[limit]]\nuser = 62201\nhard = \"1G\"\nsoft = \"2G\"\n", ":4: the soft limit"),
        ("[[limit]\n", ":1: "),
    ];
    for (config, part) in cases {
        let dir = tempfile::tempdir().unwrap();
        let output = daemon::command(dir.path(), config).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{config:?}: {stderr}");
        let expected = format!("{}{part}", dir.path().join("oomd.toml").display());
        assert!(stderr.contains(&expected), "{config:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "one line of error: {stderr}");
    }
}

#[test]
fn a_configuration_given_by_an_option_must_exist() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = daemon::command(dir.path(), "");
    std::fs::remove_file(dir.path().join("oomd.toml")).unwrap();
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("oomd.toml: cannot read the configuration"), "{stderr}");
}

#[test]
fn unknown_arguments_are_a_usage_error() {
    let dir = tempfile::tempdir().unwrap();
    let output = daemon::command(dir.path(), "").arg("--faster").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_second_daemon_on_the_same_socket_is_refused_and_the_first_goes_on() {
    if !privileged() {
        return;
    }
    let first = Daemon::start("", &[]);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("oomd.toml"), "").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_headroom-oomd"))
        .arg("--socket")
        .arg(first.socket())
        .arg("--config")
        .arg(dir.path().join("oomd.toml"))
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("listens on this socket"), "{stderr}");
    assert_eq!(first.status().limited_users, 0);
}

#[test]
fn a_service_manager_is_notified_of_readiness_life_and_end() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let notification = || {
        let mut message = [0; 512];
        let length = manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let mut command = daemon::command(dir.path(), "");
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000").env_remove("WATCHDOG_PID");
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    assert_eq!(notification(), "STATUS=starting\n");
    let ready = notification();
    assert!(ready.starts_with("READY=1\nSTATUS=") && ready.contains("users with a limit: 0"));
    for _ in 0..3 {
        assert!(notification().starts_with("WATCHDOG=1\nSTATUS="));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    eventually("it notifies that it stops", || (notification() == "STOPPING=1\n").then_some(()));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_service_manager_that_reads_nothing_does_not_block_the_daemon() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let _manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let (client, address) = (std::os::unix::net::UnixDatagram::unbound().unwrap(), path.clone());
    client.set_nonblocking(true).unwrap();
    let mut daemon = Daemon::start_prepared("", &["--notifier=proc"], move |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000");
    });
    while client.send_to(b"", &address).is_ok() {}
    // In 200 ms the daemon notifies the service manager's watchdog at least twice.
    let end = std::time::Instant::now() + std::time::Duration::from_millis(200);
    while std::time::Instant::now() < end {
        assert_eq!(daemon.status().limited_users, 0);
    }
    daemon.stop();
}

#[test]
fn a_file_at_the_path_of_a_socket_is_refused_and_kept() {
    if !privileged() {
        return;
    }
    for name in ["oomd.sock", control::lease::LEASE_SOCKET_NAME] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, "kept").unwrap();
        let done = daemon::command(dir.path(), "").output().unwrap();
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && error.contains("this is a regular file"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    }
}
