//! Victims that exit, exec, or whose pid is taken over, at every step: ten thousand tries. Never is a
//! wrong process signalled, raised or emptied, and no descriptor is lost.

mod support;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use reclaim::{Boost, Help, KillError, Mrelease, OpenError, Options, Progress, Reaper, Reclaim};
use reclaim::{Victim, mrelease};
use support::{PATIENCE, identity, state};

const TRIES: u32 = 10_000;
const IN_NAMESPACE: &str = "RECLAIM_TEST_OWN_PIDS";

/// What a child does on its own, so many turns of an idle loop after its birth.
#[derive(Clone, Copy)]
enum Deed {
    Exit,
    Exec,
    Wait,
}

/// A child of ours; killed and waited for on drop.
struct Child(libc::pid_t);

impl Child {
    fn born(deed: Deed, turns: u32) -> Self {
        let sleep = c"/bin/sleep";
        let words = [sleep.as_ptr(), c"60".as_ptr(), std::ptr::null()];
        // SAFETY: the child calls nothing but what a child of a process with threads may.
        unsafe {
            let pid = libc::fork();
            assert!(pid >= 0, "{}", std::io::Error::last_os_error());
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                for turn in 0..turns {
                    std::hint::black_box(turn);
                }
                match deed {
                    Deed::Exit => libc::_exit(0),
                    Deed::Exec => libc::execv(sleep.as_ptr(), words.as_ptr()),
                    Deed::Wait => loop {
                        libc::pause();
                    },
                };
                libc::_exit(1);
            }
            Self(pid)
        }
    }

    fn pid(&self) -> u32 {
        self.0 as u32
    }

    /// Waits for its end: `Ok(code)` or `Err(signal)`.
    fn end(mut self) -> Result<i32, i32> {
        let mut status = 0;
        // SAFETY: our own child, waited for once; the status is ours.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        self.0 = 0;
        if libc::WIFEXITED(status) {
            Ok(libc::WEXITSTATUS(status))
        } else {
            Err(libc::WTERMSIG(status))
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.0 > 0 {
            // SAFETY: our own child, not waited for yet: the pid is its own.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Numbers without a pattern, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// By signal, release and boost, until it is gone.
fn reclaim(victim: Victim, reaper: &Reaper, token: u64) {
    let mut reclaim = Reclaim::new(victim, Help::default());
    let start = Instant::now();
    while reclaim.step(start.elapsed().as_nanos() as u64, reaper, token) != Progress::Gone {
        reaper.drain(|found, done| {
            if found == token {
                reclaim.helped(0, done);
            }
        });
        assert!(start.elapsed() < PATIENCE, "{reclaim:?}");
        std::thread::yield_now();
    }
}

/// Everything is in one test: another one beside it would open descriptors, too.
#[test]
fn whatever_a_victim_does_meanwhile_nobody_else_is_harmed_and_no_descriptor_is_lost() {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        return;
    }
    let bystander = Child::born(Deed::Wait, 0);
    let reaper = Reaper::start(2).unwrap();
    let mut random = Random(7);
    // The first try opens what stays open.
    let mut open = 0;
    let (mut killed, mut missed) = (0, 0);
    for at in 0..TRIES {
        let deed = [Deed::Exit, Deed::Exec][at as usize % 2];
        let turns = random.below(200_000);
        let child = Child::born(deed, turns);
        for _ in 0..random.below(100_000) {
            std::hint::black_box(());
        }
        match Victim::open(child.pid()) {
            // In one call, which has a reaper of its own, or step by step with a common one.
            Ok(victim) if at % 16 == 0 => {
                assert_eq!(victim.kill(&Options::default()).unwrap().wait().map(|s| s.gone), Ok(1));
            }
            Ok(victim) => {
                victim.send_kill().unwrap();
                reclaim(victim, &reaper, at.into());
            }
            Err(error) => panic!("our child has not been waited for: {error}"),
        }
        match (child.end(), deed) {
            (Err(libc::SIGKILL), _) => killed += 1,
            (Ok(0), Deed::Exit) => missed += 1,
            (end, _) => panic!("it ended by itself: {end:?}"),
        }
        if at == 0 {
            open = descriptors();
        }
    }
    assert!(killed > TRIES / 4 && missed > 0, "{killed} killed, {missed} were faster");
    assert_eq!(state(bystander.pid()), Some('S'));
    drop(reaper);
    // The reaper's own went with it.
    assert!(descriptors() < open, "{} descriptors, {open} at first", descriptors());
}

/// Takes the number that the next process of this pid namespace gets.
fn next_pid(pid: u32) {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
}

#[test]
fn whoever_takes_over_a_victims_pid_is_not_touched() {
    // In a pid namespace of its own nobody else takes numbers.
    if std::env::var_os(IN_NAMESPACE).is_none() {
        let words = ["--pid", "--fork", "--kill-child", "--mount-proc"];
        let unshare = || std::process::Command::new("unshare");
        if !unshare().args(words).arg("true").status().is_ok_and(|status| status.success()) {
            println!("skipped: no pid namespaces of ours");
            return;
        }
        let name = "whoever_takes_over_a_victims_pid_is_not_touched";
        let mut command = unshare();
        command.args(words).arg(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture"]).env(IN_NAMESPACE, "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}{complained}");
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
        let mut reclaim = Reclaim::new(victim.clone(), Help::default());
        if step > 1 {
            // The reapers are at it while the pid changes hands.
            reclaim.step(0, &reaper, at.into());
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
        assert_eq!(Boost::raise(&victim).threads(), 0);
        assert_eq!(reclaim.step(1, &reaper, at.into()), Progress::Gone);
        if step == 3 {
            // Let the reapers finish what they began with.
            std::thread::sleep(Duration::from_micros(200));
            reaper.drain(|_, _| {});
        }
        // SAFETY: takes a number.
        let policy = unsafe { libc::sched_getscheduler(stranger.0) };
        assert_eq!(policy, libc::SCHED_OTHER, "a stranger was raised");
        assert_ne!(state(pid), Some('Z'), "a stranger was killed");
        // Ticks are 10 ms: only who was born in another one can be told apart by them.
        if identity(pid).start_ticks != who.start_ticks {
            let error = Victim::open_as(who).unwrap_err();
            assert!(matches!(error, OpenError::AnotherProcess { .. }), "{error}");
        }
    }
    assert!(taken_over > TRIES / 2, "only {taken_over} pids were taken over");
}
