//! Upgrades of the daemon while it enforces limits.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::oomd::{AccountRef, KilledBy, Outcome, Reply, Request, Why};
use control::{Client, Uid};
use support::daemon::Daemon;
use support::hog::Hog;
use support::leaser::Leaser;
use support::place::Place;
use support::{MIB, eventually, privileged};
use test_support::programs::built;

/// How a stand-in for the next program fails: see the program `peer` of the end-to-end tests.
const FAILING_UPGRADE: &str = "HEADROOM_FAILING_UPGRADE";

fn upgrade_to(daemon: &Daemon, program: Option<PathBuf>) -> Reply {
    daemon.request(&Request::Upgrade { program })
}

/// Upgrades to the program that runs already. Returns the number of kills that were taken over.
fn upgrade(daemon: &Daemon) -> u32 {
    let pid = daemon.pid();
    match upgrade_to(daemon, None) {
        Reply::Upgraded { kills, .. } => {
            assert_eq!(daemon.status().pid, pid);
            kills
        }
        other => panic!("no upgrade: {other:?}"),
    }
}

fn refusal(daemon: &Daemon, program: &Path) -> String {
    match upgrade_to(daemon, Some(program.to_owned())) {
        Reply::Error { message } => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn stand_in() -> PathBuf {
    built("e2e", "peer")
}

/// A process exceeds the limit of its user and is killed.
fn expect_enforced(uid: Uid) {
    let mut hog = Hog::start(uid);
    hog.grow(96 * 1024);
    hog.died();
}

/// Allocates until it is killed. Without a daemon the kernel kills when the excess is certain, as
/// it may not be at the first page over the limit.
fn exceed(hog: &mut Hog) {
    let survived = (0..20).all(|_| {
        hog.grow(16 * 1024);
        hog.survived()
    });
    assert!(!survived, "the limit is not enforced");
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

/// A kill is in flight while the daemon is upgraded. It keeps its record until the victim exits.
fn continue_a_kill(daemon: &Daemon, uid: Uid) {
    daemon.set_limit(uid, 64 * MIB);
    let mut victim = HeldHog::start(uid);
    victim.0.begin_share(160 * 1024);
    victim.wait_for_kill();
    eventually("the kill is on record", || daemon.why(uid).first().map(drop));
    // This one writes the state to the file that `HEADROOM_WRITE_STATE` names, if it does.
    let message = refusal(daemon, &stand_in());
    assert!(message.contains("cannot continue with the state: this is not the"), "{message}");
    assert_eq!(upgrade(daemon), 1);
    let kills = kills_of(daemon, uid);
    assert_eq!(kills.len(), 1, "{kills:#?}");
    assert_eq!(kills[0].victim.as_ref().map(|victim| victim.pid), Some(victim.0.pid()));
    victim.release();
    let why = daemon.ended(uid);
    // Its deadline counts from the signal, so it can pass on a busy machine.
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. } | Outcome::Stuck { .. }), "{why:#?}");
    expect_enforced(uid);
    eventually("the next kill is on record", || (kills_of(daemon, uid).len() == 2).then_some(()));
}

/// Decisions with a victim.
fn kills_of(daemon: &Daemon, uid: Uid) -> Vec<Why> {
    let why = daemon.why(uid).into_iter();
    why.filter(|why| why.victim.is_some()).collect()
}

#[test]
fn a_kill_in_flight_continues_with_pinned_accounts() {
    let Some(place) = Place::new() else { return };
    continue_a_kill(&place.daemon("", &[]), Uid(63010));
}

#[test]
fn a_kill_in_flight_continues_without_pinned_accounts() {
    if !privileged() {
        return;
    }
    continue_a_kill(&Daemon::start("", &["--notifier=bpf"]), Uid(63011));
}

#[test]
fn a_kill_in_flight_continues_without_the_notifier() {
    if !privileged() {
        return;
    }
    continue_a_kill(&Daemon::start("", &["--notifier=proc"]), Uid(63012));
}

#[test]
fn limits_leases_and_decisions_continue() {
    let Some(place) = Place::new() else { return };
    let (by_config, uid) = (Uid(63020), Uid(63021));
    let config = format!("[[limit]]\nuser = {by_config}\nhard = \"64M\"\n");
    let daemon = place.daemon(&config, &[]);
    daemon.set_limit(uid, 64 * MIB);
    expect_enforced(uid);
    let why = daemon.ended(uid);
    let lessee = Uid(63022);
    daemon.set_limit(lessee, 256 * MIB);
    let mut client = Leaser::start(lessee, &daemon.lease_socket());
    let leased = daemon.limit(lessee).unwrap();
    assert_eq!(leased.leaseholders, 1);
    for _ in 0..3 {
        upgrade(&daemon);
        assert_eq!(daemon.why(uid), std::slice::from_ref(&why));
        for limited in [by_config, uid] {
            assert_eq!(daemon.limit(limited).unwrap().hard_bytes, 64 * MIB);
        }
        let limit = daemon.limit(lessee).unwrap();
        assert_eq!(limit.leaseholders, 1);
        let difference = limit.leased_bytes.abs_diff(leased.leased_bytes);
        assert!(difference < MIB / 16, "{limit:?} {leased:?}");
        expect_enforced(by_config);
    }
    assert!(client.is_alive());
    assert_eq!(daemon.status().kills, 4, "counted over all upgrades");
    expect_killed_by_kernel(&daemon, uid, why.id);
}

/// The kernel program kills for the account. At the first pages over the limit it may leave that to
/// the daemon: pages that a fork has copied are not certain until they are measured.
fn expect_killed_by_kernel(daemon: &Daemon, uid: Uid, last: u64) {
    for kill in 1..=5 {
        expect_enforced(uid);
        let why = eventually("the next decision", || daemon.why(uid).get(kill).cloned());
        assert!(why.id > last, "{why:#?}");
        if why.killer == Some(KilledBy::Kernel) {
            return;
        }
    }
    panic!("the kernel program kills no more: {:#?}", daemon.why(uid));
}

#[test]
fn limits_set_at_runtime_continue_without_pinned_accounts() {
    if !privileged() {
        return;
    }
    let (roots, own) = (Uid(63030), Uid(63031));
    let daemon = Daemon::start("", &["--notifier=bpf"]);
    let account = AccountRef::user(own);
    let set =
        |mib| Request::SetLimit { account, hard_bytes: mib * MIB, soft_bytes: None, grace_s: None };
    daemon.set_limit(roots, 64 * MIB);
    daemon.set_limit(own, 128 * MIB);
    assert_eq!(daemon.request_as(own, &set(64)), Reply::Done);
    upgrade(&daemon);
    expect_enforced(roots);
    expect_enforced(own);
    assert!(matches!(daemon.request_as(own, &set(200)), Reply::Error { .. }));
    assert_eq!(
        daemon.request_as(own, &Request::ClearLimit { account, grace_s: None }),
        Reply::Done
    );
    assert_eq!(daemon.limit(own).unwrap().hard_bytes, 128 * MIB);
}

#[test]
fn a_client_that_waits_in_the_socket_is_served_by_the_next_program() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &["--notifier=proc"]);
    let socket = daemon.socket();
    let mut before = Client::connect(&socket).unwrap();
    let calls = std::thread::spawn(move || {
        for _ in 0..200 {
            let mut client = Client::connect(&socket).expect("it listens throughout");
            // A connection that was accepted before the upgrade is closed by it.
            let _ = client.call::<Reply>(&Request::Status);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    for _ in 0..3 {
        upgrade(&daemon);
    }
    calls.join().unwrap();
    assert!(before.call::<Reply>(&Request::Status).is_err(), "it is closed");
}

#[test]
fn only_root_upgrades_and_only_to_a_program_of_root() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &["--notifier=proc"]);
    let reply = daemon.request_as(Uid(63040), &Request::Upgrade { program: None });
    assert!(matches!(&reply, Reply::Error { message } if message.contains("only root may")));
    let file = tempfile::NamedTempFile::new().unwrap();
    for (mode, expected) in [
        (0o757, "users other than its owner may write to it"),
        (0o644, "not an executable file"),
        (0o755, "cannot start it to verify the state"),
    ] {
        std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).unwrap();
        let message = refusal(&daemon, file.path());
        assert!(message.contains(expected), "{mode:o}: {message}");
    }
    let message = refusal(&daemon, Path::new("/missing/program"));
    assert!(message.contains("/missing/program: cannot open it"), "{message}");
    let message = refusal(&daemon, &stand_in());
    assert!(message.contains("cannot continue with the state: this is not the"), "{message}");
    upgrade(&daemon);
}

/// A daemon whose upgrade to [`stand_in`] fails.
fn failing(place: &Place, how: &'static str) -> Daemon {
    let arguments = place.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Daemon::start_prepared("", &arguments, move |command| _ = command.env(FAILING_UPGRADE, how))
}

#[test]
fn a_check_that_takes_too_long_or_proves_nothing_ends_the_upgrade() {
    for (how, expected) in [
        ("check-hangs", "it did not verify the state within 8 s"),
        ("check-is-silent", "it did not verify the state (exit status: 0)"),
    ] {
        let Some(place) = Place::new() else { return };
        let daemon = failing(&place, how);
        let uid = Uid(63050);
        daemon.set_limit(uid, 64 * MIB);
        // In force during the check as well.
        let killed = std::thread::spawn(move || expect_enforced(uid));
        let message = refusal(&daemon, &stand_in());
        assert!(message.contains(expected), "{message}");
        assert!(message.ends_with("the running program continues"), "{message}");
        killed.join().unwrap();
        expect_enforced(uid);
        eventually("both are on record", || (daemon.why(uid).len() == 2).then_some(()));
    }
}

#[test]
fn limits_hold_if_the_daemon_ends_during_an_upgrade() {
    for how in ["check-hangs", "program-exits"] {
        let Some(place) = Place::new() else { return };
        let mut daemon = failing(&place, how);
        let uid = Uid(63060);
        daemon.set_limit(uid, 64 * MIB);
        let mut hog = Hog::start(uid);
        hog.grow(16 * 1024);
        hog.survived();
        let mut client = Client::connect(&daemon.socket()).unwrap();
        let request = Request::Upgrade { program: Some(stand_in()) };
        let upgrade = std::thread::spawn(move || client.call::<Reply>(&request));
        if how == "check-hangs" {
            let check = eventually("the check runs", || child_of(daemon.pid()));
            daemon.die();
            rustix::process::kill_process(check, rustix::process::Signal::KILL).unwrap();
        }
        assert!(upgrade.join().unwrap().is_err(), "{how}: no reply");
        exceed(&mut hog);
        daemon.die();
        daemon.start_again("");
        assert_eq!(daemon.limit(uid).unwrap().hard_bytes, 64 * MIB);
        eventually("the kill is on record", || daemon.why(uid).first().map(drop));
    }
}

fn child_of(pid: u32) -> Option<rustix::process::Pid> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).ok()?;
    let child = children.split_ascii_whitespace().next()?.parse().ok()?;
    rustix::process::Pid::from_raw(child)
}

#[test]
fn a_program_of_a_hook_ends_before_an_upgrade() {
    if !privileged() {
        return;
    }
    let config = "[hooks]\nafter = [\"/bin/sleep\", \"3\"]\n";
    let daemon = Daemon::start(config, &["--notifier=proc"]);
    let uid = Uid(63070);
    daemon.set_limit(uid, 64 * MIB);
    expect_enforced(uid);
    daemon.ended(uid);
    let refused = eventually("the hook is started", || match upgrade_to(&daemon, None) {
        Reply::Error { message } => Some(message),
        _ => None,
    });
    assert!(refused.contains("a program of a hook runs"), "{refused}");
    eventually("the hook ends", || {
        matches!(upgrade_to(&daemon, None), Reply::Upgraded { .. }).then_some(())
    });
}
