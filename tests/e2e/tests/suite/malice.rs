//! Malicious clients in separate processes: they may get their own errors, but others are not
//! affected.

use std::thread;
use std::time::Duration;

use binder_client::{Payload, Session};
use e2e::peer::Word;
use e2e::random::Random;
use e2e::{Bus, Peer, wait};
use rustix::process::Signal;

use crate::support::{CALL, bounded, expect_echo, manager, open, peer, silent_peer};

crate::both_mappings! {
    a_client_whose_memory_never_answers_can_be_killed
    a_call_with_memory_that_never_answers_waits_until_it_is_killed
    a_client_with_a_mapping_of_a_hung_filesystem_can_be_killed_and_the_daemon_stops
    memory_that_changes_while_it_is_read_harms_its_owner_only
    memory_that_vanishes_while_it_is_read_harms_its_owner_only
    a_never_reading_client_does_not_delay_others
    unbounded_one_way_calls_exhaust_their_space
    unbounded_objects_are_released_with_their_owner
    unbounded_death_notifications_are_charged_to_the_requester
    unbounded_opens_are_refused
    threads_of_one_owner_leave_descriptors_to_others
    a_child_that_uses_its_parents_open_does_not_affect_others
    a_client_becomes_another_program_in_the_middle_of_its_calls
    clients_stopped_and_continued_at_random_do_not_delay_others
    a_thread_that_reuses_the_tid_of_an_exited_one_inherits_nothing
}

/// Makes calls of an old and of a new client during an attack.
fn others_go_on(bus: &Bus) {
    let device = bus.device("binder");
    bounded("the others", move || {
        let client =
            binder_client::Client::open(device, &binder_client::Options::default()).unwrap();
        let mut session = Session::new(&client);
        for round in 0..20 {
            expect_echo(&mut session, 0, &vec![round; 200 * usize::from(round)]);
        }
    });
}

/// Starts a malicious client and checks the others until it exits; returns the lines that it
/// printed.
fn suffered(bus: &Bus, what: &[&str]) -> Vec<String> {
    let mut harmful = peer(bus, what);
    let mut lines = Vec::new();
    loop {
        others_go_on(bus);
        match harmful.line_within(Duration::from_millis(1)) {
            Word::Line(line) => lines.push(line),
            Word::Silence => {}
            Word::End => break,
        }
    }
    harmful.wait_for_success();
    others_go_on(bus);
    lines
}

fn a_client_whose_memory_never_answers_can_be_killed(bus: &Bus) {
    let _manager = manager(bus);
    for round in 0..3_u64 {
        let mut silent = peer(bus, &["silent-memory", "commands"]);
        thread::sleep(Duration::from_millis(3 * round));
        silent.kill();
        others_go_on(bus);
    }
}

fn a_call_with_memory_that_never_answers_waits_until_it_is_killed(bus: &Bus) {
    let _manager = manager(bus);
    for (what, part) in [
        ("silent-memory", "commands"),
        ("silent-memory", "data"),
        ("silent-memory", "returns"),
        ("hung-mapping", "data"),
        ("hung-mapping", "returns"),
    ] {
        let warnings = |log: String| log.matches("its memory does not answer").count();
        let before = warnings(bus.log());
        let mut silent = peer(bus, &[what, part]);
        let late = wait::until(wait::PATIENCE, || (warnings(bus.log()) > before).then_some(()));
        assert!(late.is_some(), "{what} {part}");
        others_go_on(bus);
        let word = silent.line_within(Duration::from_millis(100));
        assert_eq!(word, Word::Silence, "{what} {part}");
        silent.kill();
        others_go_on(bus);
    }
}

/// Each test checks afterwards that the daemon exits in time.
fn a_client_with_a_mapping_of_a_hung_filesystem_can_be_killed_and_the_daemon_stops(bus: &Bus) {
    let _manager = manager(bus);
    for round in 0..3_u64 {
        let mut silent = peer(bus, &["hung-mapping", "commands"]);
        thread::sleep(Duration::from_millis(3 * round));
        silent.kill();
        others_go_on(bus);
    }
}

fn memory_that_changes_while_it_is_read_harms_its_owner_only(bus: &Bus) {
    let _manager = manager(bus);
    let seed = Random::fresh_seed();
    println!("seed {seed}");
    suffered(bus, &["changing-memory", &seed.to_string()]);
}

fn memory_that_vanishes_while_it_is_read_harms_its_owner_only(bus: &Bus) {
    let _manager = manager(bus);
    suffered(bus, &["vanishing-memory"]);
}

fn a_never_reading_client_does_not_delay_others(bus: &Bus) {
    let _manager = manager(bus);
    suffered(bus, &["never-reads"]);
}

fn unbounded_one_way_calls_exhaust_their_space(bus: &Bus) {
    let _manager = manager(bus);
    // The manager is slower than the flood, and one-way calls get at most half of the buffer.
    let mut flood = peer(bus, &["oneway-flood"]);
    for _ in 0..20 {
        others_go_on(bus);
    }
    flood.kill();
    others_go_on(bus);
}

fn unbounded_objects_are_released_with_their_owner(bus: &Bus) {
    let _manager = manager(bus);
    suffered(bus, &["handle-flood"]);
}

fn unbounded_death_notifications_are_charged_to_the_requester(bus: &Bus) {
    let _manager = manager(bus);
    suffered(bus, &["death-flood"]);
}

/// Checks the others until the daemon refuses more to a flood; returns how many the flood has.
fn refused_beside_others(bus: &Bus, flood: &mut Peer) -> u32 {
    let refused = loop {
        others_go_on(bus);
        match flood.line_within(Duration::from_millis(1)) {
            Word::Line(line) => break line,
            Word::Silence => {}
            Word::End => panic!("{:?}", flood.wait()),
        }
    };
    let count: u32 = refused.strip_prefix("refused ").unwrap().parse().unwrap();
    assert!(count > 100, "only {count}");
    others_go_on(bus);
    count
}

fn unbounded_opens_are_refused(bus: &Bus) {
    let _manager = manager(bus);
    let mut flood = peer(bus, &["as-nobody", "open-flood"]);
    let opens = refused_beside_others(bus, &mut flood);
    flood.kill();
    let closed =
        wait::until(wait::PATIENCE, || (bus.status().ok()?.processes < opens / 2).then_some(()));
    assert!(closed.is_some(), "{:?}", bus.status());
}

fn threads_of_one_owner_leave_descriptors_to_others(bus: &Bus) {
    let _manager = manager(bus);
    let mut flood = peer(bus, &["as-nobody", "thread-flood"]);
    refused_beside_others(bus, &mut flood);
    flood.wait_for_success();
    others_go_on(bus);
}

fn a_child_that_uses_its_parents_open_does_not_affect_others(bus: &Bus) {
    let _manager = manager(bus);
    suffered(bus, &["fork"]);
}

fn a_client_becomes_another_program_in_the_middle_of_its_calls(bus: &Bus) {
    let _manager = manager(bus);
    for _ in 0..5 {
        suffered(bus, &["exec"]);
    }
}

fn clients_stopped_and_continued_at_random_do_not_delay_others(bus: &Bus) {
    let seed = Random::fresh_seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let _manager = manager(bus);
    let service = peer(bus, &["echo", "service"]);
    let callers: Vec<Peer> = (0..4)
        .map(|number: u32| {
            silent_peer(bus, &["caller", "service", "4000000000", &number.to_string()])
        })
        .collect();
    for _ in 0..150 {
        // The service may be the victim too: it is stopped with pending calls.
        let victim = random.below(5) as usize;
        let victim = callers.get(victim).unwrap_or(&service);
        victim.signal(Signal::STOP);
        if random.below(4) == 0 {
            others_go_on(bus);
        } else {
            thread::sleep(Duration::from_micros(random.below(2000)));
        }
        victim.signal(Signal::CONT);
    }
    // Each caller makes progress.
    for caller in &callers {
        while let Word::Line(_) = caller.line_within(Duration::ZERO) {}
        assert!(caller.line().is_some(), "a caller has ended");
    }
}

fn a_thread_that_reuses_the_tid_of_an_exited_one_inherits_nothing(bus: &Bus) {
    let mut reuser = peer(bus, &["same-tid"]);
    let client = open(bus);
    let mut session = Session::new(&client);
    // Received by a thread that exits without a reply.
    let answer = session.call(0, CALL, Payload::bytes(b"who takes this?"));
    assert_eq!(answer.map(drop), Err(binder_client::ClientError::DeadReply));
    let outcome = reuser.line();
    reuser.wait_for_success();
    if outcome.as_deref() != Some("nothing inherited") {
        test_support::skip(format_args!("no thread got the dead one's number: {outcome:?}"));
    }
}
