//! Fork bombs of limited users, with a bound to them.

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
/// 127 processes in all.
const GENERATIONS: u32 = 6;

/// Nothing of this user's outlives the test.
struct Cleared(Uid);

impl Drop for Cleared {
    fn drop(&mut self) {
        // Without privileges -1 is whoever has the same user.
        let _ = Command::new("sh").args(["-c", "kill -KILL -1"]).uid(self.0.0).status();
    }
}

/// Processes of a user that are not dead.
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
fn a_fork_bomb_ends_as_a_whole_and_nobody_else_with_it() {
    if !privileged() {
        return;
    }
    // The notifier would have its first processes killed one by one, before there is a bomb.
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
    eventually("nobody of it is left, and nobody stands still", || (alive(UID) == 1).then_some(()));
    assert!(bystander.is_alive());
    bystander.grow(1024);
    assert!(bystander.survived(), "it goes on");
}

#[test]
fn of_many_new_jobs_only_the_one_that_grows_dies() {
    if !privileged() {
        return;
    }
    let _cleared = Cleared(JOBS_UID);
    let daemon = Daemon::start("", &[]);
    daemon.set_limit(JOBS_UID, 64 * MIB);
    // All in our process group, so they are one family; as many as a fork bomb has.
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
fn a_bomb_whose_members_die_one_by_one_is_recognised_by_those_who_died() {
    if !privileged() {
        return;
    }
    // Never more than eight processes at a time: too few to be one for what they are.
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
    let why = eventually("the bomb is recognised", || {
        daemon.why(SLOW_UID).into_iter().find(|why| why.rule.contains("fork bomb"))
    });
    assert!(why.rule.contains("killed just before"), "{why:#?}");
    assert!(why.others.len() as u32 <= CHILDREN + 1, "{why:#?}");
    eventually("nobody of it is left", || (alive(SLOW_UID) == 1).then_some(()));
    assert!(bystander.is_alive());
    bystander.grow(1024);
    assert!(bystander.survived(), "it goes on");
}
