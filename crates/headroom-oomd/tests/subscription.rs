//! Subscribers receive events of kills as they happen, and users can set preferences for their own
//! processes.

mod support;

use control::Uid;
use control::client::{Subscription, set_importance};
use control::oomd::{AccountRef, Event, Importance, Outcome, Reply, Request};
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, privileged};
use test_support::spawn_as;

const ALICE: Uid = Uid(62970);
const BOB: Uid = Uid(62971);

/// The events that a user receives until one of its decisions has ended.
fn until_the_end(subscription: Subscription) -> Vec<Event> {
    let mut events = Vec::new();
    for event in subscription {
        events.push(event.unwrap());
        if let Some(Event::Ended { .. }) = events.last() {
            break;
        }
    }
    events
}

#[test]
fn users_receive_events_of_their_own_kills_and_root_of_all() {
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
    let events = bob.join().unwrap();
    assert!(events.iter().all(|event| event.account() == AccountRef::user(BOB)), "{events:?}");
    let Some(Event::Ended { why }) = events.last() else { panic!("{events:?}") };
    assert_eq!(why.victim.as_ref().map(|victim| victim.pid), Some(pids[1]));
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }));
    let decided = events.iter().filter(|event| matches!(event, Event::Decided { .. }));
    assert_eq!(decided.count(), 1, "{events:?}");
    let of_alice = until_the_end(root);
    assert!(
        of_alice.iter().all(|event| event.account() == AccountRef::user(ALICE)),
        "{of_alice:?}"
    );
}

#[test]
fn preferences_of_a_user_apply_among_its_own_processes() {
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
    let would_die =
        || match daemon.request(&Request::Explain { account: Some(AccountRef::user(uid)) }) {
            Reply::Explained(found) => found.victim.map(|victim| victim.pid),
            other => panic!("{other:?}"),
        };
    assert_eq!(would_die(), Some(large.pid()));
    let set_importance = |uid: Uid, pid: u32, importance| {
        let socket = daemon.socket();
        let done = spawn_as(uid, move || {
            set_importance(&socket, Some(pid), importance).map_err(|error| error.to_string())
        });
        done.join().unwrap()
    };
    // Another user may not set it.
    let refused = set_importance(BOB, large.pid(), Importance::Avoid).unwrap_err();
    assert!(refused.contains("you have no process"), "{refused}");
    assert_eq!(would_die(), Some(large.pid()));
    set_importance(uid, large.pid(), Importance::Avoid).unwrap();
    assert_eq!(would_die(), Some(small.pid()));
    set_importance(uid, large.pid(), Importance::Ordinary).unwrap();
    set_importance(uid, small.pid(), Importance::Prefer).unwrap();
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
