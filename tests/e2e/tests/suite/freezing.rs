//! Freezing processes with the driver's ioctls.

use std::time::{Duration, Instant};

use binder_client::{ClientError, Errno, Payload, Session};
use binder_uapi::Return;
use e2e::Bus;
use e2e::attacker::{ATTACKER, INNOCENT};

use crate::support::{CALL, bounded, expect_echo, find, manager, open, peer};

crate::both_mappings! {
    a_waiting_freeze_does_not_stall_others_and_ends_at_its_timeout
    a_process_killed_while_it_freezes_another_leaves_it_thawed
    frozen_and_dead_processes_are_distinguished_and_thawed_ones_answer
    only_who_may_signal_a_process_freezes_and_thaws_it
}

fn a_waiting_freeze_does_not_stall_others_and_ends_at_its_timeout(bus: &Bus) {
    let _manager = manager(bus);
    let service = peer(bus, &["busy", "service"]);
    let caller = peer(bus, &["call", "service"]);
    service.expect("called");
    let (freezer, pid) = (open(bus), service.pid());
    let freezing = std::thread::spawn(move || {
        let begun = Instant::now();
        (freezer.freeze(pid, 300), begun.elapsed())
    });
    let client = open(bus);
    let mut session = Session::new(&client);
    for _ in 0..100 {
        expect_echo(&mut session, 0, b"meanwhile");
    }
    let (result, took) = bounded("the freeze", || freezing.join().unwrap());
    assert_eq!(result.unwrap_err().errno(), Some(Errno::AGAIN));
    assert!(took >= Duration::from_millis(300), "it waited {took:?} only");
    drop(caller);
}

fn a_process_killed_while_it_freezes_another_leaves_it_thawed(bus: &Bus) {
    let _manager = manager(bus);
    let service = peer(bus, &["busy", "service"]);
    let caller = peer(bus, &["call", "service"]);
    service.expect("called");
    let mut freezer = peer(bus, &["freeze", &service.pid().to_string(), "3600000"]);
    freezer.expect_asleep();
    let client = open(bus);
    let frozen = |session: &mut Session<'_>, handle| {
        session.call(handle, CALL, Payload::default()).map(drop) == Err(ClientError::FrozenReply)
    };
    let mut session = Session::new(&client);
    let handle = find(&mut session, "service");
    assert!(frozen(&mut session, handle), "no calls while a freeze waits");
    freezer.kill();
    drop(caller);
    // The service never answers its first caller. Another caller waits now, while it was refused
    // before.
    let another = peer(bus, &["call", "service"]);
    another.expect_asleep();
    session.release(handle);
    session.flush().unwrap();
}

fn frozen_and_dead_processes_are_distinguished_and_thawed_ones_answer(bus: &Bus) {
    let _manager = manager(bus);
    let service = peer(bus, &["echo", "service"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    let handle = find(&mut session, "service");
    client.freeze(service.pid(), 1000).unwrap();
    let refused = session.call(handle, CALL, Payload::default()).map(drop);
    assert_eq!(refused, Err(ClientError::FrozenReply));
    let result = session.oneway(handle, CALL, Payload::bytes(b"for later")).unwrap();
    assert_eq!(result, Return::TransactionPendingFrozen);
    let info = client.frozen_info(service.pid()).unwrap();
    assert_eq!(info.async_recv, 1);
    assert_eq!(info.sync_recv & 1, 1);
    client.thaw(service.pid()).unwrap();
    expect_echo(&mut session, handle, b"thawed");
    let error = client.freeze(u32::MAX, 0).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::INVAL), "no such process");
}

fn only_who_may_signal_a_process_freezes_and_thaws_it(bus: &Bus) {
    let [user, other] = [INNOCENT, ATTACKER].map(|uid| uid.to_string());
    let _manager = manager(bus);
    let service = peer(bus, &["as", &user, "echo", "service"]);
    let pid = service.pid().to_string();
    let client = open(bus);
    let mut session = Session::new(&client);
    let handle = find(&mut session, "service");
    let freezes = |uid: &str| peer(bus, &["as", uid, "freeze", &pid, "0"]).wait().success();
    assert!(!freezes(&other));
    expect_echo(&mut session, handle, b"not frozen");
    assert!(freezes(&user));
    let refused = session.call(handle, CALL, Payload::default()).map(drop);
    assert_eq!(refused, Err(ClientError::FrozenReply));
    let thaws = |uid: &str| peer(bus, &["as", uid, "thaw", &pid]).wait().success();
    assert!(!thaws(&other));
    // In a namespace of its own, the other user has all capabilities, but not over this process.
    let in_namespace = ["as", &other, "in-user-namespace", "thaw", &pid];
    assert!(!peer(bus, &in_namespace).wait().success());
    let refused = session.call(handle, CALL, Payload::default()).map(drop);
    assert_eq!(refused, Err(ClientError::FrozenReply));
    client.thaw(service.pid()).unwrap();
    expect_echo(&mut session, handle, b"thawed by root");
}
