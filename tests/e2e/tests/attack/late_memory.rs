//! Memory of clients that answers late or never.

use std::fs;
use std::path::Path;
use std::time::Duration;

use e2e::attacker::{ATTACKER, INNOCENT};
use e2e::{Bus, Peer, wait};
use rustix::process::{Pid, Signal, kill_process};

use crate::innocent::Innocent;

crate::attacks! {
    areas_that_never_answer_in_many_uids_of_one_owner_cost_a_bounded_number_of_threads
    calls_with_memory_that_answers_late_are_delayed_and_succeed
    calls_with_late_parcels_and_read_buffers_succeed
    files_reach_a_receiver_whose_read_buffer_is_late
    a_client_whose_read_buffer_never_answers_can_be_killed
}

const AREAS: &str = "64";
const UIDS: &str = "17";
/// Threads that may be blocked in the memory of one owner's clients.
const MAX_BLOCKED: usize = 8;
/// Time in which threads and descriptors of the daemon must disappear.
const PATIENCE: Duration = Duration::from_secs(20);

/// Threads of the daemon that have taken the event loop over and have not exited: one after the
/// first late access, and one for each blocked access after it.
fn loop_threads(bus: &Bus) -> usize {
    threads_named(bus, "event-loop")
}

fn threads_named(bus: &Bus, wanted: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", bus.pid())).unwrap().flatten();
    let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    tasks.filter(|task| name(task).is_ok_and(|name| name.trim_end() == wanted)).count()
}

/// Memory was late, and another thread has taken the event loop over for good.
fn assert_was_late(bus: &Bus) {
    assert!(bus.log().contains("its memory does not answer"), "{}", bus.log());
    assert_eq!(loop_threads(bus), 1, "{}", wait::describe(bus.pid()));
}

/// Whether the daemon writes to the read buffers of clients. Over rings, the library does: a client
/// whose buffer does not answer waits in its own access then.
fn writes_returns() -> bool {
    std::env::var_os(e2e::bus::RINGS).is_none()
}

/// Starts a client whose memory is late.
fn attacker(bus: &Bus, words: &[&str]) -> Peer {
    Peer::start_on(bus, Path::new(env!("CARGO_BIN_EXE_peer")), "binder", words)
}

/// The pids in a line of the attacker.
fn pids(attack: &Peer, label: &str) -> Vec<u32> {
    let line = attack.line().unwrap();
    let numbers = line.strip_prefix(label).unwrap().split_ascii_whitespace();
    numbers.map(|pid| pid.parse().unwrap()).collect()
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Kills a process and waits until it has exited, whether or not its parent has reaped it.
fn kill_and_see_gone(pid: u32) {
    kill(pid);
    let gone = || matches!(wait::state(pid), None | Some('Z')).then_some(());
    assert!(wait::until(PATIENCE, gone).is_some(), "cannot be killed: {}", wait::describe(pid));
}

fn areas_that_never_answer_in_many_uids_of_one_owner_cost_a_bounded_number_of_threads(bus: &Bus) {
    let innocent = Innocent::new(bus);
    innocent.makes_calls(10);
    // The first read that is parked for some time starts this thread, which has a descriptor.
    let started = || (threads_named(bus, "nonblock") > 0).then_some(());
    assert!(wait::until(PATIENCE, started).is_some(), "{}", wait::describe(bus.pid()));
    let before = bus.descriptors();
    let mut attack = attacker(bus, &["late-clients", &ATTACKER.to_string(), AREAS, UIDS]);
    let accomplice = pids(&attack, "accomplice ")[0];
    let clients = pids(&attack, "clients ");
    attack.expect("ready");
    innocent.makes_calls(300);
    innocent.newcomer_makes_calls(bus);
    let begun = wait::until(PATIENCE, || (loop_threads(bus) > 0).then_some(()));
    assert!(begun.is_some(), "the attack has not begun");
    // Each late access has blocked a thread, and none has returned.
    assert!(loop_threads(bus) <= MAX_BLOCKED, "{}", wait::describe(bus.pid()));
    // Each can be killed while a thread of the daemon is blocked in its memory.
    clients.into_iter().for_each(kill_and_see_gone);
    attack.kill();
    innocent.makes_calls(10);
    assert!(loop_threads(bus) <= MAX_BLOCKED, "{}", wait::describe(bus.pid()));
    kill(accomplice);
    let settled = wait::until(PATIENCE, || {
        (loop_threads(bus) == 1 && bus.descriptors() <= before).then_some(())
    });
    let left = (bus.descriptors(), before);
    assert!(settled.is_some(), "{left:?} descriptors; {}", wait::describe(bus.pid()));
}

fn calls_with_memory_that_answers_late_are_delayed_and_succeed(bus: &Bus) {
    let innocent = Innocent::new(bus);
    // More than the owner's budget.
    let mut late = attacker(bus, &["late-pages", &ATTACKER.to_string(), "4", "300"]);
    late.expect("ready");
    innocent.makes_calls(300);
    innocent.newcomer_makes_calls(bus);
    late.wait_for_success();
    assert_was_late(bus);
}

/// A context manager that returns the parcels of calls.
fn echo_service(bus: &Bus, device: &str) -> Peer {
    let program = Path::new(env!("CARGO_BIN_EXE_peer"));
    let words = ["as", &INNOCENT.to_string(), "manager", "1"];
    let service = Peer::start_on(bus, program, device, &words);
    service.expect("ready");
    service
}

fn calls_with_late_parcels_and_read_buffers_succeed(bus: &Bus) {
    let innocent = Innocent::new(bus);
    let _service = echo_service(bus, "binder");
    // More late accesses than the owner's budget allows without touching memory before a call.
    let mut late = attacker(bus, &["late-parcels", &ATTACKER.to_string(), "6", "100"]);
    late.expect("ready");
    innocent.makes_calls(300);
    late.wait_for_success();
    innocent.newcomer_makes_calls(bus);
    assert_was_late(bus);
}

fn files_reach_a_receiver_whose_read_buffer_is_late(bus: &Bus) {
    let innocent = Innocent::new(bus);
    let mut late = attacker(bus, &["late-files", &ATTACKER.to_string(), "4", "100"]);
    late.expect("ready");
    innocent.makes_calls(300);
    late.wait_for_success();
    assert_eq!(loop_threads(bus), 0, "only the worker waits: {}", wait::describe(bus.pid()));
}

fn a_client_whose_read_buffer_never_answers_can_be_killed(bus: &Bus) {
    if !writes_returns() {
        return;
    }
    let innocent = Innocent::new(bus);
    let _service = echo_service(bus, "binder");
    let mut late = attacker(bus, &["hung-returns", &ATTACKER.to_string()]);
    let accomplice = pids(&late, "accomplice ")[0];
    late.expect("ready");
    let blocked = || (loop_threads(bus) > 0).then_some(());
    assert!(wait::until(PATIENCE, blocked).is_some(), "{}", wait::describe(bus.pid()));
    innocent.makes_calls(100);
    late.kill();
    innocent.makes_calls(100);
    kill(accomplice);
    let settled = wait::until(PATIENCE, || (loop_threads(bus) == 1).then_some(()));
    assert!(settled.is_some(), "{}", wait::describe(bus.pid()));
}
