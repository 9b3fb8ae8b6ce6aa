//! Victims in every state: each has a defined result.

mod support;

use std::process::Command;
use std::time::Duration;

use reclaim::{End, Memory, Mrelease, OpenError, Options, ReapError, Victim, VictimReport};
use rustix::process::{Pid, Signal, kill_process};
use support::freezer::{Freezer, Version};
use support::{Holder, PATIENCE, behind, state, until};
use test_support::hung::Hung;

/// Kills and waits at most this long; returns the report.
fn kill(pid: u32, deadline: Duration) -> VictimReport {
    let options = Options { deadline, ..Options::default() };
    let mut reap = Victim::open(pid).unwrap().kill(&options).unwrap();
    let _ = reap.wait();
    reap.reports()[0]
}

/// Long enough for the reaper, for victims that never exit.
const SHORT: Duration = Duration::from_millis(1500);
const MIB: u64 = 1 << 20;

#[test]
fn a_sleeping_victim_is_gone_and_its_memory_counted() {
    let holder = Holder::start(32);
    let report = kill(holder.pid(), PATIENCE);
    assert_eq!(report.end, End::Gone);
    assert!(report.bytes_back >= 32 * MIB, "{report:?}");
    assert!(report.holdings.file_bytes > 0, "{report:?}");
}

#[test]
fn a_stopped_victim_is_gone() {
    let holder = Holder::start(16);
    kill_process(Pid::from_child(&holder.child), Signal::STOP).unwrap();
    until("stopped", || state(holder.pid()) == Some('T'));
    let report = kill(holder.pid(), PATIENCE);
    assert_eq!(report.end, End::Gone);
    assert!(report.bytes_back >= 16 * MIB, "{report:?}");
}

#[test]
fn a_victim_in_a_frozen_group_of_version_1_is_released_thawed_alone_and_gone() {
    let Some(freezer) = Freezer::create(Version::V1) else {
        test_support::skip("no version 1 freezer of ours");
        return;
    };
    let [holder, other] = [Holder::start(16), Holder::start(1)];
    let _thaws_first = freezer.thaw_on_drop();
    freezer.freeze(other.pid());
    freezer.freeze(holder.pid());
    let report = kill(holder.pid(), PATIENCE);
    assert_eq!((report.end, report.thawed), (End::Gone, true), "{report:?}");
    assert!(report.bytes_back >= 16 * MIB, "{report:?}");
    assert!(freezer.is_frozen() && state(other.pid()) == Some('D'), "the other stays frozen");
    drop(holder);
    // The test waits for its exit, so that its freezer does not have to.
    assert_eq!(kill(other.pid(), PATIENCE).end, End::Gone);
}

#[test]
fn a_victim_in_a_frozen_group_of_version_2_is_gone() {
    let Some(freezer) = Freezer::create(Version::V2) else {
        test_support::skip("no version 2 control groups of ours");
        return;
    };
    let holder = Holder::start(16);
    let _thaws_first = freezer.thaw_on_drop();
    freezer.freeze(holder.pid());
    let report = kill(holder.pid(), PATIENCE);
    assert_eq!(report.end, End::Gone, "{report:?}");
    drop(holder);
}

#[test]
fn a_victim_in_uninterruptible_sleep_releases_its_memory_and_is_reported_stuck() {
    let Some(hung) = Hung::mount() else {
        test_support::skip("cannot mount FUSE");
        return;
    };
    let mut holder = Holder::start(32);
    holder.begin(&format!("hang {}/anything", hung.path().display()));
    // If an assertion fails below, the file system is unmounted first: otherwise the wait for the
    // holder would never end.
    let mut stage = (Some(hung), holder);
    let holder = &stage.1;
    until("in the file system", || stage.0.as_ref().is_some_and(Hung::is_waited_for));
    let options = Options { deadline: SHORT, ..Options::default() };
    let mut reap = Victim::open(holder.pid()).unwrap().kill(&options).unwrap();
    let pid = holder.pid();
    assert_eq!(reap.wait(), Err(ReapError::Stuck { pid, memory: Memory::Released }));
    let report = reap.reports()[0];
    assert_eq!(report.mrelease, Some(Mrelease::Freed));
    assert!(report.bytes_back >= 31 * MIB, "{report:?}");
    assert!(reap.status().memory_back.is_some());
    // The server exits, which releases the victim.
    drop(stage.0.take());
    until("gone", || reap.advance().gone == 1);
    assert_eq!(reap.wait().map(|status| status.gone), Ok(1));
}

#[test]
fn a_victim_held_by_a_debugger_releases_its_memory_and_is_reported_alive() {
    let holder = Holder::start(32);
    let pid = holder.pid() as i32;
    let trace = |request: libc::c_uint, data: libc::c_long| {
        // SAFETY: the requests used here take numbers, and no memory of ours.
        let done = unsafe { libc::ptrace(request as _, pid, 0, data) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    };
    trace(libc::PTRACE_SEIZE as _, libc::PTRACE_O_TRACEEXIT.into());
    let report = kill(holder.pid(), SHORT);
    // It waits in its exit for the debugger, with its private memory released.
    let expected = ReapError::StillAlive { pid: pid as u32, state: b't', memory: Memory::Released };
    assert_eq!(report.end, End::Remains(expected), "{report:?}");
    assert!(report.bytes_back >= 31 * MIB, "{report:?}");
    trace(libc::PTRACE_CONT as _, 0);
    until("gone", || Victim::open(pid as u32).is_ok_and(|victim| victim.has_exited()));
}

#[test]
fn a_zombie_is_gone_and_releases_nothing() {
    let mut holder = Holder::start(16);
    holder.child.kill().unwrap();
    until("a zombie", || state(holder.pid()) == Some('Z'));
    let report = kill(holder.pid(), PATIENCE);
    assert_eq!((report.end, report.bytes_back), (End::Gone, 0), "{report:?}");
    assert_eq!(report.boost_refused, None);
}

#[test]
fn the_init_of_a_pid_namespace_is_gone_and_its_namespace_with_it() {
    let words = ["--pid", "--fork", "--kill-child"];
    if !Command::new("unshare").args(words).arg("true").status().is_ok_and(|s| s.success()) {
        test_support::skip("no pid namespaces of ours");
        return;
    }
    let mut unshare = Holder::run(&mut behind("unshare", &words), 16);
    unshare.execute("family 2");
    assert_eq!(unshare.own_pid, 1, "the helper is its namespace's init");
    let init = support::children(unshare.pid())[0];
    let children = support::children(init);
    assert_eq!(children.len(), 2);
    let report = kill(init, PATIENCE);
    assert_eq!(report.end, End::Gone, "{report:?}");
    assert!(children.iter().all(|child| state(*child).is_none()), "they went with it");
}

#[test]
fn a_kernel_thread_is_untouchable() {
    let threads = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = threads.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // Kernel threads have no executable.
    let mut kernel = pids.filter(|pid| {
        *pid > 1
            && state(*pid).is_some_and(|state| state != 'Z')
            && std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.is_empty())
            && std::fs::metadata(format!("/proc/{pid}/exe")).is_err()
    });
    let Some(pid) = kernel.next() else {
        test_support::skip("this pid namespace shows no kernel thread");
        return;
    };
    assert_eq!(Victim::open(pid).unwrap_err(), OpenError::Untouchable(pid));
}

#[test]
fn memory_that_another_process_shares_is_not_counted_as_back() {
    let mut holder = Holder::with(32, "share");
    let pid = holder.pid();
    let sharer = support::children(pid)[0];
    let report = kill(pid, PATIENCE);
    assert_eq!(report.end, End::Gone);
    if report.mrelease == Some(Mrelease::NotDying) {
        assert_eq!(report.bytes_back, 0, "{report:?}");
    }
    holder.child.wait().unwrap();
    let report = kill(sharer, PATIENCE);
    assert_eq!(report.end, End::Gone);
    assert!(report.bytes_back >= 31 * MIB, "{report:?}");
}
