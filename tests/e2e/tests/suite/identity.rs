//! Identity of a caller, as receivers in other namespaces see it.

use std::path::PathBuf;

use binder_client::{Client, Options, Payload, Session};
use control::Uid;
use e2e::Bus;

use crate::support::{CALL, open, peer};

crate::both_mappings! {
    a_caller_is_unknown_to_a_receiver_that_cannot_see_it
    a_caller_in_its_own_namespaces_has_its_outer_pid_and_uid
}

/// Calls as this user; returns the pid and uid that the receiver saw.
fn call_as(device: PathBuf, uid: Uid) -> (i32, u32) {
    let call = move || {
        let client = Client::open(device, &Options::default()).unwrap();
        let mut session = Session::new(&client);
        let reply = session.call(0, CALL, Payload::default()).unwrap();
        let seen: [u8; 8] = reply.data().unwrap().try_into().unwrap();
        session.free(reply);
        session.flush().unwrap();
        let [a, b, c, d, e, f, g, h] = seen;
        (i32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
    };
    test_support::spawn_as(uid, call).join().unwrap()
}

fn a_caller_is_unknown_to_a_receiver_that_cannot_see_it(bus: &Bus) {
    // Root in the initial namespace is user 1000 there, and no other user is mapped.
    let _service = peer(bus, &["unshared", "1000 0 1", "who"]);
    let device = || bus.device("binder");
    assert_eq!(call_as(device(), Uid::ROOT), (0, 1000));
    assert_eq!(call_as(device(), Uid(65534)), (0, u32::MAX), "not root, whatever else");
}

fn a_caller_in_its_own_namespaces_has_its_outer_pid_and_uid(bus: &Bus) {
    let server = open(bus);
    server.become_context_manager().unwrap();
    let mut caller = peer_that_calls(bus);
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    let mut seen = None;
    let mut service = |_: &mut Session<'_>, incoming: &binder_client::Received<'_>| {
        let sender = incoming.transaction();
        // The caller exists while it waits for the answer.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", sender.sender_pid));
        seen = Some((sender.sender_pid, sender.sender_euid, stat.unwrap_or_default()));
        binder_client::Answer::Echo
    };
    while session.serve_one(&mut service).unwrap() != binder_client::Served::Transaction {}
    session.flush().unwrap();
    let (pid, uid, stat) = seen.unwrap();
    caller.expect("answered");
    caller.wait_for_success();
    assert_eq!(uid, 0);
    // It was a child of the process that unshared, and has another number here than 1.
    assert_ne!(pid, 1);
    let words: Vec<&str> = stat.split(' ').collect();
    assert_eq!(words.get(3), Some(&caller.pid().to_string().as_str()), "{stat}");
}

fn peer_that_calls(bus: &Bus) -> e2e::Peer {
    peer(bus, &["unshared", "1000 0 1", "call", "manager"])
}
