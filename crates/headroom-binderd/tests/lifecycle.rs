//! Start and stop of the daemon: it leaves no files, mounts or processes, however it ends.
#![allow(missing_docs)]

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use binder_client::{Errno, Session};
use binder_uapi::BinderfsDevice;
use binder_uapi::ioctl::BINDER_CTL_ADD;
use common::{Daemon, cannot_mount, gettid, is_mounted, open, wait_for};
use control::Uid;
use control::binderd::{Reply, Request};
use tempfile::TempDir;
use zerocopy::FromZeros;

/// A uid that no other process uses.
const USER: Uid = Uid(61_237);

#[test]
fn sigterm_and_sigint_end_it_with_nothing_left() {
    if cannot_mount() {
        return;
    }
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut daemon = Daemon::start();
        assert!(is_mounted(&daemon.mount()));
        daemon.signal(signal);
        assert_eq!(daemon.wait().code(), Some(0));
        assert!(!is_mounted(&daemon.mount()));
        assert_eq!(std::fs::read_dir(daemon.dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn clients_that_hold_the_device_cannot_hold_the_daemon() {
    if cannot_mount() {
        return;
    }
    let mut daemon = Daemon::start();
    let client = open(daemon.binder());
    let (tid_out, tid_in) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| {
            let mut session = Session::new(&client);
            session.enter_looper().unwrap();
            tid_out.send(gettid()).unwrap();
            loop {
                if let Err(error) = session.receive() {
                    return error.errno();
                }
            }
        });
        daemon.wait_until_blocked(tid_in.recv().unwrap());
        assert_eq!(daemon.stop().code(), Some(0));
        assert_eq!(blocked.join().unwrap(), Some(Errno::CONNABORTED));
    });
    assert_eq!(client.version().unwrap_err().errno(), Some(Errno::NOTCONN));
    assert!(!is_mounted(&daemon.mount()));
    assert!(!daemon.mount().exists());
}

#[test]
fn the_mount_of_a_dead_daemon_is_replaced() {
    if cannot_mount() {
        return;
    }
    let mut first = Daemon::start();
    // The guardian would clean up.
    let children = format!("/proc/{0}/task/{0}/children", first.pid());
    let guardian = std::fs::read_to_string(children).unwrap();
    common::kill(guardian.trim().parse().unwrap(), libc::SIGKILL);
    first.signal(libc::SIGKILL);
    first.wait();
    assert!(is_mounted(&first.mount()), "it had no chance");
    let errno = std::fs::metadata(first.mount()).unwrap_err().raw_os_error();
    assert_eq!(errno, Some(libc::ENOTCONN));
    let dir = std::mem::replace(&mut first.dir, TempDir::new().unwrap());
    let mut second = Daemon::start_in(dir, &[]);
    assert_eq!(open(second.binder()).version(), Ok(8));
    second.stop();
    assert!(!is_mounted(&second.mount()));
}

#[test]
fn a_mount_that_is_served_is_left_alone() {
    if cannot_mount() {
        return;
    }
    let first = Daemon::start();
    let other = TempDir::new().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_headroom-binderd"));
    command.arg("--mount").arg(first.mount()).arg("--socket").arg(other.path().join("socket"));
    let second = command.output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(stderr.contains("is mounted there already"), "{stderr}");
    assert_eq!(open(first.binder()).version(), Ok(8));
}

#[test]
fn an_unreachable_service_manager_is_reported() {
    if cannot_mount() {
        return;
    }
    let too_long = format!("/{}", "x".repeat(200));
    let daemon = Daemon::start_prepared(TempDir::new().unwrap(), &[], |command| {
        command.env("NOTIFY_SOCKET", too_long);
    });
    let degraded = daemon.status().degraded;
    assert!(degraded.iter().any(|what| what.contains("$NOTIFY_SOCKET")), "{degraded:?}");
}

#[test]
fn an_unmount_by_another_program_is_an_error() {
    if cannot_mount() {
        return;
    }
    let mut daemon = Daemon::start();
    rustix::mount::unmount(daemon.mount(), rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(daemon.wait().code(), Some(1));
    assert!(!daemon.socket().exists());
}

#[test]
fn wrong_arguments_are_named() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let stderr = |args: &[&str], code| {
        let output = Daemon::command(dir.path(), args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(stderr(&["--mapping", "magic"], 2).contains("magic"));
    assert!(stderr(&["--no-such-flag"], 2).contains("--no-such-flag"));
    assert!(stderr(&["--devices", "a/b"], 1).contains("a/b"));
    assert!(stderr(&["--devices", "twice,twice"], 1).contains("another device has it"));
    assert!(stderr(&["--devices", ""], 1).contains("not a file name"));
    assert!(!is_mounted(&dir.path().join("mount")));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_folder_that_must_not_be_hidden_is_refused() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let stderr = |mount: &std::path::Path| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_headroom-binderd"));
        command.arg("--mount").arg(mount).arg("--socket").arg(dir.path().join("socket"));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", mount.display());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for system in ["/", "/proc", "/sys", "/dev", "/run"] {
        let text = stderr(system.as_ref());
        assert!(text.contains(&format!("{system}: it is a system folder")), "{text}");
    }
    let full = dir.path().join("full");
    std::fs::create_dir_all(full.join("something")).unwrap();
    let text = stderr(&full);
    assert!(text.contains("it is not empty"), "{text}");
}

#[test]
fn folders_made_for_a_mount_that_fails_are_removed() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_headroom-binderd"));
    command.arg("--mount").arg(dir.path().join("one/two/three"));
    command.arg("--socket").arg(dir.path().join("socket")).args(["--devices", "a/b"]);
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_control_socket_lists_the_opens() {
    if cannot_mount() {
        return;
    }
    let daemon = Daemon::start();
    let status = daemon.status();
    assert_eq!(status.pid, daemon.pid() as u32);
    assert_eq!(status.mount, daemon.mount().to_str().unwrap());
    assert_eq!((status.devices, status.processes, status.transactions), (3, 0, 0));
    let client = open(daemon.binder());
    client.become_context_manager().unwrap();
    assert_eq!(daemon.status().processes, 1);
    let devices = daemon.ls();
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["binder", "hwbinder", "vndbinder"]);
    let own = std::process::id();
    assert_eq!(devices[0].manager, Some(own));
    assert_eq!((devices[0].processes[0].pid, devices[0].processes[0].euid), (own, Uid::ROOT));
    drop(client);
    wait_for("the open to go", || (daemon.status().processes == 0).then_some(()));
    let mut socket = control::Client::connect(&daemon.socket()).unwrap();
    let reply: Reply = socket.call(&serde_json::json!({"request": "nonsense"})).unwrap();
    assert!(matches!(reply, Reply::Error { .. }), "{reply:?}");
    let reply: Reply = socket.call(&Request::Status).unwrap();
    assert!(matches!(reply, Reply::Status(_)), "the connection goes on");
}

/// Errno of an open of this file by an unprivileged user; 0 if it succeeds.
fn open_as_user(path: &Path) -> i32 {
    let path = path.to_owned();
    let open = move || {
        let opened = std::fs::File::options().read(true).write(true).open(path);
        opened.err().map_or(0, |error| error.raw_os_error().unwrap())
    };
    test_support::spawn_as(USER, open).join().unwrap()
}

/// Adds a device by `binder-control`.
fn add_device(daemon: &Daemon, name: &str) {
    let mut device = BinderfsDevice::new_zeroed();
    device.name[..name.len()].copy_from_slice(name.as_bytes());
    let control = std::fs::File::open(daemon.mount().join("binder-control")).unwrap();
    // SAFETY: the ioctl reads and writes a `BinderfsDevice`, which lives across the call.
    let added =
        unsafe { libc::ioctl(control.as_raw_fd(), BINDER_CTL_ADD as libc::Ioctl, &raw mut device) };
    assert_eq!(added, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn mode_and_owner_decide_who_may_open_a_device() {
    if cannot_mount() {
        return;
    }
    let user = USER.to_string();
    let owner = format!("{USER}:7");
    for (arguments, at_start, added) in [
        (&[][..], 0, libc::EACCES),
        (&["--mode", "0600"], libc::EACCES, libc::EACCES),
        (&["--owner", &user], 0, 0),
        (&["--mode", "0600", "--owner", &owner], 0, 0),
        (&["--mode", "0660", "--owner", "root:7"], libc::EACCES, libc::EACCES),
    ] {
        let daemon = Daemon::start_with(arguments);
        add_device(&daemon, "added");
        let added_path = daemon.mount().join("added");
        assert_eq!(open_as_user(&daemon.binder()), at_start, "{arguments:?}");
        assert_eq!(open_as_user(&added_path), added, "{arguments:?}");
        let control = daemon.mount().join("binder-control");
        assert_eq!(open_as_user(&control), libc::EACCES, "{arguments:?}");
        if arguments.contains(&owner.as_str()) {
            let metadata = std::fs::metadata(&added_path).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (USER.0, 7));
        }
    }
}

#[test]
fn a_mode_or_an_owner_that_does_not_exist_is_refused() {
    for (option, value, expected) in
        [("--mode", "rw", "such as 0660"), ("--owner", "no such", "no such user; create it")]
    {
        let dir = TempDir::new().unwrap();
        let output = Daemon::command(dir.path(), &[option, value]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(expected), "{error}");
        assert!(error.contains(option), "{error}");
    }
}
