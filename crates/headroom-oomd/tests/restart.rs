//! State that survives the daemon, and state that does not.

mod support;

use control::Uid;
use control::oomd::{AccountRef, KilledBy, Outcome, Reply, Request, UserLimit};
use support::daemon::Daemon;
use support::hog::Hog;
use support::place::{Place, option};
use support::{MIB, eventually};

const UID: Uid = Uid(62810);

fn dies(hog: &mut Hog) {
    eventually("the process dies", || (!hog.is_alive()).then_some(()));
}

#[test]
fn limits_hold_without_the_daemon_and_its_successor_records_the_kills() {
    let Some(place) = Place::new() else { return };
    let mut daemon = place.daemon("", &[]);
    daemon.set_limit(UID, 64 * MIB);
    let mut hog = Hog::start(UID);
    hog.grow(16 * 1024);
    hog.survived();
    assert_eq!(daemon.why(UID), []);

    daemon.die();
    hog.grow(80 * 1024);
    dies(&mut hog);

    daemon.start_again("");
    let why = daemon.ended(UID);
    assert_eq!(why.killer, Some(KilledBy::Kernel));
    assert_eq!(why.victim.as_ref().map(|victim| victim.pid), Some(hog.pid()));
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");
    // The next process that exceeds the limit is killed as usual.
    let mut next = Hog::start(UID);
    next.grow(80 * 1024);
    dies(&mut next);
    eventually("both are on record", || (daemon.why(UID).len() == 2).then_some(()));
}

#[test]
fn accounts_and_limits_are_the_same_after_a_restart() {
    let Some(place) = Place::new() else { return };
    let (by_config, by_root, own) = (Uid(62820), Uid(62821), Uid(62822));
    let config = format!(
        "[[limit]]\nuser = {by_config}\nhard = \"256M\"\n[[limit]]\nuser = {own}\nhard = \"200M\"\n"
    );
    let mut daemon = place.daemon(&config, &[]);
    let set = |uid, mib: u64, soft: u64| Request::SetLimit {
        account: AccountRef::user(uid),
        hard_bytes: mib * MIB,
        soft_bytes: Some(soft * MIB),
        grace_s: None,
    };
    assert_eq!(daemon.request(&set(by_root, 128, 99)), Reply::Done);
    assert_eq!(daemon.request_as(own, &set(own, 100, 77)), Reply::Done);
    let mut hogs: Vec<Hog> = [by_config, by_root, own].map(Hog::start).into();
    for hog in &mut hogs {
        hog.grow(24 * 1024);
        hog.survived();
    }
    let limits = |daemon: &Daemon| -> Vec<UserLimit> {
        [by_config, by_root, own].map(|uid| daemon.limit(uid).unwrap()).into()
    };
    let before = limits(&daemon);
    daemon.die();
    daemon.start_again(&config);
    for (before, after) in before.iter().zip(limits(&daemon)) {
        let properties = |limit: &UserLimit| {
            (limit.account.uid, limit.hard_bytes, limit.soft_bytes, limit.source.clone())
        };
        assert_eq!(properties(before), properties(&after));
        assert!(after.used_bytes >= 24 * MIB, "{after:?}");
        assert!(after.used_bytes.abs_diff(before.used_bytes) <= MIB, "{before:?} {after:?}");
        assert!(after.peak_bytes >= before.peak_bytes, "{before:?} {after:?}");
    }
    // The precedence of limits is the same as before the restart.
    assert!(matches!(daemon.request_as(own, &set(own, 300, 100)), Reply::Error { .. }));
    assert_eq!(
        daemon.request_as(
            own,
            &Request::ClearLimit { account: AccountRef::user(own), grace_s: None }
        ),
        Reply::Done
    );
    let freed = daemon.limit(own).unwrap();
    assert_eq!((freed.hard_bytes, freed.source.as_str()), (200 * MIB, "config"));
}

#[test]
fn a_limit_that_the_configuration_has_no_more_goes_with_the_restart() {
    let Some(place) = Place::new() else { return };
    let uid = Uid(62830);
    let mut daemon = place.daemon(&format!("[[limit]]\nuser = {uid}\nhard = \"64M\"\n"), &[]);
    daemon.die();
    daemon.start_again("");
    assert_eq!(daemon.limit(uid), None);
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    hog.survived();
    assert!(hog.is_alive() && daemon.why(uid).is_empty());
}

#[test]
fn decisions_are_remembered_after_a_restart_and_count_on() {
    let Some(place) = Place::new() else { return };
    let uid = Uid(62840);
    let mut daemon = place.daemon("", &[]);
    daemon.set_limit(uid, 64 * MIB);
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    dies(&mut hog);
    let first = daemon.ended(uid);
    daemon.stop();
    daemon.start_again("");
    assert_eq!(daemon.why(uid), std::slice::from_ref(&first));
    // An orderly shutdown ends limits that were set at runtime.
    assert_eq!(daemon.limit(uid), None);
    daemon.set_limit(uid, 64 * MIB);
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    dies(&mut hog);
    eventually("the second is on record", || {
        daemon.why(uid).get(1).filter(|why| why.id == first.id + 1).map(drop)
    });
}

#[test]
fn an_orderly_exit_ends_all_limits_unless_requested() {
    let Some(place) = Place::new() else { return };
    let uid = Uid(62850);
    let mut daemon = place.daemon("", &[]);
    daemon.set_limit(uid, 64 * MIB);
    assert!(place.pins().exists());
    daemon.stop();
    assert!(!place.pins().exists(), "nothing is left pinned");
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    hog.survived();
    assert!(hog.is_alive());
    drop(hog);

    let mut daemon = place.daemon("", &["--keep-limits"]);
    daemon.set_limit(uid, 64 * MIB);
    daemon.stop();
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    dies(&mut hog);
    assert!(memory_watch::remove_left_pins(&place.pins()).unwrap());
    assert!(!place.pins().exists());
    assert!(!memory_watch::remove_left_pins(&place.pins()).unwrap());
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    hog.survived();
    assert!(hog.is_alive());
}

#[test]
fn a_second_daemon_leaves_the_pins_of_the_first_alone() {
    let Some(place) = Place::new() else { return };
    let first = place.daemon("", &[]);
    first.set_limit(Uid(62860), 64 * MIB);
    let second = place.daemon("", &[]);
    let degraded = second.status().degraded;
    assert!(degraded.iter().any(|what| what.contains("another daemon uses it")), "{degraded:?}");
    assert_eq!(second.limit(Uid(62860)), None);
    let (status, _, _) = second.end(rustix::process::Signal::TERM);
    assert!(status.success() && place.pins().exists());
    let error = memory_watch::remove_left_pins(&place.pins()).unwrap_err().to_string();
    assert!(error.contains("another daemon uses it"), "{error}");
}

#[test]
fn without_a_bpf_filesystem_the_daemon_works_and_reports_the_loss() {
    let Some(place) = Place::new() else { return };
    let elsewhere = option("--bpf-pin-dir", &place.dir.path().join("pins"));
    let daemon = Daemon::start("", &["--notifier=bpf", &elsewhere]);
    let degraded = daemon.status().degraded;
    let notices: Vec<_> =
        degraded.iter().filter(|what| what.contains("is not on a BPF file system")).collect();
    assert_eq!(notices.len(), 1, "{degraded:?}");
    assert!(notices[0].contains("limits end with a daemon that is killed"), "{notices:?}");
    daemon.set_limit(Uid(62870), 64 * MIB);
    let mut hog = Hog::start(Uid(62870));
    hog.grow(96 * 1024);
    dies(&mut hog);
}
