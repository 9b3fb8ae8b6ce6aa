//! SIGTERM for a process of a user above its soft limit.

mod support;

use control::Uid;
use control::oomd::{KilledBy, Outcome, Trigger, Why};
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, eventually, privileged};

fn start(uid: Uid, seconds: u32, arguments: &[&str]) -> Daemon {
    let config = format!(
        "[[limit]]\nuser = {uid}\nhard = \"100M\"\nsoft = \"60M\"\n\
         soft-signal = \"TERM\"\nsoft-signal-s = {seconds}\n"
    );
    Daemon::start(&config, arguments)
}

/// A process above the soft limit, beside one that is smaller.
fn large_and_small(uid: Uid, prepare: impl Fn(&mut Hog)) -> [Hog; 2] {
    let [mut large, mut small] = [Hog::start(uid), Hog::start(uid)];
    prepare(&mut large);
    small.grow(10 << 10);
    assert!(small.survived());
    large.grow(70 << 10);
    [large, small]
}

fn assert_is_of_the_soft_limit(why: &Why, victim: &Hog) {
    assert_eq!((why.trigger, why.killer), (Trigger::SoftLimit, Some(KilledBy::Daemon)), "{why:#?}");
    assert_eq!((why.victim.as_ref().unwrap().pid, why.hard_bytes), (victim.pid(), 60 * MIB));
    assert!(why.used_bytes > 60 * MIB, "{why:#?}");
}

fn the_largest_process_is_asked_to_end(uid: Uid, arguments: &[&str]) {
    if !privileged() {
        return;
    }
    let daemon = start(uid, 600, arguments);
    let [mut large, mut small] = large_and_small(uid, |_| ());
    large.ended_by_sigterm();
    let why = daemon.ended(uid);
    assert_is_of_the_soft_limit(&why, &large);
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");
    // The account is free for the hard limit again.
    small.ignore_sigterm();
    small.grow(140 << 10);
    small.died();
    eventually("it is recorded", || (daemon.why(uid).len() == 2).then_some(()));
}

#[test]
fn the_largest_process_gets_sigterm_above_the_soft_limit() {
    the_largest_process_is_asked_to_end(Uid(62970), &[]);
}

#[test]
fn without_bpf_the_timer_sends_sigterm() {
    the_largest_process_is_asked_to_end(Uid(62971), &["--notifier", "proc"]);
}

#[test]
fn a_process_that_stays_is_killed_after_the_time() {
    if !privileged() {
        return;
    }
    let uid = Uid(62972);
    let daemon = start(uid, 1, &[]);
    let [mut large, mut small] = large_and_small(uid, Hog::ignore_sigterm);
    large.died();
    assert_is_of_the_soft_limit(&daemon.ended(uid), &large);
    assert!(small.is_alive());
    assert_eq!(daemon.why(uid).len(), 1);
}

fn the_hard_limit_does_not_wait(uid: Uid, arguments: &[&str]) {
    if !privileged() {
        return;
    }
    let daemon = start(uid, 600, arguments);
    let [mut large, mut small] = large_and_small(uid, Hog::ignore_sigterm);
    assert!(large.survived());
    eventually("SIGTERM is sent", || Some(daemon.why(uid)).filter(|all| !all.is_empty()));
    small.grow(60 << 10);
    large.died();
    assert!(small.survived(), "{:#?}", daemon.why(uid));
    let why = daemon.ended(uid);
    assert_is_of_the_soft_limit(&why, &large);
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");
    let log = daemon.log();
    assert!(!log.iter().any(|line| line.contains("was lost")), "{log:#?}");
}

#[test]
fn above_the_hard_limit_the_same_process_is_killed_at_once() {
    the_hard_limit_does_not_wait(Uid(62973), &[]);
}

#[test]
fn above_the_hard_limit_the_timer_kills_the_same_process() {
    the_hard_limit_does_not_wait(Uid(62974), &["--notifier", "proc"]);
}
