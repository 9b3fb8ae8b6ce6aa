//! What all parts of the practice share.

use std::time::{Duration, Instant};

use control::oomd::Outcome;
use memory_ledger::Uid;
use memory_watch::ProcessSample;
use reclaim::Reaper;

use super::victim::Victim;
use super::watch::{MadeUp, Teller};
use crate::oom::OomManager;

/// The victims' user: nobody's uid, far from those that are given out, so that no limit is about
/// it.
pub(super) const UID: Uid = Uid::LAST_LIMITABLE;
/// What the made-up user may have, pages.
pub(super) const HARD_PAGES: u64 = 4096;
/// How long the practice may take; it takes milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks.
pub(super) const PAUSE: Duration = Duration::from_micros(200);

/// Why the practice failed.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// Something that it needs.
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
    /// The processes cannot be listed.
    #[error("cannot list processes: {0}")]
    List(#[from] memory_watch::NotifierError),
    /// A victim that the list does not show.
    #[error("the list of processes does not show the victim, pid {0}")]
    Unseen(u32),
    /// The victim was not chosen, or did not go.
    #[error("{0}")]
    Alive(String),
}

pub(super) fn io(doing: &'static str, error: std::io::Error) -> RehearsalError {
    RehearsalError::Io(doing, error)
}

pub(super) fn alive(why: impl std::fmt::Display) -> RehearsalError {
    RehearsalError::Alive(why.to_string())
}

/// Has the manager go on until its last decision, another one than `before`, has ended. `look`
/// looks after the rest.
pub(super) fn wait_for_decision(
    oom: &mut OomManager,
    before: Option<u64>,
    look: impl Fn(),
) -> Result<u64, RehearsalError> {
    let begun = Instant::now();
    loop {
        let last = oom.records().latest(1, None).pop().filter(|why| Some(why.id) != before);
        let Some(last) = last else { return Err(alive("nobody was chosen")) };
        match last.outcome {
            Outcome::Reclaimed { .. } => return Ok(last.id),
            Outcome::Dying if begun.elapsed() < PATIENCE => {}
            outcome => return Err(alive(format!("it came to this: {outcome:?}"))),
        }
        std::thread::sleep(PAUSE);
        look();
        oom.dispatch();
    }
}

/// A manager whose watch shows what it is told to.
pub(super) fn practising(reaper: Reaper) -> Result<(OomManager, Teller), RehearsalError> {
    let made_up = MadeUp::new(HARD_PAGES).map_err(|e| io("cannot make an eventfd", e))?;
    let told = made_up.teller();
    let oom = OomManager::builder(Box::new(made_up), reaper).build();
    let oom = oom.map_err(|e| io("cannot make epoll", e))?;
    Ok((oom, told))
}

/// A victim as the real watch shows it, but large.
pub(super) fn sample_of(
    samples: &[ProcessSample],
    victim: &Victim,
) -> Result<ProcessSample, RehearsalError> {
    let found = samples.iter().find(|sample| sample.tgid == victim.pid());
    let sample = *found.ok_or(RehearsalError::Unseen(victim.pid()))?;
    // A child has its parent's oom_score_adj, and ours may be the one of those that nobody kills.
    Ok(ProcessSample { anon_pages: HARD_PAGES, oom_score_adj: 0, ..sample })
}
