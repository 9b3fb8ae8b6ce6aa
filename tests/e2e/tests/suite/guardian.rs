//! The daemon is killed with SIGKILL: no process hangs, and nothing stays mounted.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use binder_client::{Parcel, Session};
use e2e::{Bus, BusError, Mapping, random::Random, wait};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{CALL, open, peer};

/// Number of opens of the bus in one transaction; the daemon has to close them all.
const OPENS: usize = 100;

fn for_each_mapping(rounds: u64, test: impl Fn(Bus, u64)) {
    for mapping in [Mapping::Passthrough, Mapping::NotifyStore] {
        for round in 0..rounds {
            match Bus::start(mapping) {
                Ok(mut bus) => {
                    bus.limit_time(Duration::from_secs(120));
                    test(bus, round);
                }
                Err(BusError::Unavailable(reason)) => return test_support::skip(reason),
                Err(BusError::Broken(fault)) => panic!("{fault}"),
            }
        }
    }
}

/// Sends opens of the daemon's own bus in a message, which has the last reference of each then.
fn send_own_opens(bus: &Bus, session: &mut Session<'_>) {
    let opens: Vec<File> =
        (0..OPENS).map(|_| File::open(bus.device("hwbinder")).unwrap()).collect();
    let parcel = opens.iter().fold(Parcel::new(), |parcel, open| parcel.fd(open.as_fd()));
    session.oneway(0, CALL, parcel.payload()).unwrap();
}

/// Closing one of its own opens sends a request to the daemon itself, which is being killed:
/// without its guardian it would never exit.
#[test]
fn a_daemon_killed_while_it_closes_its_own_opens_leaves_no_process_hanging() {
    let seed = Random::fresh_seed();
    println!("seed {seed}");
    for_each_mapping(5, |bus, round| {
        let mut random = Random::new(seed.wrapping_add(round));
        let mut deaf = peer(&bus, &["deaf"]);
        let mut reader = peer(&bus, &["read"]);
        reader.expect_asleep();
        let client = open(&bus);
        let mut session = Session::new(&client);
        send_own_opens(&bus, &mut session);
        // The transaction is dropped with its receiver, and the daemon has the last reference of
        // each open.
        deaf.kill();
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        bus.kill().unwrap();
        // Its read returned an errno, which it reports.
        let status = reader.wait();
        assert_eq!(status.code(), Some(1), "{status}");
    });
}

/// At its exit, the daemon closes opens of its own bus, which wait for a reply that only it could
/// send.
#[test]
fn a_daemon_that_is_stopped_with_its_own_opens_in_messages_leaves_no_process_hanging() {
    for_each_mapping(3, |bus, _| {
        let _deaf = peer(&bus, &["deaf"]);
        let mut reader = peer(&bus, &["read"]);
        reader.expect_asleep();
        let client = open(&bus);
        let mut session = Session::new(&client);
        send_own_opens(&bus, &mut session);
        bus.stop().unwrap();
        let status = reader.wait();
        assert_eq!(status.code(), Some(1), "{status}");
    });
}

#[test]
fn repeated_sigterm_does_not_end_the_guardian() {
    for_each_mapping(1, |bus, _| {
        let guardian = bus.guardian().and_then(|pid| Pid::from_raw(pid as i32)).unwrap();
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1].repeat(500) {
            kill_process(guardian, signal).unwrap();
        }
        let mut reader = peer(&bus, &["read"]);
        reader.expect_asleep();
        bus.kill().unwrap();
        reader.wait();
    });
}

#[test]
fn the_guardian_ends_with_the_daemon_and_has_little_memory() {
    for_each_mapping(1, |bus, _| {
        let guardian = bus.guardian().unwrap();
        let rollup = std::fs::read_to_string(format!("/proc/{guardian}/smaps_rollup")).unwrap();
        let of = |name: &str| -> u64 {
            let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let own = of("Private_Dirty:") + of("Private_Clean:");
        assert!(own < 1024, "{rollup}");
        bus.stop().unwrap();
        assert_eq!(wait::state(guardian), None, "it was reaped");
    });
}
