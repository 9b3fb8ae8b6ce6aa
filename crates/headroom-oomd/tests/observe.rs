//! With `observe = true` decisions are recorded, and no process is killed.

mod support;

use std::time::Duration;

use control::Uid;
use control::oomd::{ActsOn, Outcome, Reply, Request};
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, eventually, privileged};

const OBSERVE: &str = "observe = true\n";

/// A process exceeds its limit. It is not killed, and recorded once.
fn breaks_its_limit_and_lives(uid: Uid, daemon: &Daemon) -> Hog {
    daemon.set_limit(uid, 64 * MIB);
    let mut hog = Hog::start(uid);
    hog.grow(80 << 10);
    assert!(hog.survived());
    let why = eventually("the decision is recorded", || daemon.why(uid).pop());
    assert_eq!(why.outcome, Outcome::Observed);
    assert_eq!(why.victim.map(|victim| victim.pid), Some(hog.pid()));
    assert_eq!(why.killer, None);
    // Longer than the interval of scans above the soft limit.
    std::thread::sleep(Duration::from_millis(600));
    hog.grow(8 << 10);
    assert!(hog.survived());
    assert_eq!(daemon.why(uid).len(), 1, "one crossing is one record");
    hog
}

#[test]
fn no_process_is_killed_by_the_kernel_program() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start(OBSERVE, &[]);
    let _hog = breaks_its_limit_and_lives(Uid(62140), &daemon);
    assert_eq!(daemon.status().kills, 0);
    assert!(daemon.status().degraded.iter().any(|it| it.contains("observing")));
    assert_eq!(daemon.status().acts_on, ActsOn::Nothing);
    let logged = daemon.log().into_iter().any(|line| line.contains("would have killed"));
    assert!(logged, "{:?}", daemon.log());
}

#[test]
fn no_process_is_killed_by_proc() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &["--notifier", "proc", "--observe"]);
    let _hog = breaks_its_limit_and_lives(Uid(62141), &daemon);
    assert_eq!(daemon.status().kills, 0);
}

#[test]
fn a_reload_without_it_enforces_the_limit() {
    if !privileged() {
        return;
    }
    const UID: Uid = Uid(62142);
    let daemon = Daemon::start(OBSERVE, &[]);
    let mut hog = breaks_its_limit_and_lives(UID, &daemon);
    daemon.write_config("oomd.toml", "observe = false\n[machine]\nenabled = false\n");
    assert!(matches!(daemon.request(&Request::Reload), Reply::Reloaded(_)));
    hog.died();
    assert_eq!(daemon.status().kills, 1);
    assert_eq!(daemon.status().acts_on, ActsOn::Limits);
    daemon.write_config("oomd.toml", "[machine]\nenabled = true\n");
    assert!(matches!(daemon.request(&Request::Reload), Reply::Reloaded { .. }));
    assert_eq!(daemon.status().acts_on, ActsOn::LimitsAndShortages);
}
