//! Files of binderfs besides its devices: owners, names, options, features, logs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use binder_client::{Client, Errno, Options, Session, binderfs};
use e2e::{Bus, BusError, Mapping};

use crate::support::{expect_echo, manager, open, peer};

crate::both_mappings! {
    a_device_can_be_assigned_to_a_user
    a_renamed_device_is_the_same_under_another_name
    features_are_those_that_work
    without_stats_there_are_no_logs
}

/// A uid without an account.
const USER: u32 = 61_235;

/// Runs a test on a bus with more arguments.
fn with(arguments: &[&str], test: impl FnOnce(&Bus)) {
    let started = Bus::start_with(Mapping::Auto, |command| {
        command.args(arguments);
    });
    let mut bus = match started {
        Ok(bus) => bus,
        Err(BusError::Unavailable(reason)) => {
            test_support::skip(reason);
            return;
        }
        Err(BusError::Broken(fault)) => panic!("{fault}"),
    };
    bus.limit_time(crate::LONGEST_TEST);
    test(&bus);
    bus.wait_until_empty().unwrap();
    bus.stop().unwrap();
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}

fn a_device_can_be_assigned_to_a_user(bus: &Bus) {
    let path = bus.device("hwbinder");
    let opens = || {
        let mut command = Command::new("sh");
        command.args(["-c", ": <>\"$0\""]).arg(&path).uid(USER).gid(USER);
        command.output().unwrap().status.success()
    };
    assert!(opens(), "the devices of the start are open to all users");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(!opens(), "now they are root's");
    assert!(open(bus).version().is_ok(), "the others are as they were");
    chown(&path, Some(USER), Some(7)).unwrap();
    assert!(opens(), "now they are this user's");
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode()), (USER, 7, 0o100_600));
    let size = fs::File::options().write(true).open(&path).unwrap().set_len(1).unwrap_err();
    assert_eq!(Errno::from_io_error(&size), Some(Errno::INVAL));
}

fn a_renamed_device_is_the_same_under_another_name(bus: &Bus) {
    let _manager = manager(bus);
    let client = open(bus);
    fs::rename(bus.device("binder"), bus.device("renamed")).unwrap();
    let error = fs::metadata(bus.device("binder")).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOENT));
    expect_echo(&mut Session::new(&client), 0, b"who has it open notices nothing");
    let later = Client::open(bus.device("renamed"), &Options::default()).unwrap();
    expect_echo(&mut Session::new(&later), 0, b"its manager is still there");
    fs::rename(bus.device("renamed"), bus.device("vndbinder")).unwrap();
    let there: Vec<_> = bus.ls().unwrap().iter().map(|device| device.name.clone()).collect();
    assert!(!there.contains(&"vndbinder".to_owned()), "what had the name is gone: {there:?}");
    let latest = Client::open(bus.device("vndbinder"), &Options::default()).unwrap();
    expect_echo(&mut Session::new(&latest), 0, b"third name");
    for (old, new) in [("binder-control", "x"), ("vndbinder", "binder-control"), ("features", "y")]
    {
        let error = fs::rename(bus.device(old), bus.device(new)).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::PERM), "{old} to {new}");
    }
}

fn features_are_those_that_work(bus: &Bus) {
    let features = names(&bus.device("features"));
    let expected = ["extended_error", "freeze_notification", "oneway_spam_detection"];
    assert!(features.iter().eq(expected), "{features:?}");
    for feature in features {
        assert_eq!(fs::read(bus.device("features").join(feature)).unwrap(), b"1\n");
    }
}

fn without_stats_there_are_no_logs(bus: &Bus) {
    assert!(!bus.device("binder_logs").exists());
    let error = binderfs::add_device(&bus.device("binder-control"), b"binder").unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EXIST));
    binderfs::add_device(&bus.device("binder-control"), b"binder_logs").unwrap();
}

#[test]
fn no_more_devices_than_max_can_be_added() {
    with(&["--devices", "binder", "--max", "2"], |bus| {
        let control = bus.device("binder-control");
        binderfs::add_device(&control, b"second").unwrap();
        let refused = || binderfs::add_device(&control, b"third").unwrap_err().errno();
        assert_eq!(refused(), Some(Errno::NOSPC));
        fs::remove_file(bus.device("second")).unwrap();
        binderfs::add_device(&control, b"third").unwrap();
        assert_eq!(refused(), Some(Errno::EXIST));
    });
}

#[test]
fn more_devices_than_max_cannot_be_started_with() {
    let bus = Bus::start_with(Mapping::Auto, |command| {
        command.args(["--max", "2"]);
    });
    match bus {
        Err(BusError::Broken(why)) => {
            assert!(why.contains("device name \"vndbinder\": too many devices"), "{why}");
        }
        Err(BusError::Unavailable(reason)) => test_support::skip(reason),
        Ok(_) => panic!("three devices where two are allowed"),
    }
}

#[test]
fn the_logs_list_processes_and_transactions() {
    with(&["--stats", "global"], |bus| {
        let logs = bus.device("binder_logs");
        let read = |name: &str| fs::read_to_string(logs.join(name)).unwrap();
        let files =
            ["failed_transaction_log", "proc", "state", "stats", "transaction_log", "transactions"];
        assert!(names(&logs).iter().eq(files));
        assert_eq!(read("state"), "binder state:\n");
        assert_eq!(read("transactions"), "binder transactions:\n");
        assert_eq!(read("failed_transaction_log"), "");

        let manager = manager(bus);
        let client = open(bus);
        let mut session = Session::new(&client);
        expect_echo(&mut session, 0, b"12345678");
        assert!(session.call(4711, 1, binder_client::Payload::bytes(b"")).is_err());

        let (pid, us) = (manager.pid(), std::process::id());
        let lines = read("transaction_log");
        let call = format!("to {pid}:0 context binder node ");
        assert!(lines.contains(&call) && lines.contains(" size 8:0 ret 0/0 l=0"), "{lines}");
        let failed = read("failed_transaction_log");
        assert!(failed.contains(" handle 4711 size 0:0 ret 29201/-22 l=0\n"), "{failed}");
        assert_eq!(failed.lines().count(), 1);

        let state = read("state");
        let open_by = |pid: u32| format!("proc {pid}\ncontext binder\n");
        assert!(state.contains(&open_by(pid)) && state.contains(&open_by(us)), "{state}");
        assert!(
            names(&logs.join("proc"))
                .iter()
                .eq(BTreeSet::from([pid, us].map(|p| p.to_string())).iter())
        );
        let process = read(&format!("proc/{pid}"));
        assert!(process.starts_with(&format!("binder proc state:\n{}", open_by(pid))), "{process}");
        assert!(!process.contains(&open_by(us)));
        assert!(!logs.join("proc/1").exists());
        let stats = read("stats");
        assert!(stats.starts_with("binder stats:\nBC_TRANSACTION: 2\nBC_REPLY: 1\n"), "{stats}");
        assert!(stats.contains("proc: active 2 total 2\n"), "{stats}");
    });
}

#[test]
fn a_log_stays_as_it_was_when_it_was_opened() {
    use std::io::Read;
    with(&["--stats", "global"], |bus| {
        let mut log = fs::File::open(bus.device("binder_logs/state")).unwrap();
        let peer = peer(bus, &["manager", "1"]);
        let (mut byte, mut rest) = ([0], String::new());
        log.read_exact(&mut byte).unwrap();
        log.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "inder state:\n");
        drop(peer);
        assert!(
            fs::File::options().write(true).open(bus.device("binder_logs/state")).is_err() || {
                // Root can open a file that is not writable; the write itself is refused.
                fs::write(bus.device("binder_logs/state"), "x").is_err()
            }
        );
    });
}

#[test]
fn a_reader_that_never_closes_logs_is_refused_eventually() {
    with(&["--stats", "global"], |bus| {
        let path = bus.device("binder_logs/stats");
        let opens: Vec<_> = (0..100).map(|_| fs::File::open(&path)).collect();
        let refused = opens.iter().filter_map(|open| open.as_ref().err());
        let errors: BTreeSet<_> = refused.map(|error| error.raw_os_error()).collect();
        assert_eq!(errors, BTreeSet::from([Some(libc::ENFILE)]));
        assert!(open(bus).version().is_ok(), "devices are not concerned");
        drop(opens);
        let again = e2e::wait::until(e2e::wait::PATIENCE, || fs::read(&path).ok());
        assert!(again.is_some(), "closed ones count no more");
    });
}
