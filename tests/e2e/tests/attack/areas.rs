//! Address spaces whose areas take long to list.

use std::time::{Duration, Instant};

use e2e::Bus;
use e2e::attacker::ATTACKER;

use crate::innocent::{Innocent, attacker};

crate::attacks! {
    calls_to_a_process_with_many_areas_and_no_buffer_do_not_slow_others
    calls_to_receivers_with_many_areas_wait_and_do_not_fail
}

/// If each call listed the areas, which takes 30 ms, these would take a minute.
const LONGEST: Duration = Duration::from_secs(30);

fn calls_to_a_process_with_many_areas_and_no_buffer_do_not_slow_others(bus: &Bus) {
    let innocent = Innocent::new(bus);
    let _manager = attacker(bus, "binder", ATTACKER, &["many-areas", "60000"]);
    let _caller = attacker(bus, "binder", ATTACKER, &["failing-calls"]);
    let begun = Instant::now();
    innocent.makes_calls(2000);
    assert!(begun.elapsed() < LONGEST, "{:?}", begun.elapsed());
    innocent.newcomer_makes_calls(bus);
}

/// Their lists of areas are longer together than the owner's budget.
fn calls_to_receivers_with_many_areas_wait_and_do_not_fail(bus: &Bus) {
    let innocent = Innocent::new(bus);
    let mut attack = attacker(bus, "binder", ATTACKER, &["receivers-with-areas", "8", "25000"]);
    innocent.makes_calls(100);
    attack.expect("all called");
    attack.wait_for_success();
    innocent.newcomer_makes_calls(bus);
}
