//! Upgrades of the daemon with clients attached.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use binder_client::{ClientError, Errno, Options, Parcel, Payload, Session};
use binder_uapi::Return;
use binder_uapi::command::BC_ENTER_LOOPER;
use control::Uid;
use control::binderd::{Reply, Request, Upgraded};
use e2e::attacker::Attacker;
use e2e::attacks::write_from;
use e2e::peer::Word;
use e2e::{Bus, BusError, FAILING_UPGRADE, Mapping, Peer, wait};
use rustix::process::Signal;

use crate::support::{
    CALL, bounded, expect_echo, find, manager, open, own_tid, peer, publish, silent_peer,
};

crate::both_mappings! {
    clients_continue_over_upgrades
    requests_that_wait_continue_after_an_upgrade
    a_file_in_transit_reaches_its_receiver_after_an_upgrade
    an_open_of_the_bus_in_transit_does_not_delay_an_upgrade
    a_file_whose_close_hangs_does_not_delay_an_upgrade
    a_program_that_does_not_verify_the_state_is_not_executed
}

const NOBODY: &str = "65534";
const COOKIE: u64 = 0xdead_c00c;
/// Number of processes that call all the time.
const CALLERS: u64 = 4;
/// Number of commands that take some hundred milliseconds, as their owner has used up its slices.
const LONG_IOCTL: usize = 2_400 * 256;

fn request(bus: &Bus, program: Option<PathBuf>) -> Reply {
    bus.request(Request::Upgrade { program }).unwrap()
}

/// Upgrades to the program that runs already; returns the pause.
fn upgrade(bus: &Bus) -> Duration {
    let before = bus.status().unwrap();
    match request(bus, None) {
        Reply::Upgraded(Upgraded { processes, pause_us, .. }) => {
            assert_eq!(processes, before.processes, "each open is taken over");
            Duration::from_micros(pause_us)
        }
        other => panic!("no upgrade: {other:?}\n{}", bus.log()),
    }
}

fn refusal(bus: &Bus, program: &Path) -> String {
    match request(bus, Some(program.to_owned())) {
        Reply::Error { message } => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn clients_continue_over_upgrades(bus: &Bus) {
    upgrade_repeatedly(bus, 20);
}

fn upgrade_a_thousand_times(mapping: Mapping) {
    let Some(bus) = available(Bus::start(mapping)) else { return };
    upgrade_repeatedly(&bus, 1000);
    bus.wait_until_empty().unwrap();
    bus.stop().unwrap();
}

#[test]
#[ignore = "takes minutes"]
fn clients_continue_over_a_thousand_upgrades_with_passthrough() {
    upgrade_a_thousand_times(Mapping::Passthrough);
}

#[test]
#[ignore = "takes minutes"]
fn clients_continue_over_a_thousand_upgrades_with_notify_store() {
    upgrade_a_thousand_times(Mapping::NotifyStore);
}

fn upgrade_repeatedly(bus: &Bus, count: usize) {
    let _manager = manager(bus);
    let _service = peer(bus, &["echo", "service"]);
    let callers = (0..CALLERS).map(|seed| {
        silent_peer(bus, &["caller", "service", &u64::MAX.to_string(), &seed.to_string()])
    });
    let callers: Vec<Peer> = callers.collect();
    // Each one has opened the device by now: the number of opens is compared below.
    callers.iter().for_each(expect_progress);
    let client = open(bus);
    let mut session = Session::new(&client);
    session.enter_looper().unwrap();
    let service = find(&mut session, "service");
    let mut pauses = Vec::new();
    for _ in 0..count {
        let mut mortal = peer(bus, &["echo", "mortal"]);
        let handle = find(&mut session, "mortal");
        session.request_death(handle, COOKIE);
        session.flush().unwrap();
        pauses.push(upgrade(bus));
        expect_echo(&mut session, service, &[7; 9000]);
        mortal.kill();
        assert_eq!(session.wait_notice().unwrap(), Return::DeadBinder(COOKIE));
        session.clear_death(handle, COOKIE);
        assert_eq!(session.wait_notice().unwrap(), Return::ClearDeathNotificationDone(COOKIE));
        session.release(handle);
        session.flush().unwrap();
    }
    callers.iter().for_each(expect_progress);
    pauses.sort_unstable();
    println!("pauses: median {:?}, maximum {:?}", pauses[count / 2], pauses[count - 1]);
}

/// A caller exits when a call fails, and prints a line for some calls that were answered.
fn expect_progress(caller: &Peer) {
    while let Word::Line(_) = caller.line_within(Duration::ZERO) {}
    assert!(caller.line().is_some(), "a call has failed");
}

fn requests_that_wait_continue_after_an_upgrade(bus: &Bus) {
    let _manager = manager(bus);
    let receiver = publish(bus, "receiver", &Options::default());
    let client = open(bus);
    let mut session = Session::new(&client);
    let handle = find(&mut session, "receiver");
    thread::scope(|scope| {
        let (tid_out, tid_in) = std::sync::mpsc::channel();
        let receiver = &receiver;
        let reader = scope.spawn(move || {
            tid_out.send(own_tid()).unwrap();
            let mut session = Session::new(receiver);
            session.enter_looper().unwrap();
            // Commands about the reference come first.
            let is_call = |received: &Return| matches!(received, Return::Transaction(_));
            std::iter::repeat_with(|| session.receive().unwrap()).find(is_call).map(drop)
        });
        assert!(wait::until_asleep(tid_in.recv().unwrap()), "the reader does not block");
        let freezing = freeze_for(bus, Duration::from_millis(1500));
        upgrade(bus);
        session.oneway(handle, CALL, Payload::bytes(b"wake up")).unwrap();
        assert_eq!(reader.join().unwrap(), Some(()), "the parked reader receives the call");
        assert_eq!(freezing().unwrap_err().errno(), Some(Errno::AGAIN), "it ends at its timeout");
    });
}

/// Begins to freeze a process that does not end its call; returns a function that waits for that.
fn freeze_for(bus: &Bus, timeout: Duration) -> impl FnOnce() -> Result<(), ClientError> {
    let service = peer(bus, &["busy", "busy"]);
    let caller = peer(bus, &["call", "busy"]);
    service.expect("called");
    let freezer = open(bus);
    let (tid_out, tid_in) = std::sync::mpsc::channel();
    let freezing = thread::spawn(move || {
        tid_out.send(own_tid()).unwrap();
        let result = freezer.freeze(service.pid(), timeout.as_millis() as u32);
        drop((service, caller));
        result
    });
    assert!(wait::until_asleep(tid_in.recv().unwrap()), "the freeze waits");
    || bounded("the freeze", || freezing.join().unwrap())
}

fn a_file_in_transit_reaches_its_receiver_after_an_upgrade(bus: &Bus) {
    let service = stopped_service(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let (mut read, write) = std::io::pipe().unwrap();
    session.oneway(0, CALL, Parcel::new().fd(write.as_fd()).payload()).unwrap();
    drop(write);
    upgrade(bus);
    service.signal(Signal::CONT);
    let seen = bounded("the file", move || {
        let mut seen = [0; 4];
        read.read_exact(&mut seen).map(|()| seen)
    });
    assert_eq!(&seen.unwrap(), b"seen");
}

/// A service of files that receives nothing until it is continued.
fn stopped_service(bus: &Bus) -> Peer {
    let service = peer(bus, &["files", NOBODY]);
    service.signal(Signal::STOP);
    let stopped = || (wait::state(service.pid()) == Some('T')).then_some(());
    wait::until(wait::PATIENCE, stopped).expect("the service stops");
    service
}

/// Whoever closes it waits for the daemon, which waits for the program that checks the state.
fn an_open_of_the_bus_in_transit_does_not_delay_an_upgrade(bus: &Bus) {
    let service = stopped_service(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let own_open = std::fs::File::open(bus.device("binder")).unwrap();
    session.oneway(0, CALL, Parcel::new().fd(own_open.as_fd()).payload()).unwrap();
    upgrade(bus);
    drop((own_open, service));
    expect_upgrade_soon(bus);
}

/// A program that had to close it would not verify the state in time.
fn a_file_whose_close_hangs_does_not_delay_an_upgrade(bus: &Bus) {
    let service = stopped_service(bus);
    let mut sender =
        Attacker::start(bus, stand_in(), "binder", Uid(61_300), &["hung-file-in-transit"]);
    upgrade(bus);
    upgrade(bus);
    sender.kill();
    drop(service);
    expect_upgrade_soon(bus);
}

/// Files that are being closed refuse one.
fn expect_upgrade_soon(bus: &Bus) {
    let closed = || matches!(request(bus, None), Reply::Upgraded(_)).then_some(());
    assert!(wait::until(wait::PATIENCE, closed).is_some(), "refused: {}", bus.log());
}

pub fn stand_in() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_peer"))
}

fn expect_service(bus: &Bus, service: &str) {
    let client = open(bus);
    let mut session = Session::new(&client);
    let handle = find(&mut session, service);
    expect_echo(&mut session, handle, b"still there");
}

fn a_program_that_does_not_verify_the_state_is_not_executed(bus: &Bus) {
    let _manager = manager(bus);
    let _service = peer(bus, &["echo", "service"]);
    let pid = bus.status().unwrap().pid;
    let message = thread::scope(|scope| {
        let (tid_out, tid_in) = std::sync::mpsc::channel();
        let client = open(bus);
        // The state, which is kept for tests of the format, has an ioctl that is not complete.
        let ioctl = scope.spawn(move || {
            tid_out.send(own_tid()).unwrap();
            write_from(&client, &BC_ENTER_LOOPER.to_ne_bytes().repeat(LONG_IOCTL)).1
        });
        assert!(wait::until_asleep(tid_in.recv().unwrap()), "the ioctl takes no time");
        let message = refusal(bus, stand_in());
        assert_eq!(ioctl.join().unwrap(), Ok(()));
        message
    });
    assert!(message.contains("it cannot continue with the state: this is not"), "{message}");
    assert!(message.ends_with("the running program continues"), "{message}");
    let message = refusal(bus, Path::new("/missing/program"));
    assert!(message.contains("/missing/program: cannot open it"), "{message}");
    expect_service(bus, "service");
    upgrade(bus);
    expect_service(bus, "service");
    assert_eq!(bus.status().unwrap().pid, pid);
}

/// Starts a bus whose daemon fails to be upgraded to [`stand_in`].
pub fn failing_bus(how: &str) -> Option<Bus> {
    available(Bus::start_with(Mapping::Auto, |command| _ = command.env(FAILING_UPGRADE, how)))
}

/// `None`: the test is skipped.
pub fn available(bus: Result<Bus, BusError>) -> Option<Bus> {
    match bus {
        Ok(bus) => Some(bus),
        Err(BusError::Unavailable(reason)) => {
            test_support::skip(reason);
            None
        }
        Err(BusError::Broken(fault)) => panic!("{fault}"),
    }
}

#[test]
fn a_check_that_takes_too_long_or_proves_nothing_ends_the_upgrade() {
    for (how, expected) in [
        ("check-hangs", "it did not verify the state within"),
        ("check-is-silent", "it did not verify the state (exit status: 0)"),
    ] {
        let Some(bus) = failing_bus(how) else { return };
        let message = refusal(&bus, stand_in());
        assert!(message.contains(expected), "{message}");
        assert!(bus.guardian().is_some());
        assert_eq!(open(&bus).version(), Ok(8));
        bus.stop().unwrap();
    }
}

/// The child of a process with this argument.
pub fn child_with(parent: u32, argument: &str) -> Option<u32> {
    // Each thread has its own.
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children = children.collect::<Vec<String>>().concat();
    let mut pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    pids.find(|pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    })
}
