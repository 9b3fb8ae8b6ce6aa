//! State that survives the daemon, and state that does not.

mod support;

use control::Uid;
use control::oomd::{AccountRef, KilledBy, Outcome, Reply, Request, UserLimit, Why};
use support::daemon::Daemon;
use support::hog::Hog;
use support::place::{Place, option};
use support::{MIB, eventually, privileged};

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
    assert!(notices[0].contains("no limit holds while a killed daemon is replaced"), "{notices:?}");
    daemon.set_limit(Uid(62870), 64 * MIB);
    let mut hog = Hog::start(Uid(62870));
    hog.grow(96 * 1024);
    dies(&mut hog);
}

/// A hog whose exit is held until this is released. Its memory is shared, so `process_mrelease`
/// does not release it.
struct HeldHog(Hog);

impl HeldHog {
    fn start(uid: Uid) -> Self {
        let hog = Hog::start(uid);
        let (pid, options) = (hog.pid() as i32, libc::PTRACE_O_TRACEEXIT);
        // SAFETY: traces a process of ours; no memory is passed.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, options) }, 0);
        Self(hog)
    }

    /// Waits until it is killed and stops at its exit.
    fn wait_for_kill(&mut self) {
        let pid = self.0.pid() as i32;
        let status = eventually("the hog stops at its exit", || {
            let mut status = 0;
            // SAFETY: writes the status, which is ours.
            let changed =
                unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL | libc::WNOHANG) };
            (changed == pid).then_some(status)
        });
        assert_eq!(status >> 8, libc::SIGTRAP | (libc::PTRACE_EVENT_EXIT << 8), "{status:x}");
    }

    fn release(mut self) {
        assert_eq!(self.detach(), 0);
        self.0.died();
    }

    fn detach(&self) -> libc::c_long {
        // SAFETY: as above.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0.pid() as i32, 0, 0) }
    }
}

/// A process that is held cannot exit, which the hog waits for when it is dropped.
impl Drop for HeldHog {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Decisions with a victim.
fn kills_of(daemon: &Daemon, uid: Uid) -> Vec<Why> {
    let why = daemon.why(uid).into_iter();
    why.filter(|why| why.victim.is_some()).collect()
}

/// The next daemon kills no other process for the victim of the one before, and records the
/// outcome.
#[test]
fn a_kill_in_flight_is_awaited_by_the_next_daemon() {
    let Some(place) = Place::new() else { return };
    let (mut daemon, uid) = (place.daemon("", &[]), Uid(62880));
    let set = |daemon: &Daemon| daemon.set_limit(uid, 64 * MIB);
    set(&daemon);
    let mut victim = HeldHog::start(uid);
    victim.0.begin_share(160 * 1024);
    victim.wait_for_kill();
    eventually("the kill is on record", || daemon.why(uid).first().map(drop));
    let mut innocent = Hog::start(uid);
    innocent.grow(8 * 1024);
    innocent.survived();
    daemon.die();
    daemon.start_again("");
    set(&daemon);
    let kills = kills_of(&daemon, uid);
    assert_eq!(kills.len(), 1, "{kills:#?}");
    assert_eq!(kills[0].victim.as_ref().map(|victim| victim.pid), Some(victim.0.pid()));
    assert!(innocent.is_alive());
    victim.release();
    let why = daemon.ended(uid);
    // Its deadline counts from the signal, so it can pass on a busy machine.
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. } | Outcome::Stuck { .. }), "{why:#?}");
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    hog.died();
    let is_recorded =
        |kill: &Why| kill.victim.as_ref().is_some_and(|victim| victim.pid == hog.pid());
    eventually("the next kill is on record", || {
        kills_of(&daemon, uid).iter().any(is_recorded).then_some(())
    });
}

/// Root and a user set limits; the daemon is killed, `between` happens, and another one starts.
fn continue_limits(mut daemon: Daemon, uids: [Uid; 2], between: impl FnOnce()) -> Daemon {
    let [roots, own] = uids;
    let account = AccountRef::user(own);
    let set =
        |mib| Request::SetLimit { account, hard_bytes: mib * MIB, soft_bytes: None, grace_s: None };
    daemon.set_limit(roots, 64 * MIB);
    daemon.set_limit(own, 128 * MIB);
    assert_eq!(daemon.request_as(own, &set(64)), Reply::Done);
    let file = daemon.socket().with_file_name("limits");
    let is_written = |uid: Uid| {
        let limits = std::fs::read_to_string(&file).ok()?;
        limits.contains(&uid.to_string()).then_some(())
    };
    // Both changes may be in two versions of the file, a second apart.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    eventually("the limits are written", || uids.into_iter().find_map(is_written));
    daemon.die();
    between();
    daemon.start_again("");
    for uid in uids {
        assert_eq!(daemon.limit(uid).unwrap().hard_bytes, 64 * MIB);
        let mut hog = Hog::start(uid);
        hog.grow(96 * 1024);
        hog.died();
    }
    assert!(matches!(daemon.request_as(own, &set(200)), Reply::Error { .. }));
    let clear = Request::ClearLimit { account, grace_s: None };
    assert_eq!(daemon.request_as(own, &clear), Reply::Done);
    assert_eq!(daemon.limit(own).unwrap().hard_bytes, 128 * MIB);
    daemon
}

#[test]
fn limits_set_at_runtime_continue_without_pinned_accounts() {
    if !privileged() {
        return;
    }
    for (notifier, uid) in [("--notifier=bpf", 62890), ("--notifier=proc", 62892)] {
        let daemon = Daemon::start("", &[notifier]);
        let mut daemon = continue_limits(daemon, [Uid(uid), Uid(uid + 1)], || ());
        let file = daemon.socket().with_file_name("limits");
        assert!(file.exists());
        // An orderly shutdown ends limits that were set at runtime.
        daemon.stop();
        assert!(!file.exists());
    }
}

#[test]
fn limits_set_at_runtime_continue_under_another_version_of_the_bpf_programs() {
    let Some(place) = Place::new() else { return };
    let other = place.pins().join("0123456789abcdef");
    let become_another_version = || {
        let versions = std::fs::read_dir(place.pins()).unwrap();
        let only = versions.map(|entry| entry.unwrap().path()).next().unwrap();
        std::fs::rename(only, &other).unwrap();
    };
    let daemon = place.daemon("", &[]);
    let daemon = continue_limits(daemon, [Uid(62900), Uid(62901)], become_another_version);
    assert!(!other.exists(), "its program enforces no more");
    drop(daemon);
}
