//! Kills and reclaims real processes.

mod support;

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use owners::Uid;
use reclaim::{
    Identity, KillError, Mrelease, OpenError, Progress, Reaper, Reclaim, Victim, mrelease,
};
use rustix::process::{Pid, Signal, kill_process};
use support::Holder;

const PATIENCE: Duration = Duration::from_secs(20);

/// Steps until the victim has exited; returns the result of `process_mrelease`.
fn run_to_the_end(mut reclaim: Reclaim, reaper: &Reaper) -> Option<Mrelease> {
    let start = Instant::now();
    loop {
        if reclaim.step(reaper, 7) == Progress::Gone {
            return reclaim.mrelease();
        }
        reaper.drain(|token, done| {
            assert_eq!(token, 7);
            reclaim.helped(done);
        });
        assert!(start.elapsed() < PATIENCE, "the victim never went: {reclaim:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_victim_dies_and_its_memory_is_awaited() {
    let mut holder = Holder::start(64);
    let reaper = Reaper::start(2).unwrap();
    let victim = Victim::open_as(holder.identity()).unwrap();
    assert!(!victim.has_exited());
    victim.send_kill().unwrap();
    run_to_the_end(Reclaim::new(victim), &reaper);
    assert_eq!(holder.child.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_stopped_victim_dies_too() {
    let mut holder = Holder::start(16);
    let reaper = Reaper::start(1).unwrap();
    let pid = Pid::from_child(&holder.child);
    kill_process(pid, Signal::STOP).unwrap();
    let victim = Victim::open_as(holder.identity()).unwrap();
    victim.send_kill().unwrap();
    run_to_the_end(Reclaim::new(victim), &reaper);
    assert_eq!(holder.child.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_victim_killed_by_another_process_is_tracked() {
    let mut holder = Holder::start(16);
    let identity = holder.identity();
    holder.child.kill().unwrap();
    let victim = Victim::open_as(identity).expect("a zombie is still there to be opened");
    let reaper = Reaper::start(1).unwrap();
    run_to_the_end(Reclaim::new(victim), &reaper);
    holder.child.wait().unwrap();
    assert_eq!(Victim::open_as(identity).unwrap_err(), OpenError::Gone(identity.pid));
}

#[test]
fn a_reaper_releases_a_dying_process_or_finds_it_already_empty() {
    let holder = Holder::start(256);
    let reaper = Reaper::start(1).unwrap();
    let victim = Victim::open_as(holder.identity()).unwrap();
    victim.send_kill().unwrap();
    let mut reclaim = Reclaim::new(victim);
    let progress = reclaim.step(&reaper, 7);
    if progress == Progress::Pending {
        let result = run_to_the_end(reclaim, &reaper);
        let expected = [None, Some(Mrelease::Freed), Some(Mrelease::LettingGo)];
        assert!(expected.contains(&result), "{result:?}");
    }
}

#[test]
fn a_living_process_keeps_its_memory() {
    let mut holder = Holder::start(1);
    let victim = Victim::open_as(holder.identity()).unwrap();
    assert_eq!(mrelease(victim.as_fd()), Mrelease::NotDying);
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    assert_eq!(mrelease(victim.as_fd()), Mrelease::LettingGo);
    assert_eq!(victim.send_kill(), Err(KillError::Gone(holder.child.id())));
    assert!(victim.has_exited());
}

#[test]
fn a_pid_with_another_start_time_or_user_is_another_process() {
    let holder = Holder::start(1);
    let right = holder.identity();
    let late = Identity { start_number: right.start_number + 10_000_000, ..right };
    let error = Victim::open_as(late).unwrap_err();
    assert!(matches!(error, OpenError::AnotherProcess { .. }), "{error}");
    let other = Identity { uid: Uid(right.uid.0 + 1), ..right };
    let error = Victim::open_as(other).unwrap_err();
    assert!(matches!(error, OpenError::AnotherUser { .. }), "{error}");
    assert!(Victim::open_as(right).is_ok());
}

#[test]
fn init_kernel_threads_and_the_killer_itself_are_untouchable() {
    let open = |pid| Victim::open(pid).unwrap_err();
    assert_eq!(open(1), OpenError::Untouchable(1));
    assert_eq!(open(std::process::id()), OpenError::Untouchable(std::process::id()));
    // Pid 2 is kthreadd, if the pid namespace shows it.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
        assert_eq!(open(2), OpenError::Untouchable(2));
    }
    assert_eq!(open(0), OpenError::Gone(0));
    assert_eq!(open(u32::MAX), OpenError::Gone(u32::MAX));
}

#[test]
fn a_reaper_stops_with_its_work_done() {
    let holder = Holder::start(8);
    let reaper = Reaper::start(2).unwrap();
    let victim = Victim::open_as(holder.identity()).unwrap();
    victim.send_kill().unwrap();
    let mut reclaim = Reclaim::new(victim);
    reclaim.step(&reaper, 1);
    drop(reaper);
}
