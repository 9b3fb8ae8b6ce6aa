//! File descriptors in transactions, to clients that take no part in their installation.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use binder_client::{Client, ClientError, Options, Parcel, Session};
use control::binderd::TraceFilter;
use e2e::{Bus, BusError, Mapping, Peer, random::Random, wait};
use rustix::process::Signal;

use crate::support::{CALL, bounded, open, peer};
use crate::trace::read_all;

crate::both_mappings! {
    a_file_reaches_a_receiver_of_another_user
    a_hundred_files_reach_a_receiver_at_once
    a_receiver_keeps_its_cpu_affinity_after_fd_delivery
    a_receiver_under_many_signals_gets_its_files_and_its_signals
    a_receiver_keeps_its_signal_dispositions
    a_receiver_whose_filter_forbids_sockets_gets_its_files_and_lives
    a_receiver_with_a_debugger_gets_no_files_and_the_call_fails
    a_receiver_whose_table_is_full_gets_none_of_the_files_and_the_call_fails
    a_stopped_receiver_gets_its_files_when_it_goes_on
    a_receiver_frozen_repeatedly_does_not_delay_others
    a_receiver_whose_memory_does_not_answer_does_not_delay_others
    files_never_received_are_limited_to_one_users_share
    receivers_killed_at_random_leave_no_file_behind
}

crate::under_filters! {
    a_file_reaches_a_receiver_of_another_user
    a_hundred_files_reach_a_receiver_at_once
    a_receiver_under_many_signals_gets_its_files_and_its_signals
    a_receiver_with_a_debugger_gets_files_under_a_filter
    a_receiver_whose_table_is_full_gets_none_of_the_files_and_the_call_fails
    a_stopped_receiver_gets_its_files_when_it_goes_on
    a_receiver_frozen_repeatedly_does_not_delay_others
    a_receiver_whose_memory_does_not_answer_does_not_delay_others
    files_never_received_are_limited_to_one_users_share
    receivers_killed_at_random_leave_no_file_behind
}

pub(crate) const NOBODY: &str = "65534";

/// Sends the write ends of some pipes, and checks that the service wrote into each; returns the
/// number of descriptors that it has left.
pub(crate) fn send_pipes(session: &mut Session<'_>, count: usize) -> Result<u32, ClientError> {
    let mut parcel = Parcel::new();
    let mut ends = Vec::new();
    let mut pipes = Vec::new();
    for _ in 0..count {
        let (read, write) = std::io::pipe().unwrap();
        parcel = parcel.fd(write.as_fd());
        ends.push(read);
        pipes.push(write);
    }
    let reply = session.call(0, CALL, parcel.payload())?;
    drop(pipes);
    for mut end in ends {
        let mut text = String::new();
        // End of file arrives only when neither the receiver nor the daemon has the file open any
        // more.
        end.read_to_string(&mut text).unwrap();
        assert_eq!(text, "seen");
    }
    let left = u32::from_ne_bytes(reply.data()?.try_into().unwrap());
    session.free(reply);
    session.flush()?;
    Ok(left)
}

/// Starts a process on another device, and waits until it is ready.
fn on_hwbinder(bus: &Bus, arguments: &[&str]) -> Peer {
    let program = Path::new(env!("CARGO_BIN_EXE_peer"));
    let peer = Peer::start_on(bus, program, "hwbinder", arguments);
    peer.expect("ready");
    peer
}

/// Number of descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).unwrap().count()
}

fn a_file_reaches_a_receiver_of_another_user(bus: &Bus) {
    let _service = peer(bus, &["files", NOBODY]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let left = send_pipes(&mut session, 1).unwrap();
    for _ in 0..200 {
        assert_eq!(send_pipes(&mut session, 1).unwrap(), left, "the receiver's table grows");
    }
}

fn a_hundred_files_reach_a_receiver_at_once(bus: &Bus) {
    let _service = peer(bus, &["files", NOBODY]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let left = send_pipes(&mut session, 1).unwrap();
    for count in [2, 3, 30, 100, 300] {
        let seen = send_pipes(&mut session, count).unwrap();
        assert_eq!(seen, left, "{count} files at once");
    }
}

fn a_receiver_keeps_its_cpu_affinity_after_fd_delivery(bus: &Bus) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let service = peer(bus, &["files", NOBODY]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let pid = rustix::process::Pid::from_raw(service.pid() as i32);
    let everywhere = sched_getaffinity(pid).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| everywhere.is_set(cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    for usual in [everywhere, one] {
        sched_setaffinity(pid, &usual).unwrap();
        for count in 1..=20 {
            send_pipes(&mut session, count).unwrap();
            assert!(sched_getaffinity(pid).unwrap() == usual, "after {count} files");
        }
    }
}

fn a_receiver_under_many_signals_gets_its_files_and_its_signals(bus: &Bus) {
    let service = peer(bus, &["files-interrupted", NOBODY]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let left = send_pipes(&mut session, 1).unwrap();
    for count in (1..=3).cycle().take(300) {
        assert_eq!(send_pipes(&mut session, count).unwrap(), left);
    }
    drop(service);
}

fn a_receiver_keeps_its_signal_dispositions(bus: &Bus) {
    for role in ["files", "files-ignoring-sigtrap"] {
        let service = peer(bus, &[role, NOBODY]);
        let client = open(bus);
        let mut session = Session::new(&client);
        let signals = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid()));
            let names = ["SigBlk:", "SigIgn:", "SigCgt:"];
            let signals = |line: &&str| names.iter().any(|name| line.starts_with(name));
            status.unwrap().lines().filter(signals).collect::<Vec<_>>().join("\n")
        };
        let before = signals();
        for count in [1, 2, 5] {
            send_pipes(&mut session, count).unwrap();
        }
        assert_eq!(signals(), before, "{role}");
    }
}

fn a_receiver_whose_filter_forbids_sockets_gets_its_files_and_lives(bus: &Bus) {
    let _service = peer(bus, &["files-sandboxed", NOBODY]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let left = send_pipes(&mut session, 1).unwrap();
    for count in [1, 2, 30, 300] {
        assert_eq!(send_pipes(&mut session, count).unwrap(), left, "{count} files");
    }
}

fn a_receiver_with_a_debugger_gets_no_files_and_the_call_fails(bus: &Bus) {
    let service = peer(bus, &["files", "0"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let left = send_pipes(&mut session, 1).unwrap();
    let pid = service.pid() as libc::pid_t;
    let before = descriptors(bus.pid());
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) }, 0, "cannot debug it");
    let (none, _) = read_all(bus, 0, &TraceFilter::default());
    for _ in 0..20 {
        assert_eq!(send_pipes(&mut session, 2), Err(ClientError::FailedReply));
    }
    let seen = wait::until(wait::PATIENCE, || {
        let (calls, _) = read_all(bus, 0, &TraceFilter::default());
        (calls.len() >= 20).then_some(calls)
    });
    let calls = seen.expect("twenty calls");
    let reasons = calls.iter().filter(|call| call.refusal.contains("Operation not permitted"));
    assert_eq!((none.len(), reasons.count()), (0, 20), "{calls:#?}");
    // A traced thread can be detached only while it is stopped.
    // SAFETY: plain numbers, and a null status.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0), 0);
        assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL), pid);
        assert_eq!(libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0), 0);
    }
    assert_eq!(send_pipes(&mut session, 1).unwrap(), left);
    let same = wait::until(wait::PATIENCE, || (descriptors(bus.pid()) <= before).then_some(()));
    assert!(
        same.is_some(),
        "the daemon keeps files: {} now, {before} before",
        descriptors(bus.pid())
    );
}

fn a_receiver_with_a_debugger_gets_files_under_a_filter(bus: &Bus) {
    let service = peer(bus, &["files", "0"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let left = send_pipes(&mut session, 1).unwrap();
    let pid = service.pid() as libc::pid_t;
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) }, 0, "cannot debug it");
    for count in 1..=20 {
        assert_eq!(send_pipes(&mut session, count).unwrap(), left);
    }
}

fn a_receiver_whose_table_is_full_gets_none_of_the_files_and_the_call_fails(bus: &Bus) {
    let _service = peer(bus, &["files-few", NOBODY]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let left = send_pipes(&mut session, 1).unwrap();
    let before = descriptors(bus.pid());
    for _ in 0..10 {
        assert_eq!(send_pipes(&mut session, 20), Err(ClientError::FailedReply));
        assert_eq!(send_pipes(&mut session, 2).unwrap(), left, "some of them stayed");
    }
    let same = wait::until(wait::PATIENCE, || (descriptors(bus.pid()) <= before + 1).then_some(()));
    assert!(same.is_some(), "{} descriptors now, {before} before", descriptors(bus.pid()));
}

fn a_stopped_receiver_gets_its_files_when_it_goes_on(bus: &Bus) {
    let service = peer(bus, &["files", "0"]);
    service.expect_asleep();
    service.signal(Signal::STOP);
    let path = bus.device("binder");
    let calling = std::thread::spawn(move || {
        let client = Client::open(path, &Options::default()).unwrap();
        send_pipes(&mut Session::new(&client), 1).map(drop)
    });
    let stopped =
        wait::until(wait::PATIENCE, || wait::describe(service.pid()).contains('T').then_some(()));
    assert!(stopped.is_some(), "{}", wait::describe(service.pid()));
    // Gives the daemon time to attempt the delivery; whether it did must make no difference.
    std::thread::sleep(std::time::Duration::from_millis(50));
    service.signal(Signal::CONT);
    bounded("the call", || calling.join().unwrap()).unwrap();
}

/// A freezer for a process; thawed and removed on drop.
struct Freezer(std::path::PathBuf);

impl Freezer {
    /// A freezer of cgroup v1 or v2; `None` if there is neither.
    fn new(pid: u32) -> Option<Self> {
        let name = format!("headroom-e2e-{pid}");
        let folders = ["/sys/fs/cgroup/freezer", "/sys/fs/cgroup"].map(Path::new);
        let folder = folders.iter().map(|folder| folder.join(&name)).find(|folder| {
            std::fs::create_dir(folder).is_ok() && folder.join("cgroup.procs").exists()
        })?;
        let freezer = Self(folder);
        std::fs::write(freezer.0.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(freezer)
    }

    fn freeze(&self) -> bool {
        self.set("FROZEN", "1")
    }

    fn thaw(&self) -> bool {
        self.set("THAWED", "0")
    }

    /// The state as cgroup v1 and v2 spell it.
    fn set(&self, v1: &str, v2: &str) -> bool {
        std::fs::write(self.0.join("freezer.state"), v1).is_ok()
            || std::fs::write(self.0.join("cgroup.freeze"), v2).is_ok()
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        let up = self.0.with_file_name("cgroup.procs");
        for pid in std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines()
        {
            let _ = std::fs::write(&up, pid);
        }
        // Only possible once all killed members have left it.
        let _ = wait::until(wait::PATIENCE, || std::fs::remove_dir(&self.0).ok());
    }
}

fn a_receiver_frozen_repeatedly_does_not_delay_others(bus: &Bus) {
    let device = bus.device("hwbinder");
    let frozen = on_hwbinder(bus, &["files", "0"]);
    let Some(freezer) = Freezer::new(frozen.pid()).filter(|freezer| freezer.freeze()) else {
        return test_support::skip("no control group with a freezer");
    };
    let done = Arc::new(AtomicBool::new(false));
    let calling = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let client = Client::open(device, &Options::default()).unwrap();
            let mut session = Session::new(&client);
            while !done.load(Ordering::Relaxed) {
                match send_pipes(&mut session, 1) {
                    // FailedReply: it was frozen while its file was installed.
                    Ok(_) | Err(ClientError::FailedReply) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            // Thawed, it serves as before.
            send_pipes(&mut session, 1).unwrap();
        }
    });
    let _service = peer(bus, &["files", "0"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    for round in 0..60 {
        if round % 2 == 0 {
            freezer.freeze();
        } else {
            freezer.thaw();
        }
        send_pipes(&mut session, 1).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(round * 97 % 5000));
    }
    freezer.thaw();
    done.store(true, Ordering::Relaxed);
    bounded("the caller of the frozen", || calling.join().unwrap());
    drop(frozen);
}

fn a_receiver_whose_memory_does_not_answer_does_not_delay_others(bus: &Bus) {
    let device = bus.device("hwbinder");
    let silent = ["silent-receivers", "1"];
    let mut silent = on_hwbinder(bus, &silent);
    let file = std::fs::File::open("/dev/null").unwrap();
    let client = Client::open(&device, &Options::default()).unwrap();
    let mut session = Session::new(&client);
    session.oneway(0, CALL, Parcel::new().fd(file.as_fd()).payload()).unwrap();
    let _service = peer(bus, &["files", NOBODY]);
    let device = bus.device("binder");
    bounded("the others", move || {
        let client = Client::open(device, &Options::default()).unwrap();
        let mut session = Session::new(&client);
        for _ in 0..20 {
            send_pipes(&mut session, 3).unwrap();
        }
    });
    silent.kill();
}

fn files_never_received_are_limited_to_one_users_share(bus: &Bus) {
    let device = bus.device("hwbinder");
    let mut deaf = on_hwbinder(bus, &["deaf"]);
    let before = descriptors(bus.pid());
    let client = Client::open(&device, &Options::default()).unwrap();
    let mut session = Session::new(&client);
    let file = std::fs::File::open("/dev/null").unwrap();
    let parcel = (0..500).fold(Parcel::new(), |parcel, _| parcel.fd(file.as_fd()));
    let mut sent = 0;
    let error = loop {
        match session.oneway(0, CALL, parcel.payload()) {
            Ok(_) => sent += 500,
            Err(error) => break error,
        }
    };
    assert_eq!(error, ClientError::FailedReply);
    assert_eq!(client.extended_error().unwrap().param, -libc::ENOMEM);
    assert_eq!(sent, 4000, "4096 is one user's share");
    // Another open of the same user shares the quota with this one.
    let _service = peer(bus, &["files", NOBODY]);
    let other = open(bus);
    let mut other = Session::new(&other);
    let refused = send_pipes(&mut other, 100);
    assert_eq!(refused, Err(ClientError::FailedReply));
    deaf.kill();
    // Each open since then has a mapping, and each opener a pidfd; none of the 4,000 files is left.
    let given_back =
        wait::until(wait::PATIENCE, || (descriptors(bus.pid()) <= before + 5).then_some(()));
    assert!(given_back.is_some(), "{} now, {before} before", descriptors(bus.pid()));
    send_pipes(&mut other, 100).unwrap();
}

fn receivers_killed_at_random_leave_no_file_behind(bus: &Bus) {
    kill_receivers_at_random(bus, |round, _| round < 30);
}

/// Ten thousand files; minutes.
#[test]
#[ignore = "takes minutes: the long form of receivers_killed_at_random_leave_no_file_behind"]
fn ten_thousand_files_and_receivers_killed_at_random_leave_no_file_behind() {
    crate::on_bus(Mapping::Passthrough, |bus| {
        kill_receivers_at_random(bus, |_, sent| sent < 10_000);
    });
}

/// As above, under seccomp filters.
#[test]
#[ignore = "takes minutes: the long form of receivers_killed_at_random_leave_no_file_behind"]
fn ten_thousand_files_under_filters_and_receivers_killed_at_random_leave_no_file_behind() {
    crate::on_bus_with_filters(|bus| kill_receivers_at_random(bus, |_, sent| sent < 10_000));
}

fn kill_receivers_at_random(bus: &Bus, goes_on: fn(usize, usize) -> bool) {
    let mut random = Random::new(7);
    let before = descriptors(bus.pid());
    let own = descriptors(std::process::id());
    let (mut sent, mut round) = (0, 0);
    while goes_on(round, sent) {
        round += 1;
        let mut service = peer(bus, &["files", NOBODY]);
        let client = open(bus);
        let kill_after = random.below(20_000);
        let killing = std::thread::spawn(move || {
            let begun = Instant::now();
            while begun.elapsed().as_micros() < u128::from(kill_after) {
                std::hint::spin_loop();
            }
            service.kill();
        });
        let mut session = Session::new(&client);
        let end = loop {
            match send_pipes(&mut session, 1 + sent % 3) {
                Ok(_) => sent += 1 + sent % 3,
                Err(error) => break error,
            }
        };
        let expected = matches!(end, ClientError::DeadReply | ClientError::FailedReply);
        assert!(expected, "round {round}: {end}");
        killing.join().unwrap();
        drop(session);
        drop(client);
        bus.wait_until_empty().unwrap();
    }
    assert!(sent > 0, "nothing was ever sent");
    // The daemon keeps one descriptor for signalling its two helper threads, and no more.
    let settled =
        wait::until(wait::PATIENCE, || (descriptors(bus.pid()) <= before + 1).then_some(()));
    assert!(settled.is_some(), "{} descriptors now, {before} before", descriptors(bus.pid()));
    // Other tests run at the same time, so this detects only a gross leak.
    let us = std::process::id();
    let settled = wait::until(wait::PATIENCE, || (descriptors(us) < own + 500).then_some(()));
    assert!(settled.is_some(), "{} descriptors here now, {own} before", descriptors(us));
}

/// An open of the bus itself is in transit when the daemon exits; closing it would send a request
/// to the daemon.
#[test]
fn a_daemon_ends_though_it_holds_an_open_of_its_own() {
    for mapping in [Mapping::Passthrough, Mapping::NotifyStore] {
        let mut bus = match Bus::start(mapping) {
            Ok(bus) => bus,
            Err(BusError::Unavailable(reason)) => return test_support::skip(reason),
            Err(BusError::Broken(fault)) => panic!("{fault}"),
        };
        bus.limit_time(std::time::Duration::from_secs(120));
        let _deaf = peer(&bus, &["deaf"]);
        let client = open(&bus);
        let mut session = Session::new(&client);
        let another = std::fs::File::open(bus.device("hwbinder")).unwrap();
        for _ in 0..3 {
            let parcel = Parcel::new().fd(another.as_fd());
            session.oneway(0, CALL, parcel.payload()).unwrap();
        }
        drop(another);
        bus.stop().unwrap();
    }
}
