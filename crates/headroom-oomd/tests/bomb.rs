//! Fork bombs of limited users, with a bound on their size.

mod support;

use std::os::unix::process::CommandExt;
use std::process::Command;

use control::Uid;
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, eventually, privileged};

const UID: Uid = Uid(62_705);
const SLOW_UID: Uid = Uid(62_706);
const JOBS_UID: Uid = Uid(62_707);
/// 127 processes in total.
const GENERATIONS: u32 = 6;

/// Kills all processes of this user on drop.
struct Cleared(Uid);

impl Drop for Cleared {
    fn drop(&mut self) {
        // Without privileges, a pid of -1 means all processes of the same user.
        let _ = Command::new("sh").args(["-c", "kill -KILL -1"]).uid(self.0.0).status();
    }
}

/// Number of processes of a user, zombies excluded.
fn alive(uid: Uid) -> usize {
    let of_them = |entry: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(entry.ok()?.path().join("status")).ok()?;
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
        let theirs = value("Uid:")?.split_whitespace().next()? == uid.to_string();
        (theirs && !value("State:")?.trim().starts_with(['Z', 'X'])).then_some(())
    };
    std::fs::read_dir("/proc").unwrap().filter_map(of_them).count()
}

#[test]
fn a_fork_bomb_is_killed_as_a_whole_and_alone() {
    if !privileged() {
        return;
    }
    // The notifier would kill the first processes one by one, before a fork bomb can be detected.
    let daemon = Daemon::start("", &["--notifier=proc"]);
    daemon.set_limit(UID, 64 * MIB);
    let mut bystander = Hog::start(UID);
    bystander.grow(4096);
    assert!(bystander.survived());
    let mut bomb = Hog::start(UID);
    bomb.breed(GENERATIONS);
    let why = eventually("the bomb is recognised", || {
        daemon.why(UID).into_iter().find(|why| why.rule.contains("fork bomb"))
    });
    assert!(why.others.len() >= 16, "{why:#?}");
    bomb.died();
    eventually("all of its processes have exited, stopped ones too", || {
        (alive(UID) == 1).then_some(())
    });
    assert!(bystander.is_alive());
    bystander.grow(1024);
    assert!(bystander.survived(), "it goes on");
}

#[test]
fn only_the_growing_one_of_many_new_jobs_dies() {
    if !privileged() {
        return;
    }
    let _cleared = Cleared(JOBS_UID);
    let daemon = Daemon::start("", &[]);
    daemon.set_limit(JOBS_UID, 64 * MIB);
    // All are in this test's process group, so they are one family, with as many members as a fork
    // bomb.
    let mut jobs: Vec<Hog> = (0..17).map(|_| Hog::start(JOBS_UID)).collect();
    for job in &mut jobs {
        job.grow(1024);
        assert!(job.survived());
    }
    let mut growing = Hog::start(JOBS_UID);
    growing.grow(64 * 1024);
    growing.died();
    let why = eventually("the kill is recorded", || daemon.why(JOBS_UID).into_iter().next());
    assert!(why.others.is_empty(), "{why:#?}");
    assert!(jobs.iter_mut().all(|job| job.is_alive()));
}

#[test]
fn a_bomb_of_few_processes_dies_with_most_of_its_members() {
    if !privileged() {
        return;
    }
    // At most eight processes at a time: too few to be a fork bomb by their number alone.
    const CHILDREN: u32 = 6;
    let _cleared = Cleared(SLOW_UID);
    let daemon = Daemon::start("", &[]);
    daemon.set_limit(SLOW_UID, 64 * MIB);
    let mut bystander = Hog::start(SLOW_UID);
    bystander.grow(4096);
    assert!(bystander.survived());
    let mut bomb = Hog::start(SLOW_UID);
    bomb.replace(CHILDREN);
    bomb.died();
    // A herd of which most has died; or a fork bomb, if 16 were new before the daemon has decided.
    let whole = |why: &control::oomd::Why| !why.others.is_empty();
    let why = eventually("the family dies", || daemon.why(SLOW_UID).into_iter().find(whole));
    assert!(why.others.len() as u32 <= CHILDREN, "{why:#?}");
    let killed = daemon.why(SLOW_UID).len() as u32;
    assert!((CHILDREN / 2..=16).contains(&killed), "{killed} kills");
    eventually("all of its processes have exited", || (alive(SLOW_UID) == 1).then_some(()));
    assert!(bystander.is_alive());
    bystander.grow(1024);
    assert!(bystander.survived(), "it goes on");
}
