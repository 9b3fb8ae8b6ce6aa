//! Victims with a pid that is reused, at every step: ten thousand attempts. The new process is
//! never signalled, boosted or reaped.

mod support;

use std::os::fd::AsFd;

use reclaim::{Boost, KillError, Mrelease, OpenError, Progress, Reaper, Reclaim, Victim, mrelease};
use support::forked::{Child, Deed};
use support::{identity, state};

const TRIES: u32 = 10_000;
const IN_NAMESPACE: &str = "RECLAIM_TEST_OWN_PIDS";

/// Sets the pid that the next process of this pid namespace gets.
fn next_pid(pid: u32) {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
}

#[test]
fn a_process_that_reuses_a_victims_pid_is_not_signalled() {
    // In a pid namespace of its own no other process takes pids.
    if std::env::var_os(IN_NAMESPACE).is_none() {
        let words = ["--pid", "--fork", "--kill-child", "--mount-proc"];
        let unshare = || std::process::Command::new("unshare");
        if !unshare().args(words).arg("true").status().is_ok_and(|status| status.success()) {
            test_support::skip("no pid namespaces of ours");
            return;
        }
        let name = "a_process_that_reuses_a_victims_pid_is_not_signalled";
        let mut command = unshare();
        command.args(words).arg(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]).env(IN_NAMESPACE, "1");
        let output = command.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{complained}");
        return;
    }
    let reaper = Reaper::start(1).unwrap();
    let mut taken_over = 0;
    for at in 0..TRIES {
        let child = Child::born(Deed::Wait, 0);
        let (pid, victim) = (child.pid(), Victim::open(child.pid()).unwrap());
        let who = identity(pid);
        let step = at % 4;
        let signalled = step > 0;
        if signalled {
            victim.send_kill().unwrap();
        }
        let mut reclaim = Reclaim::new(victim.clone());
        if step > 1 {
            // The reapers are working while the pid is reused.
            reclaim.step(&reaper, at.into());
        }
        drop(child);
        next_pid(pid);
        let stranger = Child::born(Deed::Wait, 0);
        if stranger.pid() != pid {
            continue;
        }
        taken_over += 1;
        assert_eq!(victim.send_kill(), Err(KillError::Gone(pid)));
        assert_eq!(mrelease(victim.as_fd()), Mrelease::LettingGo);
        assert_eq!(Boost::new(&victim), Boost::default());
        assert_eq!(reclaim.step(&reaper, at.into()), Progress::Gone);
        // Pids that are reused at once, as here, can meet a boost between two of its system calls;
        // the boost detects and undoes it. SAFETY: takes numbers.
        let nice = |pid: i32| unsafe { libc::getpriority(libc::PRIO_PROCESS, pid as libc::id_t) };
        support::until("a stranger as it was", || nice(stranger.0) == nice(0));
        reaper.drain(|_, _| {});
        assert_ne!(state(pid), Some('Z'), "a stranger was killed");
        // Before Linux 6.9 only a process that started in another clock tick can be distinguished.
        if identity(pid).start_number != who.start_number {
            let error = Victim::open_as(who).unwrap_err();
            assert!(matches!(error, OpenError::AnotherProcess { .. }), "{error}");
        }
    }
    assert!(taken_over > TRIES / 2, "only {taken_over} pids were taken over");
}
