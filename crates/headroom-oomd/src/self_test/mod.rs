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

mod common;
mod fake_watch;
mod system_memory;
mod victim;

use std::time::Instant;

use memory_ledger::{Limit, Requester, Source, Uid};
use memory_watch::{ProcessSample, Watch};
use reclaim::{Mrelease, Progress, Reaper, Reclaim};

use crate::oom::OomManager;
pub use common::SelfTestError;
use common::{
    HARD_PAGES, POLL_INTERVAL, TIMEOUT, UID, io, not_killed, oom_manager_with_fake_watch,
    sample_of, wait_for_decision,
};
use fake_watch::FakeWatchControl;
use system_memory::SystemMemoryTest;
use victim::Victim;

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
            let start = || Victim::start(UID).map_err(|e| io("cannot start a victim", e));
            let reaper = || Reaper::start(1).map_err(|e| io("cannot start a reaper", e));
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
