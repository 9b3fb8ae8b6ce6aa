//! Subscribers receive events of kills as they happen, and users can set preferences for their own
//! processes.

mod support;

use control::Uid;
use control::oomd::{AccountRef, Event, Importance, Outcome, Reply, Request};
use control::subscription::{Subscription, set_importance};
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, privileged};
use test_support::spawn_as;

const ALICE: Uid = Uid(62970);
const BOB: Uid = Uid(62971);

/// The events that a user receives until one of its decisions has ended.
fn until_the_end(subscription: Subscription) -> Vec<Event> {
    let mut heard = Vec::new();
    for event in subscription {
        heard.push(event.unwrap());
        if let Some(Event::Ended { .. }) = heard.last() {
            break;
        }
    }
    heard
}

#[test]
fn a_user_hears_of_its_own_kills_and_root_of_all() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &[]);
    let root = Subscription::start(&daemon.socket()).unwrap();
    let socket = daemon.socket();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let bob = spawn_as(BOB, move || {
        let subscription = Subscription::start(&socket).unwrap();
        ready.send(()).unwrap();
        until_the_end(subscription)
    });
    is_ready.recv().unwrap();
    let mut pids = Vec::new();
    for uid in [ALICE, BOB] {
        daemon.set_limit(uid, 64 * MIB);
        let mut hog = Hog::start(uid);
        hog.grow(96 * 1024);
        hog.died();
        pids.push(hog.pid());
        daemon.ended(uid);
    }
    let heard = bob.join().unwrap();
    assert!(heard.iter().all(|event| event.account() == AccountRef::user(BOB)), "{heard:?}");
    let Some(Event::Ended { why }) = heard.last() else { panic!("{heard:?}") };
    assert_eq!(why.victim.as_ref().map(|victim| victim.pid), Some(pids[1]));
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }));
    let decided = heard.iter().filter(|event| matches!(event, Event::Decided { .. }));
    assert_eq!(decided.count(), 1, "{heard:?}");
    let of_alice = until_the_end(root);
    assert!(
        of_alice.iter().all(|event| event.account() == AccountRef::user(ALICE)),
        "{of_alice:?}"
    );
}

#[test]
fn what_a_user_says_of_its_own_processes_counts_among_them() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &[]);
    let uid = Uid(62972);
    daemon.set_limit(uid, 128 * MIB);
    let (mut large, mut small) = (Hog::start(uid), Hog::start(uid));
    large.grow(64 * 1024);
    assert!(large.survived());
    small.grow(16 * 1024);
    assert!(small.survived());
    let would_die = || match daemon.ask(&Request::Explain { account: Some(AccountRef::user(uid)) })
    {
        Reply::Explained(found) => found.victim.map(|victim| victim.pid),
        other => panic!("{other:?}"),
    };
    assert_eq!(would_die(), Some(large.pid()));
    let say = |uid: Uid, pid: u32, importance| {
        let socket = daemon.socket();
        let said = spawn_as(uid, move || {
            set_importance(&socket, Some(pid), importance).map_err(|error| error.to_string())
        });
        said.join().unwrap()
    };
    // Another user may not set it.
    let refused = say(BOB, large.pid(), Importance::Avoid).unwrap_err();
    assert!(refused.contains("you have no process"), "{refused}");
    assert_eq!(would_die(), Some(large.pid()));
    say(uid, large.pid(), Importance::Avoid).unwrap();
    assert_eq!(would_die(), Some(small.pid()));
    say(uid, large.pid(), Importance::Ordinary).unwrap();
    say(uid, small.pid(), Importance::Prefer).unwrap();
    assert_eq!(would_die(), Some(small.pid()));
    // The preferred process is killed, although the other one exceeds the limit.
    large.grow(56 * 1024);
    small.died();
    assert!(large.survived());
}

#[test]
fn a_subscription_ends_with_the_daemon() {
    if !privileged() {
        return;
    }
    let mut daemon = Daemon::start("", &[]);
    let mut subscription = Subscription::start(&daemon.socket()).unwrap();
    daemon.stop();
    assert!(subscription.next().unwrap().is_err());
    assert!(subscription.next().is_none());
}
