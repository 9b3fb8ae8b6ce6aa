//! Memory of receive buffers: an owner has a quota, and it counts for the limit of its user.

use std::time::Duration;

use control::oomd::{Reply, Request};
use e2e::attacker::ATTACKER;
use e2e::peer::Word;
use e2e::{Bus, BusError, Mapping, wait};
use harness::backend::Backend;
use harness::daemon::Daemon;

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

const MIB: u64 = 1 << 20;

/// A limit for the attacker, and a bus that reports the memory of its buffers. `None`: skipped.
fn limited_attacker() -> Option<(Daemon, Bus)> {
    if let Some(reason) = harness::missing() {
        test_support::skip(reason);
        return None;
    }
    let oomd = Daemon::start(Backend::Proc, "").unwrap();
    oomd.set_limit(ATTACKER, 4096 * MIB).unwrap();
    let bus = Bus::start_with(Mapping::Passthrough, |command| {
        command.args(QUOTA).arg("--oomd-socket").arg(oomd.socket());
    });
    match bus {
        Ok(mut bus) => {
            bus.limit_time(crate::LONGEST_TEST);
            Some((oomd, bus))
        }
        Err(BusError::Unavailable(reason)) => {
            test_support::skip(reason);
            None
        }
        Err(BusError::Broken(fault)) => panic!("{fault}"),
    }
}

/// Usage of the attacker's account, bytes.
fn used_bytes(oomd: &Daemon) -> u64 {
    let mut client = control::Client::connect(&oomd.socket()).unwrap();
    match client.call(&Request::ListLimits).unwrap() {
        Reply::Limits { limits } => limits[0].used_bytes,
        other => panic!("{other:?}"),
    }
}

fn wait_for_usage(oomd: &Daemon, expected: impl Fn(u64) -> bool) {
    let reached = wait::until(wait::PATIENCE, || expected(used_bytes(oomd)).then_some(()));
    assert!(reached.is_some(), "{} bytes are used:\n{}", used_bytes(oomd), oomd.log());
}

fn keep_replies(bus: &Bus) -> (e2e::Peer, e2e::Peer, u64) {
    let accomplice = attacker(bus, "binder", ATTACKER, &["manager", "1"]);
    let attack = attacker(bus, "binder", ATTACKER, &["kept-replies"]);
    let refused = attack.line().unwrap();
    let kept = refused.split(' ').next().unwrap().parse().unwrap();
    (accomplice, attack, kept)
}

#[test]
fn kept_replies_count_for_the_limit_of_their_user() {
    let Some((oomd, bus)) = limited_attacker() else { return };
    let (mut accomplice, mut attack, kept) = keep_replies(&bus);
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", attack.pid())).unwrap();
    let resident = statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096;
    assert!(resident < kept / 8, "{resident} of {kept} bytes are in its resident set");
    wait_for_usage(&oomd, |used| used >= kept && used < kept + 64 * MIB);
    oomd.set_limit(ATTACKER, kept / 2).unwrap();
    attack.wait();
    let decisions = oomd.decisions(|uid| uid == ATTACKER).unwrap();
    let victims: Vec<_> = decisions.iter().map(|why| why["victim"]["pid"].as_u64()).collect();
    assert_eq!(victims, [Some(attack.pid().into())], "{decisions:#?}");
    wait_for_usage(&oomd, |used| used < 64 * MIB);
    accomplice.kill();
    bus.stop().unwrap();
}

#[test]
fn the_report_of_a_killed_daemon_is_dropped() {
    let Some((oomd, bus)) = limited_attacker() else { return };
    let (_accomplice, mut attack, kept) = keep_replies(&bus);
    wait_for_usage(&oomd, |used| used >= kept);
    bus.kill().unwrap();
    wait_for_usage(&oomd, |used| used < 64 * MIB);
    assert!(oomd.decisions(|_| true).unwrap().is_empty());
    attack.kill();
}
