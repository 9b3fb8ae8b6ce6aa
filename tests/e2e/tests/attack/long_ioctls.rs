//! Ioctls with the maximum number of commands.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use binder_client::{Client, Errno, Options};
use binder_uapi::command::BC_ENTER_LOOPER;
use control::binderd::{Reply, Request};
use e2e::attacker::ATTACKER;
use e2e::attacks::write_from;
use e2e::{Bus, Mapping, wait};

use crate::innocent::{Innocent, attacker};

crate::attacks! {
    threads_with_long_ioctls_do_not_delay_others
    others_are_served_while_a_long_ioctl_runs
    a_signal_ends_a_long_ioctl
    long_ioctls_neither_prevent_an_upgrade_nor_end_with_it
}

const COMMANDS_OF_A_SLICE: u64 = 256;
/// Further slices of an owner: at once, and per second.
const BURST: u64 = 2_048;
const PER_SECOND: u64 = 1_000;

/// More commands than an owner may have executed in a second.
fn many_commands() -> Vec<u8> {
    BC_ENTER_LOOPER.to_ne_bytes().repeat(((BURST + 2 * PER_SECOND) * COMMANDS_OF_A_SLICE) as usize)
}

fn threads_with_long_ioctls_do_not_delay_others(bus: &Bus) {
    let innocent = Innocent::new(bus);
    let mut attack = attacker(bus, "binder", ATTACKER, &["long-ioctls", "16"]);
    innocent.makes_calls(300);
    innocent.newcomer_makes_calls(bus);
    attack.kill();
    innocent.makes_calls(10);
}

fn others_are_served_while_a_long_ioctl_runs(bus: &Bus) {
    let innocent = Innocent::new(bus);
    let client = Client::open(bus.device("binder"), &Options::default()).unwrap();
    let commands = many_commands();
    let made = thread::scope(|scope| {
        let ioctl = scope.spawn(|| write_from(&client, &commands));
        let mut made = 0;
        while !ioctl.is_finished() {
            innocent.makes_calls(1);
            made += 1;
        }
        let (bwr, result) = ioctl.join().unwrap();
        assert_eq!((bwr.write_consumed, result), (commands.len() as u64, Ok(())));
        made
    });
    // Executed without interruption it would delay the first call until its end.
    assert!(made >= 5, "{made} calls during an ioctl of {} commands", commands.len() / 4);
}

fn a_signal_ends_a_long_ioctl(bus: &Bus) {
    static TID: AtomicU32 = AtomicU32::new(0);
    let client = Client::open(bus.device("binder"), &Options::default()).unwrap();
    let commands = many_commands();
    let (bwr, result) = thread::scope(|scope| {
        TID.store(0, Ordering::Release);
        let ioctl = scope.spawn(|| {
            TID.store(e2e::attacks::own_tid(), Ordering::Release);
            write_from(&client, &commands)
        });
        let tid = || Some(TID.load(Ordering::Acquire)).filter(|tid| *tid != 0);
        let tid = wait::until(wait::PATIENCE, tid).unwrap();
        // A signal that arrives before the ioctl has begun interrupts nothing.
        while !ioctl.is_finished() {
            e2e::attacks::interrupt_thread(tid);
            thread::sleep(std::time::Duration::from_millis(1));
        }
        ioctl.join().unwrap()
    });
    assert_eq!(result, Err(Errno::INTR));
    assert!(bwr.write_consumed < commands.len() as u64, "{bwr:?}");
    assert_eq!(bwr.write_consumed % 4, 0);
}

fn long_ioctls_neither_prevent_an_upgrade_nor_end_with_it(bus: &Bus) {
    let innocent = Innocent::new(bus);
    // Their owner has used up its slices after some milliseconds, so most of them are delayed.
    let mut attack = attacker(bus, "binder", ATTACKER, &["long-ioctls", "8"]);
    let client = Client::open(bus.device("binder"), &Options::default()).unwrap();
    let commands = many_commands();
    let (bwr, result) = thread::scope(|scope| {
        let (tid_out, tid_in) = mpsc::channel();
        let (client, commands) = (&client, &commands);
        let ioctl = scope.spawn(move || {
            tid_out.send(e2e::attacks::own_tid()).unwrap();
            write_from(client, commands)
        });
        assert!(wait::until_asleep(tid_in.recv().unwrap()), "the ioctl takes no time");
        for _ in 0..2 {
            let reply = bus.request(Request::Upgrade { program: None }).unwrap();
            assert!(matches!(reply, Reply::Upgraded(_)), "{reply:?}");
            innocent.makes_calls(10);
        }
        ioctl.join().unwrap()
    });
    assert_eq!((bwr.write_consumed, result), (commands.len() as u64, Ok(())));
    attack.kill();
}

/// Number of commands that attackers have made the daemon run.
fn commands_run(bus: &Bus) -> u64 {
    let stats = fs::read_to_string(bus.device("binder_logs/stats")).unwrap();
    let count = stats.lines().find_map(|line| line.strip_prefix("BC_ENTER_LOOPER: "));
    count.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn further_slices_of_an_owner_have_a_rate() {
    crate::on_bus_with(Mapping::Passthrough, &["--stats", "global"], |bus| {
        let mut attack = attacker(bus, "binder", ATTACKER, &["long-ioctls", "8"]);
        let is_past_burst = || {
            let begun = Instant::now();
            let count = commands_run(bus);
            (count > BURST * COMMANDS_OF_A_SLICE).then_some((begun, count))
        };
        let (begun, before) = wait::until(wait::PATIENCE, is_past_burst).unwrap();
        thread::sleep(Duration::from_millis(500));
        let run = commands_run(bus) - before;
        let admitted = begun.elapsed().as_millis() as u64 * PER_SECOND / 1_000;
        // Twice the rate: the first count may be late, and each ioctl has a first slice.
        assert!(run <= 2 * admitted * COMMANDS_OF_A_SLICE, "{run} commands, {admitted} slices");
        attack.kill();
    });
}
