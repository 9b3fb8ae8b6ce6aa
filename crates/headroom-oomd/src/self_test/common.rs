//! Constants, errors and waiting, shared by all parts of the self-test.

use std::time::{Duration, Instant};

use control::oomd::{Outcome, Why};
use memory_ledger::Uid;
use memory_watch::ProcessSample;
use reclaim::Reaper;

use super::fake_watch::{FakeWatch, FakeWatchControl};
use super::victim::Victim;
use crate::oom::OomManager;

/// Uid of the victims: outside the ranges that are assigned, so that no limit applies to it.
pub(super) const UID: Uid = Uid::LAST_LIMITABLE;
/// Hard limit of the fake user.
pub(super) const HARD_PAGES: u64 = 4096;
/// Timeout of each step; a step takes milliseconds.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
/// Polling interval.
pub(super) const POLL_INTERVAL: Duration = Duration::from_micros(200);

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

pub(super) fn io(doing: &'static str, error: std::io::Error) -> SelfTestError {
    SelfTestError::Io(doing, error)
}

pub(super) fn not_killed(why: impl std::fmt::Display) -> SelfTestError {
    SelfTestError::NotKilled(why.to_string())
}

/// Dispatches until the latest decision, other than `before`, has ended; calls `poll` in between.
pub(super) fn wait_for_decision(
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
pub(super) fn last_kill(oom: &OomManager) -> Option<Why> {
    oom.records().latest(LATEST, None).into_iter().find(|why| why.victim.is_some())
}

/// A manager with a fake watch, and the control of that watch.
pub(super) fn oom_manager_with_fake_watch(
    reaper: Reaper,
) -> Result<(OomManager, FakeWatchControl), SelfTestError> {
    let watch = FakeWatch::new(HARD_PAGES).map_err(|e| io("cannot make an eventfd", e))?;
    let control = watch.control();
    let oom = OomManager::builder(Box::new(watch), reaper).build();
    let oom = oom.map_err(|e| io("cannot make epoll", e))?;
    Ok((oom, control))
}

/// The victim's sample from the real watch, with a large size.
pub(super) fn sample_of(
    samples: &[ProcessSample],
    victim: &Victim,
) -> Result<ProcessSample, SelfTestError> {
    let found = samples.iter().find(|sample| sample.tgid == victim.pid());
    let sample = *found.ok_or(SelfTestError::NotListed(victim.pid()))?;
    // The child inherits oom_score_adj, and the daemon's may exclude it from every choice.
    Ok(ProcessSample { anon_pages: HARD_PAGES, oom_score_adj: 0, ..sample })
}
