//! A real daemon kills real processes.

mod support;

use control::Uid;
use control::oomd::{AccountRef, KilledBy, Outcome, Reply, Request, Trigger};
use rustix::process::{Pid, Signal, kill_process};
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, eventually, privileged};

/// This number of processes of one user grow at the same time. Their sum exceeds the limit, and the
/// sum of one less does not.
fn exactly_one_of(count: u64, uid: Uid, limit_mib: u64, each_kib: u64, arguments: &[&str]) {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", arguments);
    daemon.set_limit(uid, limit_mib * MIB);
    let mut hogs: Vec<Hog> = (0..count).map(|_| Hog::start(uid)).collect();
    let before = daemon.limit(uid).unwrap().used_bytes;
    hogs.iter_mut().for_each(|hog| hog.grow(each_kib));
    // A process that has finished growing can still be killed when another one allocates a page.
    for hog in &mut hogs {
        hog.survived();
    }
    let why = daemon.ended(uid);
    // The memory can be back before its process has exited.
    let dead: Vec<u32> = eventually("a victim is killed", || {
        let dead = hogs.iter_mut().filter_map(|hog| (!hog.is_alive()).then(|| hog.pid()));
        Some(dead.collect()).filter(|dead: &Vec<u32>| !dead.is_empty())
    });

    assert_eq!(dead.len(), 1, "{:#?}", daemon.why(uid));
    let victim = why.victim.as_ref().unwrap();
    assert_eq!(victim.pid, dead[0]);
    assert_eq!(why.account, AccountRef::user(uid));
    assert_eq!(why.hard_bytes, limit_mib * MIB);
    assert!(why.used_bytes > why.hard_bytes, "{why:#?}");
    assert!(why.killer.is_some() && !why.rule.is_empty() && why.at_micros > 0);
    assert!(victim.comm.starts_with("hog"), "{why:#?}");
    assert!(victim.rss_bytes > MIB && victim.rss_bytes <= why.used_bytes, "{why:#?}");
    assert!(u64::from(why.considered) <= count && why.considered > 0);
    assert_eq!(why.runner_up.is_some(), count > 1, "{why:#?}");
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");

    // The memory of the victim is back, and the other processes were not killed.
    let survivors = before / count * (count - 1) + (count - 1) * each_kib * 1024;
    eventually("the account is what the survivors have", || {
        let used = daemon.limit(uid).unwrap();
        (used.dying_bytes == 0 && used.used_bytes.abs_diff(survivors) < 4 * MIB).then_some(())
    });
    let alive = hogs.iter_mut().map(Hog::is_alive).filter(|alive| *alive).count();
    assert_eq!(alive as u64, count - 1);
    assert_eq!(daemon.why(uid).len(), 1);
    assert_eq!(daemon.status().kills, 1);
    let line = eventually("the kill is logged", || {
        daemon.log().into_iter().find(|line| line.contains("killed"))
    });
    assert!(line.contains(&format!("pid={}", dead[0])), "{line}");
}

#[test]
fn a_process_that_breaks_its_users_limit_alone_dies() {
    exactly_one_of(1, Uid(62001), 128, 200 << 10, &[]);
}

#[test]
fn one_of_four_dies_and_three_live() {
    exactly_one_of(4, Uid(62002), 128, 36 << 10, &[]);
}

#[test]
fn one_of_eight_dies_and_seven_live() {
    exactly_one_of(8, Uid(62003), 128, 16 << 10, &[]);
}

#[test]
fn without_bpf_the_timer_finds_the_limit_broken() {
    exactly_one_of(4, Uid(62004), 128, 36 << 10, &["--notifier", "proc"]);
}

#[test]
fn a_stopped_process_can_be_the_victim() {
    if !privileged() {
        return;
    }
    let (uid, daemon) = (Uid(62005), Daemon::start("", &[]));
    daemon.set_limit(uid, 128 * MIB);
    let (mut large, mut small) = (Hog::start(uid), Hog::start(uid));
    large.grow(80 << 10);
    assert!(large.survived());
    kill_process(Pid::from_raw(large.pid() as i32).unwrap(), Signal::STOP).unwrap();
    small.grow(60 << 10);
    assert!(small.survived(), "the smaller one died: {:#?}", daemon.why(uid));
    large.died();
    let why = daemon.ended(uid);
    assert_eq!(why.victim.unwrap().pid, large.pid());
    assert!(matches!(why.outcome, Outcome::Reclaimed { bytes_back, .. } if bytes_back > 40 * MIB));
}

/// A cgroup (v1 freezer) for this test, removed on drop with its processes thawed.
struct Freezer(std::path::PathBuf);

impl Freezer {
    fn new() -> Option<Self> {
        let root = std::path::Path::new("/sys/fs/cgroup/freezer");
        if !root.join("tasks").exists() {
            test_support::skip(format_args!("no v1 freezer at {}", root.display()));
            return None;
        }
        let path = root.join(format!("headroom-test-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Some(Self(path))
    }

    fn freeze(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(self.0.join("freezer.state"), "FROZEN").unwrap();
        eventually("it is frozen", || {
            let state = std::fs::read_to_string(self.0.join("freezer.state")).unwrap();
            (state.trim() == "FROZEN").then_some(())
        });
    }

    fn thaw(&self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        let start = std::time::Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && start.elapsed() < support::PATIENCE {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn a_frozen_victim_releases_its_memory_and_dies_in_its_frozen_group() {
    if !privileged() {
        return;
    }
    let Some(freezer) = Freezer::new() else { return };
    let (uid, daemon) = (Uid(62012), Daemon::start("", &[]));
    daemon.set_limit(uid, 128 * MIB);
    let (mut frozen, mut small) = (Hog::start(uid), Hog::start(uid));
    frozen.grow(80 << 10);
    assert!(frozen.survived());
    freezer.freeze(frozen.pid());
    small.grow(60 << 10);
    assert!(small.survived());
    let why = daemon.ended(uid);
    assert_eq!(why.victim.as_ref().unwrap().pid, frozen.pid());
    let Outcome::Reclaimed { mreleased, bytes_back, .. } = why.outcome else { panic!("{why:#?}") };
    assert!(mreleased && bytes_back > 40 * MIB, "{why:#?}");
    assert!(small.is_alive() && daemon.why(uid).len() == 1);
    frozen.died();
    let state = std::fs::read_to_string(freezer.0.join("freezer.state")).unwrap();
    assert_eq!(state, "FROZEN\n");
}

#[test]
fn a_users_limit_does_not_affect_other_users() {
    if !privileged() {
        return;
    }
    let (daemon, guilty, innocent) = (Daemon::start("", &[]), Uid(62007), Uid(62008));
    daemon.set_limit(guilty, 64 * MIB);
    daemon.set_limit(innocent, 64 * MIB);
    let (mut other, mut hog) = (Hog::start(innocent), Hog::start(guilty));
    other.grow(50 << 10);
    assert!(other.survived());
    hog.grow(100 << 10);
    assert!(!hog.survived());
    assert!(other.is_alive());
    assert_eq!(daemon.ended(guilty).victim.unwrap().pid, hog.pid());
    assert!(daemon.why(innocent).is_empty());
}

#[test]
fn a_limit_that_is_broken_when_it_is_set_takes_effect_at_once() {
    if !privileged() {
        return;
    }
    let (uid, daemon) = (Uid(62009), Daemon::start("", &[]));
    let (mut large, mut small) = (Hog::start(uid), Hog::start(uid));
    for (hog, kib) in [(&mut large, 80 << 10), (&mut small, 20 << 10)] {
        hog.grow(kib);
        assert!(hog.survived());
    }
    daemon.set_limit(uid, 64 * MIB);
    large.died();
    let why = daemon.ended(uid);
    assert_eq!((why.victim.unwrap().pid, why.killer), (large.pid(), Some(KilledBy::Daemon)));
    assert_eq!(why.trigger, Trigger::LimitSet);
    assert!(small.is_alive());
}

#[test]
fn a_limit_that_one_death_cannot_satisfy_takes_the_next_largest_too_one_after_the_other() {
    if !privileged() {
        return;
    }
    let (uid, daemon) = (Uid(62010), Daemon::start("", &[]));
    let mut hogs: Vec<Hog> = (0..3).map(|_| Hog::start(uid)).collect();
    for (hog, mib) in hogs.iter_mut().zip([60, 50, 20]) {
        hog.grow(mib << 10);
        assert!(hog.survived());
    }
    daemon.set_limit(uid, 40 * MIB);
    hogs[0].died();
    hogs[1].died();
    let kills = eventually("two kills have ended", || {
        let kills = daemon.why(uid);
        let ended = kills.iter().filter(|why| why.outcome != Outcome::Dying).count();
        (ended == 2).then_some(kills)
    });
    let pids: Vec<u32> = kills.iter().map(|why| why.victim.as_ref().unwrap().pid).collect();
    assert_eq!(pids, [hogs[0].pid(), hogs[1].pid()]);
    let Outcome::Reclaimed { micros, .. } = kills[0].outcome else { panic!("{kills:#?}") };
    assert!(kills[1].at_micros >= kills[0].at_micros + micros, "both at a time: {kills:#?}");
    assert!(hogs[2].is_alive());
}

#[test]
fn the_killer_runs_on_request() {
    if !privileged() {
        return;
    }
    // Without the notifier, so that a limit is still exceeded when the request arrives.
    let (uid, daemon) = (Uid(62011), Daemon::start("", &["--notifier", "proc"]));
    daemon.set_limit(uid, 64 * MIB);
    let run = Request::RunOomKiller { account: None };
    assert_eq!(daemon.request(&run), Reply::OomKillerRan { kills: vec![] });
    let mut hog = Hog::start(uid);
    hog.grow(100 << 10);
    hog.survived();
    let Reply::OomKillerRan { kills } = daemon.request(&run) else { panic!("no answer") };
    match kills.as_slice() {
        // The timer was faster, or the account is measured first: the kill follows.
        [] => {}
        [why] => assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}"),
        more => panic!("{more:#?}"),
    }
    hog.died();
    assert_eq!(daemon.ended(uid).victim.unwrap().pid, hog.pid());
    assert_eq!(daemon.why(uid).len(), 1);
}
