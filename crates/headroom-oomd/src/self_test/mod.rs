//! Self-test of the kill path at start, before the daemon reports readiness.
//!
//! It faults in the code and data that a kill needs, so that they can be locked: a page of code
//! that is first used when memory is short would have to be read from disk then. It also detects at
//! start what would fail in a real kill.
//!
//! The victims are child processes created for the test. A separate [`OomManager`] on a
//! [`fake_watch`], which lists no other process, kills one at a user's limit; then, for lack of
//! system memory, it sends SIGTERM to one and kills a herd and a fork bomb. The last victim is
//! killed without a manager, to test `process_mrelease`.

mod fake_watch;
mod system_memory;

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use control::oomd::{Outcome, Why};
use memory_ledger::{Limit, Requester, Source, Uid};
use memory_watch::{ProcessSample, Watch};
use reclaim::{Mrelease, Progress, Reaper, Reclaim};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::oom::OomManager;
use fake_watch::{FakeWatch, FakeWatchControl};
use system_memory::SystemMemoryTest;

/// Uid of the victims: outside the ranges that are assigned, so that no limit applies to it.
const UID: Uid = Uid::LAST_LIMITABLE;
/// Hard limit of the fake user.
const HARD_PAGES: u64 = 4096;
/// Timeout of each step; a step takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Decisions among which the last kill is looked for: one without a victim a minute at most.
const LATEST: u32 = 8;

/// Why the self-test failed.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// A resource could not be created.
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
    /// The processes cannot be listed.
    #[error("cannot list processes: {0}")]
    List(#[from] memory_watch::NotifierError),
    /// The list of processes lacks a victim.
    #[error("the list of processes lacks the victim, pid {0}")]
    NotListed(u32),
    /// The victim was not chosen or did not exit.
    #[error("{0}")]
    NotKilled(String),
}

fn failed_io(doing: &'static str, error: std::io::Error) -> SelfTestError {
    SelfTestError::Io(doing, error)
}

fn not_killed(why: impl std::fmt::Display) -> SelfTestError {
    SelfTestError::NotKilled(why.to_string())
}

/// Dispatches until the latest decision, other than `before`, has ended; calls `poll` in between.
fn wait_for_decision(
    oom: &mut OomManager,
    before: Option<u64>,
    poll: impl Fn(),
) -> Result<u64, SelfTestError> {
    let started = Instant::now();
    loop {
        let last = last_kill(oom).filter(|why| Some(why.id) != before);
        let Some(last) = last else { return Err(not_killed("no victim was chosen")) };
        match last.outcome {
            Outcome::Reclaimed { .. } => return Ok(last.id),
            Outcome::Dying if started.elapsed() < TIMEOUT => {}
            outcome => return Err(not_killed(format!("the kill ended as {outcome:?}"))),
        }
        std::thread::sleep(POLL_INTERVAL);
        poll();
        oom.dispatch();
    }
}

/// The latest decision that has a victim. While the victims exit, the thresholds are still reached
/// and no process is listed: that is recorded as a decision without a victim.
fn last_kill(oom: &OomManager) -> Option<Why> {
    oom.records().latest(LATEST, None).into_iter().find(|why| why.victim.is_some())
}

/// A manager with a fake watch, and the control of that watch.
fn oom_manager_with_fake_watch(
    reaper: Reaper,
) -> Result<(OomManager, FakeWatchControl), SelfTestError> {
    let watch = FakeWatch::new(HARD_PAGES).map_err(|e| failed_io("cannot make an eventfd", e))?;
    let control = watch.control();
    let oom = OomManager::builder(Box::new(watch), reaper).build();
    let oom = oom.map_err(|e| failed_io("cannot make epoll", e))?;
    Ok((oom, control))
}

/// The victim's sample from the real watch, with a large size.
fn sample_of(samples: &[ProcessSample], victim: &Victim) -> Result<ProcessSample, SelfTestError> {
    let found = samples.iter().find(|sample| sample.tgid == victim.pid());
    let sample = *found.ok_or(SelfTestError::NotListed(victim.pid()))?;
    // The child inherits oom_score_adj, and the daemon's may exclude it from every choice.
    Ok(ProcessSample { anon_pages: HARD_PAGES, oom_score_adj: 0, ..sample })
}

/// Everything is allocated before the run, so that the run touches only what a kill touches.
pub struct SelfTest {
    oom: OomManager,
    control: FakeWatchControl,
    /// `None` where no other uid exists, as in some containers: root has no limits.
    user_limit: Option<UserLimitTest>,
    system_memory: SystemMemoryTest,
    victim: Victim,
    reaper: Reaper,
}

struct UserLimitTest {
    sample: ProcessSample,
    victim: Victim,
}

/// Discards log entries: a test kill must not appear in the journal.
fn quietly<T>(f: impl FnOnce() -> T) -> T {
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), f)
}

impl SelfTest {
    /// Starts the victims. `watch` only lists processes.
    pub fn prepare(watch: &dyn Watch) -> Result<Self, SelfTestError> {
        quietly(|| {
            let start = || Victim::start(UID).map_err(|e| failed_io("cannot start a victim", e));
            let reaper = || Reaper::start(1).map_err(|e| failed_io("cannot start a reaper", e));
            let (user_limit, others) =
                (start()?, [start()?, start()?, start()?, start()?, start()?]);
            let victim = start()?;
            let mut samples = Vec::new();
            watch.processes(&mut samples)?;
            let (mut oom, control) = oom_manager_with_fake_watch(reaper()?)?;
            Ok(Self {
                user_limit: UserLimitTest::prepare(&mut oom, &samples, user_limit)?,
                system_memory: SystemMemoryTest::prepare(&samples, others)?,
                oom,
                control,
                victim,
                reaper: reaper()?,
            })
        })
    }

    /// Kills the victims.
    pub fn run(self) -> Result<(), SelfTestError> {
        let Self { mut oom, control, user_limit, system_memory, victim, reaper } = self;
        quietly(|| {
            let decision = user_limit.map(|it| it.run(&mut oom, &control)).transpose()?;
            system_memory.run(&mut oom, &control, decision)?;
            kill_and_release(&victim, &reaper)
        })
    }
}

/// A user exceeds its limit.
impl UserLimitTest {
    fn prepare(
        oom: &mut OomManager,
        samples: &[ProcessSample],
        victim: Victim,
    ) -> Result<Option<Self>, SelfTestError> {
        let sample = sample_of(samples, &victim)?;
        if sample.uid == Uid::ROOT {
            return Ok(None);
        }
        let hard_bytes = HARD_PAGES * rustix::param::page_size() as u64;
        let limit = Limit::new(hard_bytes, None).map_err(not_killed)?;
        oom.set_limit(sample.uid.into(), limit, Source::Runtime, Requester::Root)
            .map_err(not_killed)?;
        Ok(Some(Self { sample, victim }))
    }

    /// Returns the decision's number. Clears the limit.
    fn run(self, oom: &mut OomManager, control: &FakeWatchControl) -> Result<u64, SelfTestError> {
        let account = self.sample.uid.into();
        control.list(vec![self.sample], Vec::new());
        control.cross_soft_limit(account);
        oom.dispatch();
        control.cross_hard_limit(account);
        oom.dispatch();
        let decision = wait_for_decision(oom, None, || {
            if self.victim.has_ended() {
                control.clear_usage();
            }
        })?;
        oom.clear_limit(account, Requester::Root).map_err(not_killed)?;
        Ok(decision)
    }
}

/// Kills the victim and releases its memory by a reaper.
fn kill_and_release(child: &Victim, reaper: &Reaper) -> Result<(), SelfTestError> {
    let victim = reclaim::Victim::open(child.pid()).map_err(not_killed)?;
    victim.send_kill().map_err(not_killed)?;
    let mut reclaim = Reclaim::new(victim);
    let started = Instant::now();
    while reclaim.step(reaper, 0) != Progress::Gone {
        if started.elapsed() >= TIMEOUT {
            return Err(not_killed("the victim was killed and did not exit"));
        }
        std::thread::sleep(POLL_INTERVAL);
        reaper.drain(|_, done| {
            reclaim.helped(done);
        });
    }
    match reclaim.mrelease() {
        Some(Mrelease::Failed(errno)) => Err(not_killed(format!("process_mrelease: {errno}"))),
        _ => Ok(()),
    }
}

/// A child process; killed and reaped on drop.
struct Victim(Pid);

impl Victim {
    /// Forks the child, with this uid if permitted. Returns when its uid is set.
    fn start(uid: Uid) -> io::Result<Self> {
        let (ready, child_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let parent = rustix::process::getpid();
        // SAFETY: the child calls only what may be called after a fork of a program with threads
        // (system calls, no allocation), and never returns from wait_for_signal.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => wait_for_signal(uid, parent.as_raw_nonzero().get(), child_end.as_raw_fd()),
            pid => {
                drop(child_end);
                let victim = Self(Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?);
                match rustix::io::read(&ready, &mut [0]) {
                    Ok(1) => Ok(victim),
                    Ok(_) => Err(io::Error::other("it exited too early")),
                    Err(errno) => Err(errno.into()),
                }
            }
        }
    }

    fn pid(&self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether the child has exited. It stays a zombie until drop, so the pid is not reused.
    fn has_ended(&self) -> bool {
        let options = rustix::process::WaitIdOptions::EXITED
            | rustix::process::WaitIdOptions::NOHANG
            | rustix::process::WaitIdOptions::NOWAIT;
        let ended = rustix::process::waitid(rustix::process::WaitId::Pid(self.0), options);
        matches!(ended, Ok(Some(_)))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // The child is not reaped yet, so the pid is not reused.
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}

/// Handler of SIGTERM.
extern "C" fn exit_on_sigterm(_signal: libc::c_int) {
    // SAFETY: takes an integer, and may be called in a handler.
    unsafe { libc::_exit(0) }
}

/// Body of the child. System calls only: locks that other threads held at the fork stay locked.
fn wait_for_signal(uid: Uid, parent: i32, ready: i32) -> ! {
    let handler: extern "C" fn(libc::c_int) = exit_on_sigterm;
    // SAFETY: all of these take integers, but write, which reads one byte that is there, and those
    // that take a set of signals, which is ours.
    unsafe {
        let mut term = std::mem::zeroed();
        libc::sigemptyset(&mut term);
        libc::sigaddset(&mut term, libc::SIGTERM);
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        // The parent blocked SIGTERM before the fork.
        libc::sigprocmask(libc::SIG_UNBLOCK, &term, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The raw call affects this thread, the only one. If refused, the uid stays the parent's.
        libc::syscall(libc::SYS_setresuid, uid.0, uid.0, uid.0);
        // The change of uid cleared it. It has no effect if the parent has exited meanwhile.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        libc::write(ready, [1u8].as_ptr().cast(), 1);
        loop {
            libc::pause();
        }
    }
}
