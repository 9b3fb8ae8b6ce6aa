//! [`Bus`]: a bus in one line, for root and for anybody.
#![allow(missing_docs)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use binder_client::{Client, Echo, Options, Payload, Session};
use binder_fuse::{Builder, Bus, Error, MappingChoice, MappingKind};
use binder_uapi::ioctl::BINDER_VERSION;

/// Has this very program run [`as_another_user`]; its value is the program that serves.
const AS_SOMEBODY: &str = "HEADROOM_TEST_AS_SOMEBODY";
const DAEMON: &str = env!("CARGO_BIN_EXE_headroom-binderd");
/// A user that nobody else is.
const SOMEBODY: u32 = 61_236;

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

/// Opens a device and asks for the version of its protocol.
fn version(device: &Path) -> i32 {
    let device = File::options().read(true).write(true).open(device).unwrap();
    let mut version = 0_i32;
    // SAFETY: the ioctl writes one i32, which lives across the call.
    let result =
        unsafe { libc::ioctl(device.as_raw_fd(), BINDER_VERSION as libc::Ioctl, &raw mut version) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    version
}

/// Names the device of the process that is the context manager.
const DEVICE: &str = "HEADROOM_TEST_DEVICE";

/// A manager in a process of its own: nobody may call one of his own process.
#[test]
fn echo_as_manager() {
    let Some(device) = std::env::var_os(DEVICE) else { return };
    let client = Client::open(Path::new(&device), &Options::default()).unwrap();
    client.become_context_manager().unwrap();
    // Until the process is killed.
    Session::new(&client).serve(&mut Echo).unwrap();
}

/// Calls a manager: data, mappings and waiting work in both directions.
fn call_over(bus: &Bus) {
    let mut manager = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "echo_as_manager"])
        .env(DEVICE, bus.device("binder"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let client = Client::open(bus.device("binder"), &Options::default()).unwrap();
    let mut session = Session::new(&client);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let data = [7; 5000];
    let reply = loop {
        match session.call(0, 1, Payload::bytes(&data)) {
            Ok(reply) => break reply,
            // It is not there yet.
            Err(error) => assert!(std::time::Instant::now() < end, "{error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    let same = reply.data().unwrap() == data;
    session.free(reply);
    manager.kill().unwrap();
    manager.wait().unwrap();
    assert!(same, "the echo differs");
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
fn buses_are_what_they_are_asked_to_be_and_do_not_see_each_other() {
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
    let state = std::fs::read_to_string(one.device("binder_logs/state")).unwrap();
    assert_eq!(state, "binder state:\n");
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
fn what_cannot_be_served_is_an_error_and_leaves_nothing() {
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
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "made_and_left", "--nocapture"])
        .env("HEADROOM_TEST_LEAVE", &mount)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while is_mounted(&mount) {
        assert!(std::time::Instant::now() < end, "still mounted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn made_and_left() {
    let Some(mount) = std::env::var_os("HEADROOM_TEST_LEAVE") else { return };
    let bus = builder().mount(mount).start().unwrap();
    assert_eq!(version(&bus.device("binder")), 8);
    // SAFETY: a signal to ourselves.
    unsafe { libc::raise(libc::SIGKILL) };
}

#[test]
fn a_program_that_cannot_be_started_is_an_error_and_leaves_nothing() {
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

/// Runs copies of this program and of the daemon that everybody can run.
#[test]
fn somebody_without_any_privilege_has_a_bus_too() {
    if skipped() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return as_somebody(Path::new(DAEMON));
    }
    let folder = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    let (program, daemon) = (folder.path().join("test"), folder.path().join("daemon"));
    let ours = std::env::current_exe().unwrap();
    for (original, copy) in [(ours.as_path(), &program), (Path::new(DAEMON), &daemon)] {
        // By another process: a child that another test forks just now would have the copy open for
        // writing.
        assert!(Command::new("cp").arg(original).arg(copy).status().unwrap().success());
    }
    let output = Command::new(program)
        .args(["--exact", "as_another_user", "--nocapture", "--test-threads=1"])
        .env(AS_SOMEBODY, daemon)
        .current_dir("/")
        .uid(SOMEBODY)
        .gid(SOMEBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn as_another_user() {
    if let Some(daemon) = std::env::var_os(AS_SOMEBODY) {
        as_somebody(Path::new(&daemon));
    }
}

fn as_somebody(daemon: &Path) {
    let namespaces = Command::new("unshare").args(["--user", "--mount", "true"]).output();
    if !namespaces.is_ok_and(|output| output.status.success()) {
        test_support::skip("no user namespaces");
        return;
    }
    if skipped() {
        return;
    }
    let bus = Bus::builder().program(daemon).start().unwrap();
    assert_eq!(version(&bus.device("binder")), 8);
    assert_eq!(names(&bus), ["binder", "binder-control", "features", "hwbinder", "vndbinder"]);
    std::fs::remove_file(bus.device("vndbinder")).unwrap();
    call_over(&bus);
    let path = bus.path().to_owned();
    assert!(path.starts_with("/proc"), "{}", path.display());
    drop(bus);
    assert!(!path.exists());
}
