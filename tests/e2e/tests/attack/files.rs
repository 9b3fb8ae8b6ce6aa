//! Files that are passed and never received.

use std::io::Read;
use std::os::fd::AsFd;

use binder_client::{Client, Options, Parcel, Session};
use e2e::attacker::{ATTACKER, INNOCENT};
use e2e::{Bus, wait};
use headroom_linux::descriptors::PassRights;
use test_support::lingering::{LingeringSockets, MOST_FILES};

use crate::innocent::{Innocent, attacker};

crate::attacks! {
    files_whose_close_blocks_do_not_delay_other_files
    opens_that_only_their_own_messages_hold_end_with_their_process
    files_sent_to_the_control_socket_delay_nobody
}

/// Passes the write end of a pipe to a process that is killed before it receives it, and waits
/// until the daemon has closed it.
fn pass_and_see_closed(bus: &Bus) {
    let (mut read, write) = std::io::pipe().unwrap();
    let mut sink = attacker(bus, "vndbinder", INNOCENT, &["file-sink"]);
    let client = Client::open(bus.device("vndbinder"), &Options::default()).unwrap();
    let mut session = Session::new(&client);
    session.oneway(0, 1, Parcel::new().fd(write.as_fd()).payload()).unwrap();
    drop(write);
    sink.kill();
    assert_eq!(read.read(&mut [0]).unwrap(), 0);
}

fn files_whose_close_blocks_do_not_delay_other_files(bus: &Bus) {
    let innocent = Innocent::new(bus);
    // From its first call on, a client has a descriptor for its address space.
    innocent.makes_calls(1);
    pass_and_see_closed(bus);
    let before = bus.descriptors();
    let mut sink = attacker(bus, "binder", ATTACKER, &["file-sink"]);
    let mut attack = attacker(bus, "binder", ATTACKER, &["lingering-files", "20"]);
    sink.kill();
    for _ in 0..5 {
        pass_and_see_closed(bus);
    }
    innocent.makes_calls(300);
    innocent.newcomer_makes_calls(bus);
    assert!(bus.descriptors() > before, "the attack has not begun");
    attack.kill();
    // The other ends of the sockets are closed now.
    let settled = wait::until(wait::PATIENCE, || (bus.descriptors() <= before).then_some(()));
    assert!(settled.is_some(), "{} descriptors, {before} before", bus.descriptors());
}

fn opens_that_only_their_own_messages_hold_end_with_their_process(bus: &Bus) {
    let innocent = Innocent::new(bus);
    innocent.makes_calls(1);
    let before = bus.descriptors();
    let mut attack = attacker(bus, "binder", ATTACKER, &["opens-sent-to-themselves", "20"]);
    innocent.makes_calls(100);
    attack.expect("done");
    attack.wait_for_success();
    let settled = wait::until(wait::PATIENCE, || (bus.descriptors() <= before).then_some(()));
    assert!(settled.is_some(), "{} descriptors, {before} before", bus.descriptors());
}

/// On root's control socket, too, nothing waits for the files of the attacker.
fn files_sent_to_the_control_socket_delay_nobody(bus: &Bus) {
    let innocent = Innocent::new(bus);
    innocent.makes_calls(1);
    for rights in [PassRights::Refused, PassRights::Accepted] {
        if rights == PassRights::Accepted {
            harness::daemon::accept_files(bus.pid()).unwrap();
        }
        let socket = bus.socket().to_owned();
        let attack = test_support::spawn_as(ATTACKER, move || {
            let connect = |_| control::Client::connect(&socket).unwrap().into_fd();
            let connections: Vec<_> = (0..12).map(connect).collect();
            let mut ends = Vec::new();
            for connection in &connections {
                let sockets = LingeringSockets::new(MOST_FILES / 12).unwrap();
                if sockets.pass(connection, b".").is_ok() {
                    ends.extend(sockets.leave());
                }
            }
            (connections, ends)
        });
        let (connections, ends) = attack.join().unwrap();
        innocent.makes_calls(100);
        bus.status().unwrap();
        drop(connections);
        innocent.makes_calls(100);
        bus.status().unwrap();
        drop(ends);
    }
}
