//! Nice values that calls inherit.

use binder_client::{Payload, Session};
use e2e::{Bus, wait};
use rustix::process::{getpriority_process, setpriority_process};

use crate::support::{CALL, open, peer};

crate::both_mappings! {
    a_call_is_served_with_the_nice_value_of_its_caller
    a_call_does_not_raise_a_server_above_what_it_may_have
}

/// Calls with this nice value, from a thread of its own; what the server was served with.
fn call_with(bus: &Bus, nice: i32) -> i32 {
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| {
            // Of the calling thread alone: on Linux each thread has its own.
            setpriority_process(None, nice).unwrap();
            let client = open(bus);
            let mut session = Session::new(&client);
            let reply = session.call(0, CALL, Payload::default()).unwrap();
            let seen = i32::from_ne_bytes(reply.data().unwrap().try_into().unwrap());
            session.free(reply);
            session.flush().unwrap();
            seen
        });
        calling.join().unwrap()
    })
}

fn own_nice(pid: u32) -> i32 {
    getpriority_process(rustix::process::Pid::from_raw(pid as i32)).unwrap()
}

/// The server has its own value back: the reply is on its way before that is seen here.
fn expect_own(pid: u32, nice: i32) {
    let back = wait::until(wait::PATIENCE, || (own_nice(pid) == nice).then_some(()));
    assert!(back.is_some(), "the server kept nice {}", own_nice(pid));
}

fn may_raise() -> bool {
    std::thread::spawn(|| setpriority_process(None, -1).is_ok()).join().unwrap()
}

fn a_call_is_served_with_the_nice_value_of_its_caller(bus: &Bus) {
    if !may_raise() {
        return eprintln!("skipped: needs CAP_SYS_NICE");
    }
    let service = peer(bus, &["nice", "0"]);
    let own = own_nice(service.pid());
    for nice in [own, 19, own, -5] {
        assert_eq!(call_with(bus, nice), nice);
        expect_own(service.pid(), own);
    }
}

fn a_call_does_not_raise_a_server_above_what_it_may_have(bus: &Bus) {
    if !may_raise() {
        return eprintln!("skipped: needs CAP_SYS_NICE");
    }
    let service = peer(bus, &["nice", "65534"]);
    let own = own_nice(service.pid());
    assert_eq!(call_with(bus, -20), own, "an unprivileged server is no stronger for it");
    assert_eq!(call_with(bus, 19), 19);
    expect_own(service.pid(), own);
}
