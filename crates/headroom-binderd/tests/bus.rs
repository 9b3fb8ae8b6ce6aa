//! [`Bus`]: a bus in one line of code, for root and for unprivileged users.
#![allow(missing_docs)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use binder_fuse::{Builder, Bus, Error, MappingChoice, MappingKind};
use binder_uapi::ioctl::BINDER_VERSION;

const DAEMON: &str = env!("CARGO_BIN_EXE_headroom-binderd");
/// How long a condition may take to hold.
const PATIENCE: Duration = Duration::from_secs(10);
/// A uid that no other process uses.
const USER: u32 = 61_236;

fn builder() -> Builder {
    Bus::builder().program(DAEMON)
}

fn skipped() -> bool {
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &fuse {
        test_support::skip(format_args!("/dev/fuse: {error}"));
    }
    fuse.is_err()
}

/// Opens a device and returns its protocol version.
fn version(device: &Path) -> i32 {
    let device = File::options().read(true).write(true).open(device).unwrap();
    let mut version = 0_i32;
    // SAFETY: the ioctl writes one i32, which lives across the call.
    let result =
        unsafe { libc::ioctl(device.as_raw_fd(), BINDER_VERSION as libc::Ioctl, &raw mut version) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    version
}

fn bus_client() -> PathBuf {
    test_support::programs::built("e2e", "bus_client")
}

/// Calls a manager: data, mappings and pending work in both directions.
fn call_over(bus: &Bus) {
    let mut call = Command::new(bus_client());
    call.arg("call-echo").arg(bus.device("binder")).stdout(Stdio::null());
    assert!(call.status().unwrap().success());
}

fn names(bus: &Bus) -> Vec<String> {
    let entries = std::fs::read_dir(bus.path()).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

#[test]
fn a_bus_is_there_until_its_guard_is_dropped() {
    if skipped() {
        return;
    }
    let bus = builder().start().unwrap();
    assert_eq!(version(&bus.device("binder")), 8);
    assert_eq!(names(&bus), ["binder", "binder-control", "features", "hwbinder", "vndbinder"]);
    call_over(&bus);
    let path = bus.path().to_owned();
    drop(bus);
    assert!(!path.exists(), "{}", path.display());
    assert!(!is_mounted(&path));
}

#[test]
fn buses_have_the_requested_options_and_are_separate() {
    if skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let one = builder()
        .mount(folder.path().join("one"))
        .devices(["first", "second"])
        .mapping(MappingChoice::Only(MappingKind::NotifyStore))
        .logs();
    let (one, two) = (one.start().unwrap(), builder().devices(["other"]).start().unwrap());
    assert_eq!(names(&one), ["binder-control", "binder_logs", "features", "first", "second"]);
    assert_eq!(names(&two), ["binder-control", "features", "other"]);
    drop(two);
    assert_eq!(version(&one.device("second")), 8);
    // The kernel reports the close of a device after `close` has returned.
    let state = || std::fs::read_to_string(one.device("binder_logs/state")).unwrap();
    let started = Instant::now();
    while state() != "binder state:\n" && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(state(), "binder state:\n");
}

#[test]
fn a_folder_that_was_there_stays() {
    if skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bus = builder().mount(folder.path()).start().unwrap();
    assert_eq!(version(&bus.device("binder")), 8);
    drop(bus);
    assert!(folder.path().is_dir() && !is_mounted(folder.path()));
}

#[test]
fn a_failed_start_is_an_error_and_leaves_nothing() {
    if skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("bus");
    let error = builder().mount(&mount).devices(["one", "two"]).max_devices(1).start();
    let error = error.expect_err("more devices than there may be");
    assert!(matches!(&error, Error::Server(_)), "{error:?}");
    assert!(error.to_string().contains("device name \"two\": too many devices"), "{error}");
    assert!(!mount.exists());
}

#[test]
fn a_bus_ends_with_the_process_that_made_it_however_that_ends() {
    if skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("bus");
    let mut leave = Command::new(bus_client());
    leave.args(["leave-bus", DAEMON]).arg(&mount).stdout(Stdio::null());
    let status = leave.status().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while is_mounted(&mount) {
        assert!(std::time::Instant::now() < end, "still mounted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn an_unstartable_program_is_an_error_and_leaves_nothing() {
    if skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("bus");
    let error = Bus::builder().program("/no/such/program").mount(&mount).start();
    let error = error.expect_err("there is no such program");
    assert!(error.to_string().contains("Bus::serve_if_started first in main"), "{error}");
    assert!(!mount.exists());
}

/// As root, runs copies that every user can execute.
#[test]
fn an_unprivileged_user_has_a_bus_too() {
    let namespaces = Command::new("unshare").args(["--user", "--mount", "true"]).output();
    if !namespaces.is_ok_and(|output| output.status.success()) {
        test_support::skip("no user namespaces");
        return;
    }
    if skipped() {
        return;
    }
    let folder = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    let (client, daemon) = (folder.path().join("client"), folder.path().join("daemon"));
    for (original, copy) in [(bus_client().as_path(), &client), (Path::new(DAEMON), &daemon)] {
        // Copied by another process: a child that another test forks concurrently would have the
        // copy open for writing.
        assert!(Command::new("cp").arg(original).arg(copy).status().unwrap().success());
    }
    let mut command = Command::new(client);
    command.arg("own-bus").arg(daemon).current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(USER).gid(USER);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let path = text.lines().last().unwrap_or_default();
    assert!(output.status.success() && path.starts_with("/proc"), "{text}");
}
