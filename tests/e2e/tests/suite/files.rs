//! File descriptors in transactions, given to clients that know nothing of how.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use binder_client::{Client, ClientError, Options, Parcel, Session};
use e2e::{Bus, random::Random, wait};
use rustix::process::Signal;

use crate::support::{CALL, bounded, open, peer};

crate::both_mappings! {
    a_file_reaches_a_receiver_of_another_user
    a_hundred_files_reach_a_receiver_at_once
    a_receiver_under_a_hail_of_signals_gets_its_files_and_its_signals
    a_receiver_with_a_debugger_gets_no_files_and_the_call_fails
    a_stopped_receiver_gets_its_files_when_it_goes_on
    receivers_killed_at_random_leave_no_file_behind
}

const NOBODY: &str = "65534";

/// Sends the write ends of some pipes, and checks that the service wrote into each; how many descriptors it has
/// left.
fn send_pipes(session: &mut Session<'_>, count: usize) -> Result<u32, ClientError> {
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
        // The end comes only when nobody has the file any more, neither the receiver nor the daemon.
        end.read_to_string(&mut text).unwrap();
        assert_eq!(text, "seen");
    }
    let left = u32::from_ne_bytes(reply.data()?.try_into().unwrap());
    session.free(reply);
    session.flush()?;
    Ok(left)
}

/// Descriptors of a process.
fn descriptors(pid: u32) -> usize {
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

fn a_receiver_under_a_hail_of_signals_gets_its_files_and_its_signals(bus: &Bus) {
    let service = peer(bus, &["files-interrupted", NOBODY]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let left = send_pipes(&mut session, 1).unwrap();
    for count in (1..=3).cycle().take(300) {
        assert_eq!(send_pipes(&mut session, count).unwrap(), left);
    }
    drop(service);
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
    for _ in 0..20 {
        assert_eq!(send_pipes(&mut session, 2), Err(ClientError::FailedReply));
    }
    // A traced thread lets go only while it is stopped.
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
    // Give the delivery time to be tried; whether it was must make no difference.
    std::thread::sleep(std::time::Duration::from_millis(50));
    service.signal(Signal::CONT);
    bounded("the call", || calling.join().unwrap()).unwrap();
}

fn receivers_killed_at_random_leave_no_file_behind(bus: &Bus) {
    let mut random = Random::new(7);
    let before = descriptors(bus.pid());
    let own = descriptors(std::process::id());
    let mut sent = 0;
    for round in 0..30 {
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
                Ok(_) => sent += 1,
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
    // The daemon keeps what its two helper threads need: a signal, and no more.
    let settled =
        wait::until(wait::PATIENCE, || (descriptors(bus.pid()) <= before + 1).then_some(()));
    assert!(settled.is_some(), "{} descriptors now, {before} before", descriptors(bus.pid()));
    // Other tests run beside this one, so this is no more than a hint of the worst.
    assert!(descriptors(std::process::id()) < own + 500);
}
