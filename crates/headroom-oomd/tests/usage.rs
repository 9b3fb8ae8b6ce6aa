//! Actual usage decides, not the sum of resident sets: shared pages count once, and page tables and
//! files that are held open count as well.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use control::oomd::{HeldMemory, Reply, Request};
use control::{Client, Uid};
use support::cgroup::Cgroup;
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, eventually, make_holder, privileged};

/// How long an account within its limit is observed: several measurements.
const CALM: Duration = Duration::from_millis(1500);

/// Starts daemons with this limit for the user, one after the other: with the notifier and without.
fn daemons(uid: Uid, limit_mib: u64) -> impl Iterator<Item = Daemon> {
    let backends: &[&[&str]] = if privileged() { &[&[], &["--notifier", "proc"]] } else { &[] };
    backends.iter().map(move |arguments| {
        let daemon = Daemon::start("", arguments);
        daemon.set_limit(uid, limit_mib * MIB);
        daemon
    })
}

/// Waits until the account's measured usage is in this range, and checks that no process is killed.
fn settles_at(daemon: &Daemon, uid: Uid, mib: std::ops::Range<u64>) {
    let used = || daemon.limit(uid).unwrap().used_bytes / MIB;
    eventually("the account is corrected", || mib.contains(&used()).then_some(()));
    std::thread::sleep(CALM);
    assert!(mib.contains(&used()), "{} MiB in use, {mib:?} expected", used());
    assert_eq!(daemon.why(uid), [], "{:#?}", daemon.log());
}

#[test]
fn a_process_that_forks_is_not_killed_for_pages_that_it_shares() {
    const UID: Uid = Uid(62300);
    for daemon in daemons(UID, 400) {
        let mut hog = Hog::start(UID);
        hog.grow(220 << 10);
        assert!(hog.survived());
        hog.fork(1);
        settles_at(&daemon, UID, 200..260);
        hog.fork(6);
        settles_at(&daemon, UID, 200..260);
        assert!(hog.is_alive());
    }
}

#[test]
fn a_child_that_writes_to_shared_pages_is_killed_though_no_resident_set_changes() {
    const UID: Uid = Uid(62301);
    for daemon in daemons(UID, 300) {
        let mut hog = Hog::start(UID);
        hog.grow(180 << 10);
        assert!(hog.survived());
        hog.fork(1);
        settles_at(&daemon, UID, 170..220);
        hog.break_sharing();
        let why = daemon.ended(UID);
        assert!(why.used_bytes > 300 * MIB && why.used_bytes < 420 * MIB, "{why:#?}");
    }
}

#[test]
fn shared_memory_of_six_processes_counts_once() {
    const UID: Uid = Uid(62302);
    for daemon in daemons(UID, 256) {
        let mut hog = Hog::start(UID);
        hog.share(120 << 10, 5);
        settles_at(&daemon, UID, 110..160);
        // Memory allocated on top of it is charged.
        hog.grow(180 << 10);
        hog.died();
        let why = daemon.ended(UID);
        assert!(why.used_bytes > 256 * MIB && why.used_bytes < 330 * MIB, "{why:#?}");
    }
}

#[test]
fn shared_memory_that_is_too_much_is_not_excused() {
    const UID: Uid = Uid(62303);
    for daemon in daemons(UID, 100) {
        let mut hog = Hog::start(UID);
        hog.begin_share(150 << 10);
        hog.died();
        assert!(daemon.why(UID)[0].used_bytes > 100 * MIB);
    }
}

#[test]
fn a_file_of_memory_that_is_held_open_counts() {
    const UID: Uid = Uid(62304);
    for daemon in daemons(UID, 100) {
        let mut hog = Hog::start(UID);
        hog.write_memfd(60 << 10);
        assert!(hog.survived());
        settles_at(&daemon, UID, 55..75);
        hog.write_memfd(60 << 10);
        hog.died();
        assert!(daemon.ended(UID).used_bytes > 100 * MIB);
    }
}

#[test]
fn lazily_freed_memory_does_not_count() {
    const UID: Uid = Uid(62306);
    for daemon in daemons(UID, 256) {
        let mut idle = Hog::start(UID);
        idle.grow(100 << 10);
        assert!(idle.survived());
        idle.free_lazily();
        let mut hog = Hog::start(UID);
        hog.grow(140 << 10);
        assert!(hog.survived());
        hog.free_lazily();
        settles_at(&daemon, UID, 0..20);
        // As much as the limit allows, with what the kernel can take.
        hog.grow(200 << 10);
        assert!(hog.survived());
        settles_at(&daemon, UID, 200..220);
        assert!(idle.is_alive());
        // It is used again; the process that grows is the victim.
        hog.grow(100 << 10);
        hog.died();
        assert!(daemon.ended(UID).used_bytes > 256 * MIB && idle.is_alive());
    }
}

#[test]
fn lazily_freed_memory_counts_once_it_is_used_again() {
    const UID: Uid = Uid(62307);
    for daemon in daemons(UID, 256) {
        let mut hog = Hog::start(UID);
        hog.grow(150 << 10);
        assert!(hog.survived());
        hog.free_lazily();
        hog.grow(200 << 10);
        assert!(hog.survived());
        settles_at(&daemon, UID, 200..220);
        hog.touch_again();
        hog.died();
        assert!(daemon.ended(UID).used_bytes > 256 * MIB);
    }
}

#[test]
fn the_memory_controller_counts_files_that_no_process_holds() {
    const UID: Uid = Uid(62305);
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &[]);
    daemon.set_limit(UID, 200 * MIB);
    let mut hog = Hog::start(UID);
    let Some(slice) = Cgroup::user_slice(UID) else {
        hog.grow(195 << 10);
        assert!(hog.survived());
        let source = || daemon.limit(UID).unwrap().usage_source;
        let found = || source().filter(|source| source != "resident sets");
        let found = eventually("the account is measured", found);
        assert_eq!(found, "proportional set sizes", "there is no memory controller");
        return;
    };
    slice.take(&hog);
    hog.grow(60 << 10);
    assert!(hog.survived());
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    slice.write_file(file.path(), 60);
    settles_at(&daemon, UID, 118..135);
    let source = daemon.limit(UID).unwrap().usage_source;
    assert_eq!(source.as_deref(), Some("memory controller"));
    assert_eq!(daemon.status().usage_sources.get("memory controller"), Some(&1));
    // A process of the user outside the slice: its memory is not in the slice's charge.
    let mut outside = Hog::start(UID);
    outside.grow(20 << 10);
    assert!(outside.survived());
    settles_at(&daemon, UID, 78..90);
    let source = daemon.limit(UID).unwrap().usage_source;
    assert_ne!(source.as_deref(), Some("memory controller"));
    drop(outside);
    slice.write_file(file.path(), 100);
    hog.grow(60 << 10);
    hog.died();
    let why = daemon.ended(UID);
    assert!(why.used_bytes > 200 * MIB && why.used_bytes < 260 * MIB, "{why:#?}");
    // The memory of the file is charged without any process.
    eventually("the account is measured", || {
        (daemon.limit(UID).unwrap().used_bytes > 99 * MIB).then_some(())
    });
    drop((file, hog));
}

#[test]
fn memory_that_another_daemon_holds_counts_until_its_connection_ends() {
    const UID: Uid = Uid(62310);
    for daemon in daemons(UID, 256) {
        let mut hog = Hog::start(UID);
        hog.grow(30 << 10);
        let mut reporter = Client::connect(&daemon.socket()).unwrap();
        let mut report = |mib: u64| {
            let held = vec![HeldMemory { uid: UID, pid: None, bytes: mib * MIB, file: None }];
            reporter.call::<Reply>(&Request::ReportHeldMemory { held }).unwrap()
        };
        assert_eq!(report(50), Reply::Done);
        settles_at(&daemon, UID, 80..100);
        assert_eq!(report(80), Reply::Done);
        settles_at(&daemon, UID, 110..130);
        drop(reporter);
        settles_at(&daemon, UID, 25..50);
        assert!(hog.is_alive());
    }
}

#[test]
fn the_process_for_which_most_memory_is_held_is_the_victim() {
    const UID: Uid = Uid(62311);
    for daemon in daemons(UID, 256) {
        let (mut larger, mut holder) = (Hog::start(UID), Hog::start(UID));
        larger.grow(60 << 10);
        holder.grow(20 << 10);
        // Growth weighs more than size for some seconds.
        std::thread::sleep(Duration::from_secs(5));
        let mut reporter = Client::connect(&daemon.socket()).unwrap();
        let pid = Some(holder.pid());
        let held = vec![HeldMemory { uid: UID, pid, bytes: 200 * MIB, file: None }];
        reporter.call::<Reply>(&Request::ReportHeldMemory { held }).unwrap();
        holder.died();
        assert_eq!(daemon.ended(UID).victim.unwrap().pid, holder.pid());
        assert!(larger.is_alive());
    }
}

/// Runs a process that takes memory which no fault shows, and waits until it was killed.
fn is_killed_for(program: &Path, kind: &str, mib: u64, uid: Uid) {
    let mut command = Command::new(program);
    command.args([kind, "held", &mib.to_string(), "/dev/shm", &uid.to_string()]);
    let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let ended = eventually(&format!("{kind} of {uid} is killed"), || holder.try_wait().unwrap());
    assert_eq!(ended.signal(), Some(libc::SIGKILL), "{kind} of user {uid}: {ended}");
}

#[test]
fn each_kind_of_unseen_memory_is_found_right_after_a_kill_for_another_one() {
    const UIDS: [Uid; 2] = [Uid(62312), Uid(62313)];
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("holder");
    make_holder(&program);
    let daemon = Daemon::start("", &[]);
    UIDS.iter().for_each(|uid| daemon.set_limit(*uid, 64 * MIB));
    let sequence = [("memfd", 0), ("page tables", 0), ("memfd", 1), ("page tables", 1)];
    for round in 0..3 {
        for (kind, user) in sequence {
            is_killed_for(&program, kind, 128, UIDS[user]);
        }
        // In the other order, and by two users in turn.
        for (kind, user) in [("page tables", 0), ("memfd", 1), ("page tables", 1), ("memfd", 0)] {
            is_killed_for(&program, kind, 128, UIDS[user]);
        }
        let killed = daemon.why(UIDS[0]).iter().filter(|why| why.victim.is_some()).count();
        assert_eq!(killed, 4 * (round + 1));
    }
}
