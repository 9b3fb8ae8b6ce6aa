//! Memory of receive buffers, of which an owner has a quota.

use std::time::Duration;

use e2e::attacker::ATTACKER;
use e2e::peer::Word;
use e2e::{Bus, Mapping, wait};

use crate::innocent::{Innocent, attacker};
use crate::on_bus_with;

/// 1 % of the machine's memory, so that the attack reaches it soon.
const QUOTA: [&str; 2] = ["--owner-memory", "1"];
/// Bytes that remain charged for small messages.
const SMALL: u64 = 1 << 20;

#[test]
fn kept_replies_are_within_the_quota_by_passthrough() {
    on_bus_with(Mapping::Passthrough, &QUOTA, kept_replies_are_within_the_quota);
}

#[test]
fn kept_replies_are_within_the_quota_by_notify_store() {
    on_bus_with(Mapping::NotifyStore, &QUOTA, kept_replies_are_within_the_quota);
}

fn kept_replies_are_within_the_quota(bus: &Bus) {
    let innocent = Innocent::new(bus);
    let mut accomplice = attacker(bus, "binder", ATTACKER, &["manager", "1"]);
    let mut attack = attacker(bus, "binder", ATTACKER, &["kept-replies"]);
    let refused = loop {
        innocent.makes_calls(10);
        match attack.line_within(Duration::from_millis(1)) {
            Word::Line(line) => break line,
            Word::Silence => {}
            Word::End => panic!("{:?}", attack.wait()),
        }
    };
    let kept: u64 = refused.split(' ').next().unwrap().parse().unwrap();
    let status = bus.status().unwrap();
    let quota = status.owner_quota_bytes;
    assert!(kept <= quota && kept > quota / 2, "{refused}; the quota is {quota}");
    assert!(status.largest_owner_bytes <= quota, "{status:?}");
    innocent.makes_calls(100);
    innocent.newcomer_makes_calls(bus);
    attack.kill();
    accomplice.kill();
    let left = || bus.status().unwrap().largest_owner_bytes;
    let released = wait::until(wait::PATIENCE, || (left() < SMALL).then_some(()));
    assert!(released.is_some(), "{} bytes are left of {kept}", left());
    innocent.makes_calls(10);
}
