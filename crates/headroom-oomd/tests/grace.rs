//! A limit that is lowered below the usage takes effect after a grace.

mod support;

use control::oomd::{AccountRef, Event, Reloaded, Reply, Request, UserLimit};
use control::{Client, Uid};
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, eventually, privileged};

/// No two tests share a user.
fn user(test: u32) -> (Uid, AccountRef) {
    let uid = Uid(62_880 + test);
    (uid, AccountRef::user(uid))
}

fn configured(uid: Uid, mib: u64) -> String {
    format!("[[limit]]\nuser = {uid}\nhard = \"{mib}M\"\n")
}

fn set(account: AccountRef, mib: u64, grace_s: Option<u32>) -> Request {
    Request::SetLimit { account, hard_bytes: mib * MIB, soft_bytes: None, grace_s }
}

/// The hard limit in force and the one that follows, MiB.
fn limits(limit: &UserLimit) -> (u64, Option<u64>) {
    let next = limit.details.grace.as_ref().map(|grace| grace.hard_bytes / MIB);
    (limit.hard_bytes / MIB, next)
}

/// Starts a daemon with a limit of 64 MiB that root has raised, and a process of the user that has
/// more than the former.
fn raised(uid: Uid, account: AccountRef) -> (Daemon, Hog) {
    let daemon = Daemon::start(&configured(uid, 64), &[]);
    assert_eq!(daemon.request(&set(account, 300, None)), Reply::Done);
    let mut hog = Hog::start(uid);
    hog.grow(100 << 10);
    assert!(hog.survived());
    (daemon, hog)
}

#[test]
fn ending_a_raise_returns_to_the_configurations_limit_after_the_grace() {
    if !privileged() {
        return;
    }
    let (uid, account) = user(0);
    let (daemon, mut hog) = raised(uid, account);
    let mut subscriber = Client::connect(&daemon.socket()).unwrap();
    assert_eq!(subscriber.call::<Reply>(&Request::Subscribe).unwrap(), Reply::Subscribed);
    let clear = |grace_s| Request::ClearLimit { account, grace_s };
    assert_eq!(daemon.request(&clear(Some(3600))), Reply::Done);
    let limit = daemon.limit(uid).unwrap();
    assert_eq!((limits(&limit), limit.source.as_str()), ((300, Some(64)), "config"));
    let Reply::Event(event) = subscriber.receive().unwrap() else { panic!() };
    let Event::SoftLimitCrossed(it) = event else { panic!("{event:?}") };
    assert_eq!((it.hard_bytes, it.grace_s), (64 * MIB, Some(3600)), "the user is told");
    assert!(it.used_bytes > 100 * MIB);
    // The user can neither end its grace nor prolong it, and the limit before still holds.
    assert_eq!(daemon.request_as(uid, &set(account, 32, Some(86_400))), Reply::Done);
    let limit = daemon.limit(uid).unwrap();
    assert_eq!(limits(&limit), (300, Some(32)));
    assert!(limit.details.grace.unwrap().seconds <= 3600);
    hog.grow(20 << 10);
    assert!(hog.survived(), "no process is killed meanwhile");
    assert_eq!(daemon.why(uid), []);
    // Root ends it at once.
    assert_eq!(daemon.request(&set(account, 80, Some(0))), Reply::Done);
    hog.died();
    assert_eq!(daemon.ended(uid).hard_bytes, 80 * MIB);
}

#[test]
fn a_grace_ends_by_time_and_without_a_kill_once_the_usage_is_below_the_limit() {
    if !privileged() {
        return;
    }
    let (uid, account) = user(1);
    let (daemon, mut hog) = raised(uid, account);
    assert_eq!(daemon.request(&Request::ClearLimit { account, grace_s: Some(1) }), Reply::Done);
    hog.died();
    assert_eq!(daemon.ended(uid).hard_bytes, 64 * MIB);
    let (uid, account) = user(2);
    let (daemon, hog) = raised(uid, account);
    assert_eq!(daemon.request(&Request::ClearLimit { account, grace_s: Some(3600) }), Reply::Done);
    drop(hog);
    eventually("the limit is in force", || {
        daemon.limit(uid).filter(|limit| limits(limit) == (64, None))
    });
    assert_eq!(daemon.why(uid), []);
}

#[test]
fn who_is_over_a_limit_when_the_daemon_starts_has_a_grace() {
    if !privileged() {
        return;
    }
    let [(over, _), (within, _), (ordinary, _)] = [6, 7, 8].map(user);
    let mut hogs = [over, within, ordinary].map(Hog::start);
    for (hog, kib) in hogs.iter_mut().zip([100 << 10, 16 << 10, 100 << 10]) {
        hog.grow(kib);
        assert!(hog.survived());
    }
    let default = "[[limit]]\nuser = \"*\"\nhard = \"64M\"\n";
    let text = ["grace-s = 3600\n", &configured(over, 64), &configured(within, 64), default];
    let folder = tempfile::tempdir().unwrap();
    let login_defs = folder.path().join("login.defs");
    std::fs::write(&login_defs, format!("UID_MIN {ordinary}\nUID_MAX {}\n", user(9).0)).unwrap();
    let daemon = Daemon::start(&text.concat(), &["--login-defs", login_defs.to_str().unwrap()]);
    for uid in [over, ordinary] {
        let limit = daemon.limit(uid).unwrap();
        assert!(limit.details.exempt, "{limit:?}");
        assert_eq!(limit.details.grace.unwrap().hard_bytes, 64 * MIB);
    }
    assert_eq!(limits(&daemon.limit(within).unwrap()), (64, None));
    // A user that comes later was permitted nothing.
    let mut later = Hog::start(user(9).0);
    later.grow(100 << 10);
    later.died();
    // It frees memory: the limit is in force.
    let [over, _, mut ordinary] = hogs;
    drop(over);
    eventually("the limit is in force", || {
        let limit = daemon.limit(user(6).0)?;
        (limits(&limit) == (64, None)).then_some(())
    });
    ordinary.grow(16 << 10);
    assert!(ordinary.survived());
}

#[test]
fn a_reload_that_lowers_a_limit_has_the_configured_grace() {
    if !privileged() {
        return;
    }
    let (uid, _) = user(3);
    let daemon = Daemon::start(&configured(uid, 300), &[]);
    let mut hog = Hog::start(uid);
    hog.grow(100 << 10);
    assert!(hog.survived());
    let reload = |text: String| {
        daemon.write_config("oomd.toml", &format!("{text}[machine]\nenabled = false\n"));
        daemon.request(&Request::Reload)
    };
    let reply = reload(configured(uid, 64));
    let Reply::Reloaded(Reloaded { changes, .. }) = reply else { panic!("{reply:?}") };
    assert!(changes[0].starts_with(&format!("uid {uid}: limit 64.0 MiB, in ")), "{changes:?}");
    assert_eq!(limits(&daemon.limit(uid).unwrap()), (300, Some(64)));
    assert!(hog.is_alive());
    reload(format!("grace-s = 0\n{}", configured(uid, 63)));
    hog.died();
    assert_eq!(daemon.ended(uid).hard_bytes, 63 * MIB);
}

#[test]
fn a_group_returns_to_its_configured_limit_and_an_exempt_user_is_shown_without_one() {
    if !privileged() {
        return;
    }
    let (uid, account) = user(4);
    let text = "[[limit]]\nname = \"gracestudents\"\nusers = [62885, 62886]\nhard = \"100M\"\n";
    let daemon = Daemon::start(&(configured(uid, 64) + text), &[]);
    let group = || {
        let Reply::Limits { limits } = daemon.request(&Request::ListLimits) else { panic!() };
        limits.into_iter().find(|limit| limit.group.is_some()).unwrap()
    };
    let of_group = group().account;
    assert_eq!(daemon.request(&set(of_group, 500, None)), Reply::Done);
    let clear = |account| Request::ClearLimit { account, grace_s: None };
    assert_eq!(daemon.request(&clear(of_group)), Reply::Done);
    assert_eq!(limits(&group()), (100, None));
    let Reply::Error { message } = daemon.request(&clear(of_group)) else { panic!() };
    assert!(message.contains("none was set at run time"), "{message}");
    let hard_bytes = memory_ledger::limit::NO_LIMIT_BYTES;
    let none = Request::SetLimit { account, hard_bytes, soft_bytes: None, grace_s: None };
    assert_eq!(daemon.request(&none), Reply::Done);
    let mut hog = Hog::start(uid);
    hog.grow(120 << 10);
    assert!(hog.survived());
    let limit = daemon.limit(uid).unwrap();
    assert!(limit.details.exempt && limit.used_bytes > 120 * MIB, "{limit:?}");
    let layers: Vec<&str> = limit.details.layers.iter().map(|it| it.source.as_str()).collect();
    assert_eq!(layers, ["runtime", "config"]);
}
