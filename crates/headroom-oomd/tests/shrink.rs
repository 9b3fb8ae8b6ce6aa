//! Idle memory is released before any process is killed.

mod support;

use control::{Server, Uid};
use support::daemon::Daemon;
use support::hog::Hog;
use support::reclaimer::Reclaimer;
use support::{MIB, eventually, privileged};

#[test]
fn idle_memory_of_a_user_near_its_limit_is_reclaimed_without_kills() {
    if !privileged() {
        return;
    }
    const UID: Uid = Uid(62110);
    let daemon = Daemon::start("", &[]);
    let reclaimer = Reclaimer::start(&daemon.reclaimer(), 1000);
    daemon.set_limit(UID, 128 * MIB);
    let mut hog = Hog::start(UID);
    hog.grow(64 << 10);
    assert!(hog.survived());
    assert_eq!(reclaimer.idle_pages(), 1000, "half of the limit is no reason to request");
    hog.grow(54 << 10);
    assert!(hog.survived());
    eventually("all idle memory is back", || (reclaimer.idle_pages() == 0).then_some(()));
    eventually("the daemon knows how much it was", || {
        (daemon.status().given_back_bytes == 1000 * 4096).then_some(())
    });
    assert_eq!(daemon.status().kills, 0);
}

#[test]
fn a_reclaimer_that_never_answers_holds_up_no_kill() {
    if !privileged() {
        return;
    }
    const UID: Uid = Uid(62111);
    let daemon = Daemon::start("", &[]);
    // A server that listens and never replies.
    let _silent = Server::bind(&daemon.reclaimer(), 0o600).unwrap();
    daemon.set_limit(UID, 64 * MIB);
    let mut hog = Hog::start(UID);
    hog.grow(60 << 10);
    assert!(hog.survived());
    hog.grow(60 << 10);
    assert!(!hog.survived());
    daemon.ended(UID);
    assert_eq!(daemon.status().kills, 1);
}
