//! Ioctls with the maximum number of commands.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use binder_client::{Client, Errno, Options};
use binder_uapi::command::BC_ENTER_LOOPER;
use e2e::attacker::ATTACKER;
use e2e::attacks::write_from;
use e2e::{Bus, wait};

use crate::innocent::{Innocent, attacker};

crate::attacks! {
    threads_with_long_ioctls_do_not_delay_others
    others_are_served_while_a_long_ioctl_runs
    a_signal_ends_a_long_ioctl
}

/// Enough commands that others can make some calls before all of them are executed.
fn many_commands() -> Vec<u8> {
    BC_ENTER_LOOPER.to_ne_bytes().repeat(4 << 20)
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
    assert!(made >= 5, "{made} calls during an ioctl of {} slices", commands.len() / 1024);
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
