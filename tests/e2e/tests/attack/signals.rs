//! Signals to clients in a call.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use binder_client::{Client, Options, Parcel, Session};
use control::Uid;
use e2e::Bus;
use e2e::attacker::{ATTACKER, Attacker};

use crate::innocent::{Innocent, attacker};

crate::attacks! {
    a_receiver_of_files_with_a_profiling_timer_does_not_delay_others
    hung_receivers_of_files_with_signals_do_not_delay_others
}

/// Sends the write end of a pipe in a call, and checks that the service has written into it.
fn send_pipe(session: &mut Session<'_>) {
    let (mut read, write) = std::io::pipe().unwrap();
    let reply = session.call(0, 1, Parcel::new().fd(write.as_fd()).payload()).unwrap();
    drop(write);
    let mut text = String::new();
    read.read_to_string(&mut text).unwrap();
    assert_eq!(text, "seen");
    session.free(reply);
    session.flush().unwrap();
}

fn a_receiver_of_files_with_a_profiling_timer_does_not_delay_others(bus: &Bus) {
    let innocent = Innocent::new(bus);
    let uid = ATTACKER.to_string();
    let service = attacker(bus, "binder", Uid::ROOT, &["files-interrupted", &uid, "200"]);
    let client = Client::open(bus.device("binder"), &Options::default()).unwrap();
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| {
            let mut session = Session::new(&client);
            (0..300).for_each(|_| send_pipe(&mut session));
        });
        innocent.makes_calls(300);
        calling.join().unwrap();
    });
    drop(service);
}

fn hung_receivers_of_files_with_signals_do_not_delay_others(bus: &Bus) {
    const RECEIVERS: usize = 24;
    let innocent = Innocent::new(bus);
    let count = RECEIVERS.to_string();
    let program = Path::new(env!("CARGO_BIN_EXE_peer"));
    let words = ["signalled-receivers", &count];
    let mut attack = Attacker::start(bus, program, "binder", ATTACKER, &words);
    let client = Client::open(bus.device("binder"), &Options::default()).unwrap();
    let mut session = Session::new(&client);
    let file = std::fs::File::open("/dev/null").unwrap();
    // Calls of several clients, because one-way calls to a node are delivered one after the other.
    for _ in 0..RECEIVERS {
        session.oneway(0, 1, Parcel::new().fd(file.as_fd()).payload()).unwrap();
    }
    let callers: Vec<_> = (0..RECEIVERS)
        .map(|_| {
            let device = bus.device("binder");
            let file = file.try_clone().unwrap();
            std::thread::spawn(move || {
                let client = Client::open(device, &Options::default()).unwrap();
                let mut session = Session::new(&client);
                let call = session.call(0, 1, Parcel::new().fd(file.as_fd()).payload());
                call.map(drop)
            })
        })
        .collect();
    innocent.makes_calls(300);
    innocent.newcomer_makes_calls(bus);
    attack.kill();
    for caller in callers {
        assert!(caller.join().unwrap().is_err(), "no reply");
    }
    innocent.makes_calls(10);
}
