//! Inherited priorities of calls.

use binder_client::{ClientError, Payload, Session};
use binder_uapi::{FLAT_BINDER_FLAG_INHERIT_RT, FLAT_BINDER_FLAG_SCHED_POLICY_SHIFT};
use e2e::{Bus, Peer, wait};
use rustix::process::setpriority_process;

use crate::support::{CALL, open, peer};

crate::both_mappings! {
    a_call_is_served_with_the_nice_value_of_its_caller
    a_call_does_not_raise_a_server_above_its_permission
    a_node_that_inherits_real_time_is_served_at_its_callers_policy_and_priority
    a_node_without_the_inherit_flag_is_served_at_the_strongest_nice_value_when_late
    a_node_with_a_real_time_minimum_is_served_with_it
    a_server_without_real_time_permission_keeps_its_policy_with_a_warning
    a_thread_that_leaves_in_the_middle_of_a_call_has_its_own_priority_back
    the_page_server_has_the_priority_of_the_event_loop
}

/// Code on which a service calls BINDER_THREAD_EXIT in the middle of the call.
const LEAVE: u32 = 2;
/// No minimum: lower than any nice value.
const NO_MINIMUM: u32 = 0x7f;

/// Nice value, policy (with the reset-on-fork flag) and real-time priority of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    nice: i32,
    policy: i32,
    level: i32,
}

impl Seen {
    fn nice(nice: i32) -> Self {
        Self { nice, policy: libc::SCHED_OTHER, level: 0 }
    }

    fn of(pid: u32) -> Self {
        let pid = pid as libc::pid_t;
        let mut parameter = libc::sched_param { sched_priority: 0 };
        // SAFETY: the structure is live.
        let policy = unsafe {
            libc::sched_getparam(pid, &mut parameter);
            libc::sched_getscheduler(pid)
        };
        let pid = rustix::process::Pid::from_raw(pid);
        let nice = rustix::process::getpriority_process(pid).unwrap();
        Self { nice, policy, level: parameter.sched_priority }
    }
}

/// Calls from a new thread, which has this nice value and, if that is not (0, 0), policy and level.
/// The service replies when it has the nice value `expected`; `None`: after a second.
fn call_as(
    bus: &Bus,
    code: u32,
    nice: i32,
    (policy, level): (i32, i32),
    expected: Option<i32>,
) -> Result<Seen, ClientError> {
    let expected = expected.map(i32::to_ne_bytes).map_or(Vec::new(), Vec::from);
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| {
            // Of the calling thread alone: on Linux each thread has its own nice value.
            setpriority_process(None, nice).unwrap();
            let client = open(bus);
            let mut session = Session::new(&client);
            if level > 0 {
                let parameter = libc::sched_param { sched_priority: level };
                // SAFETY: the structure is live; 0 is this thread.
                assert_eq!(unsafe { libc::sched_setscheduler(0, policy, &parameter) }, 0);
            }
            let reply = session.call(0, code, Payload::bytes(&expected))?;
            let data = reply.data().unwrap();
            let [nice, policy, level] =
                [0, 4, 8].map(|at| i32::from_ne_bytes(data[at..at + 4].try_into().unwrap()));
            session.free(reply);
            session.flush().unwrap();
            Ok(Seen { nice, policy, level })
        });
        calling.join().unwrap()
    })
}

fn call_with(bus: &Bus, nice: i32) -> Seen {
    call_as(bus, CALL, nice, (0, 0), Some(nice)).unwrap()
}

/// Waits until the server has its own priority back: the reply may arrive before it is restored.
fn expect_own(service: &Peer, own: Seen) {
    let back = wait::until(wait::PATIENCE, || (Seen::of(service.pid()) == own).then_some(()));
    assert!(back.is_some(), "the server kept {:?}", Seen::of(service.pid()));
}

fn may_raise() -> bool {
    let may = std::thread::spawn(|| setpriority_process(None, -1).is_ok()).join().unwrap();
    if !may {
        test_support::skip("needs CAP_SYS_NICE");
    }
    may
}

fn service(bus: &Bus, uid: &str, flags: u32) -> Peer {
    peer(bus, &["priority", uid, &flags.to_string()])
}

fn a_call_is_served_with_the_nice_value_of_its_caller(bus: &Bus) {
    if !may_raise() {
        return;
    }
    let service = peer(bus, &["nice", "0"]);
    let own = Seen::of(service.pid());
    for nice in [own.nice, 19, own.nice, -5] {
        assert_eq!(call_with(bus, nice), Seen::nice(nice));
        expect_own(&service, own);
    }
}

fn a_call_does_not_raise_a_server_above_its_permission(bus: &Bus) {
    if !may_raise() {
        return;
    }
    let service = peer(bus, &["nice", "65534"]);
    let own = Seen::of(service.pid());
    let seen = call_as(bus, CALL, -20, (0, 0), None).unwrap();
    assert_eq!(seen, own, "an unprivileged server is no stronger for it");
    assert_eq!(call_with(bus, 19), Seen::nice(19));
    expect_own(&service, own);
}

fn a_node_that_inherits_real_time_is_served_at_its_callers_policy_and_priority(bus: &Bus) {
    if !may_raise() {
        return;
    }
    let service = service(bus, "0", NO_MINIMUM | FLAT_BINDER_FLAG_INHERIT_RT);
    let own = Seen::of(service.pid());
    for (policy, level) in [(libc::SCHED_FIFO, 3), (libc::SCHED_RR, 2), (libc::SCHED_FIFO, 1)] {
        let seen = call_as(bus, CALL, own.nice, (policy, level), None).unwrap();
        let policy = policy | libc::SCHED_RESET_ON_FORK;
        assert_eq!(seen, Seen { nice: own.nice, policy, level });
        expect_own(&service, own);
    }
    assert_eq!(call_with(bus, 7), Seen::nice(7), "an ordinary caller has nothing to give");
    expect_own(&service, own);
}

fn a_node_without_the_inherit_flag_is_served_at_the_strongest_nice_value_when_late(bus: &Bus) {
    if !may_raise() {
        return;
    }
    let service = service(bus, "0", NO_MINIMUM);
    let own = Seen::of(service.pid());
    let seen = call_as(bus, CALL, own.nice, (libc::SCHED_FIFO, 3), Some(-20)).unwrap();
    assert_eq!(seen, Seen::nice(-20));
    expect_own(&service, own);
}

fn a_node_with_a_real_time_minimum_is_served_with_it(bus: &Bus) {
    if !may_raise() {
        return;
    }
    let minimum = (libc::SCHED_RR as u32) << FLAT_BINDER_FLAG_SCHED_POLICY_SHIFT | 2;
    let service = service(bus, "0", minimum | FLAT_BINDER_FLAG_INHERIT_RT);
    let own = Seen::of(service.pid());
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    assert_eq!(call_with(bus, 7), Seen { nice: 7, policy, level: 2 });
    expect_own(&service, own);
    let seen = call_as(bus, CALL, own.nice, (libc::SCHED_FIFO, 3), None).unwrap();
    assert_eq!(seen.level, 3, "the caller is the stronger one");
    expect_own(&service, own);
}

fn a_server_without_real_time_permission_keeps_its_policy_with_a_warning(bus: &Bus) {
    if !may_raise() {
        return;
    }
    let service = service(bus, "65534", NO_MINIMUM | FLAT_BINDER_FLAG_INHERIT_RT);
    let own = Seen::of(service.pid());
    for _ in 0..3 {
        let seen = call_as(bus, CALL, 11, (libc::SCHED_FIFO, 3), None).unwrap();
        assert_eq!(seen, own, "its limits permit no stronger nice value either");
        expect_own(&service, own);
    }
    let warnings = bus.log().matches("may not run at real-time priority").count();
    assert_eq!(warnings, 1, "{}", bus.log());
}

fn a_thread_that_leaves_in_the_middle_of_a_call_has_its_own_priority_back(bus: &Bus) {
    if !may_raise() {
        return;
    }
    let service = service(bus, "0", NO_MINIMUM | FLAT_BINDER_FLAG_INHERIT_RT);
    let own = Seen::of(service.pid());
    let left = call_as(bus, LEAVE, 9, (libc::SCHED_FIFO, 3), None);
    assert_eq!(left, Err(ClientError::DeadReply));
    service.expect("left");
    expect_own(&service, own);
}

fn the_page_server_has_the_priority_of_the_event_loop(bus: &Bus) {
    let daemon = bus.pid();
    let threads = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
    let page_servers: Vec<u32> = threads
        .map(|thread| thread.unwrap().path())
        .filter(|thread| std::fs::read_to_string(thread.join("comm")).unwrap() == "page-server\n")
        .map(|thread| thread.file_name().unwrap().to_str().unwrap().parse().unwrap())
        .collect();
    assert_eq!(page_servers.len(), 1);
    let seen = (Seen::of(page_servers[0]), Seen::of(daemon));
    assert_eq!(seen.0, seen.1);
}
