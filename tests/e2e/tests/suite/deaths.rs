//! Death of processes: death notifications, and results of pending calls.

use std::thread;

use binder_client::{Client, ClientError, Options, Payload, Session};
use binder_uapi::Return;
use e2e::Bus;

use crate::support::{CALL, bounded, expect_echo, find, manager, open, peer, publish};

crate::both_mappings! {
    a_watcher_is_notified_of_a_death_once
    a_late_watcher_is_notified_of_a_death_at_once
    a_withdrawn_notification_is_confirmed_and_never_comes
    a_call_to_a_dead_process_is_a_dead_reply
    a_death_in_the_middle_of_a_call_is_a_dead_reply
    a_caller_that_dies_does_not_disturb_its_server
    a_new_context_manager_can_follow_a_dead_one
}

const COOKIE: u64 = 0xdead_c00c_1e00_0001;

fn a_watcher_is_notified_of_a_death_once(bus: &Bus) {
    let _manager = manager(bus);
    let mut service = peer(bus, &["echo", "service"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    session.enter_looper().unwrap();
    let handle = find(&mut session, "service");
    session.request_death(handle, COOKIE);
    session.flush().unwrap();
    service.kill();
    assert_eq!(session.wait_notice().unwrap(), Return::DeadBinder(COOKIE));
    // The acknowledgement is sent with the withdrawal, which is then confirmed: no other
    // notification came.
    session.clear_death(handle, COOKIE);
    assert_eq!(session.wait_notice().unwrap(), Return::ClearDeathNotificationDone(COOKIE));
    session.release(handle);
    session.flush().unwrap();
}

fn a_late_watcher_is_notified_of_a_death_at_once(bus: &Bus) {
    let _manager = manager(bus);
    let mut service = peer(bus, &["echo", "service"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    session.enter_looper().unwrap();
    let handle = find(&mut session, "service");
    service.kill();
    // The service is certainly dead once a call reports it.
    let dead = e2e::wait::until(e2e::wait::PATIENCE, || {
        match session.call(handle, CALL, Payload::default()) {
            Ok(reply) => {
                session.free(reply);
                None
            }
            Err(error) => Some(error),
        }
    });
    assert_eq!(dead, Some(ClientError::DeadReply));
    session.request_death(handle, COOKIE);
    assert_eq!(session.wait_notice().unwrap(), Return::DeadBinder(COOKIE));
}

fn a_withdrawn_notification_is_confirmed_and_never_comes(bus: &Bus) {
    let _manager = manager(bus);
    let mut service = peer(bus, &["echo", "service"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    session.enter_looper().unwrap();
    let handle = find(&mut session, "service");
    session.request_death(handle, COOKIE);
    session.clear_death(handle, COOKIE);
    assert_eq!(session.wait_notice().unwrap(), Return::ClearDeathNotificationDone(COOKIE));
    service.kill();
    let mut calls = 0;
    while session.call(handle, CALL, Payload::default()).map(|reply| session.free(reply)).is_ok() {
        calls += 1;
        assert!(calls < 10_000, "the killed service still answers");
    }
    expect_echo(&mut session, 0, b"after the death");
    assert_eq!(session.take_notice(), None);
}

fn a_call_to_a_dead_process_is_a_dead_reply(bus: &Bus) {
    let _manager = manager(bus);
    let server = publish(bus, "server", &Options::default());
    let client = open(bus);
    let mut session = Session::new(&client);
    let handle = find(&mut session, "server");
    drop(server);
    // The kernel reports the last close to the driver a little later.
    let error = bounded_call(&mut session, handle);
    assert_eq!(error, ClientError::DeadReply);
    let error = session.oneway(handle, CALL, Payload::default()).unwrap_err();
    assert_eq!(error, ClientError::DeadReply);
}

/// A call to an object that is not served, which fails when its process exits.
fn bounded_call(session: &mut Session<'_>, handle: u32) -> ClientError {
    session.call(handle, CALL, Payload::default()).map(drop).unwrap_err()
}

fn a_death_in_the_middle_of_a_call_is_a_dead_reply(bus: &Bus) {
    let _manager = manager(bus);
    for _ in 0..5 {
        let mut busy = peer(bus, &["busy", "busy"]);
        let device = bus.device("binder");
        let calling = thread::spawn(move || {
            let client = Client::open(device, &Options::default()).unwrap();
            let mut session = Session::new(&client);
            let handle = find(&mut session, "busy");
            session.call(handle, CALL, Payload::bytes(b"you will die of this")).map(drop)
        });
        busy.expect("called");
        busy.kill();
        let called = bounded("the call", move || calling.join().unwrap());
        assert_eq!(called, Err(ClientError::DeadReply));
    }
}

fn a_caller_that_dies_does_not_disturb_its_server(bus: &Bus) {
    let server = open(bus);
    server.become_context_manager().unwrap();
    let mut session = Session::new(&server);
    session.enter_looper().unwrap();
    for _ in 0..5 {
        let mut caller = peer(bus, &["call", "manager"]);
        let mut kill_first = |_: &mut Session<'_>, _: &binder_client::Received<'_>| {
            caller.kill();
            binder_client::Answer::Echo
        };
        while session.serve_one(&mut kill_first).unwrap() != binder_client::Served::Transaction {}
        // The reply is for a caller that has exited, or is being torn down.
        session.flush().unwrap();
    }
    let mut caller = peer(bus, &["call", "manager"]);
    while session.serve_one(&mut binder_client::Echo).unwrap() != binder_client::Served::Transaction
    {
    }
    session.flush().unwrap();
    caller.expect("answered");
    caller.wait_for_success();
}

fn a_new_context_manager_can_follow_a_dead_one(bus: &Bus) {
    let client = open(bus);
    let mut session = Session::new(&client);
    for _ in 0..5 {
        let mut manager = peer(bus, &["manager", "1"]);
        expect_echo(&mut session, 0, b"to the new manager");
        manager.kill();
        let dead = e2e::wait::until(e2e::wait::PATIENCE, || {
            session.call(0, CALL, Payload::default()).map(|reply| session.free(reply)).err()
        });
        assert_eq!(dead, Some(ClientError::DeadReply));
    }
}
