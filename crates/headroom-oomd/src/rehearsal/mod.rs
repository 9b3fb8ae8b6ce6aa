//! A kill for practice, before the daemon says that it is ready.
//!
//! It makes present what a kill needs of our program and its libraries, so that memory can be locked as it is:
//! a page of code that is first needed when memory is short would have to be read from disk then. And it
//! says at start what would fail in need.
//!
//! The victims are two children of ours, made for it. One is ended by a [`Killer`] of its own, whose
//! watch is made up, the other by the path of the machine's triggers, with `process_mrelease`.

mod victim;
mod watch;

use std::time::{Duration, Instant};

use control::oomd::Outcome;
use memory_ledger::{Asker, Limit, Source};
use memory_watch::{ProcessSample, Watch};
use reclaim::{Help, Mrelease, Progress, Reaper, Reclaim};

use crate::clock::monotonic_ns;
use crate::killer::Killer;
use victim::Victim;
use watch::{MadeUp, Teller};

/// The victims' user: nobody's uid, far from those that are given out, so that no limit is about it.
const UID: u32 = memory_ledger::cgroup::FIRST_CGROUP - 1;
/// What the made-up user may have, pages.
const HARD_PAGES: u64 = 4096;
/// How long the practice may take; it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(200);

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

/// All that is needed for it, made beforehand: so that the practice itself uses what a kill uses, and no more.
pub struct Rehearsal {
    /// `None`: no other user is to be had, as in some containers; root has no limits.
    at_a_limit: Option<AtALimit>,
    victim: Victim,
    reaper: Reaper,
}

struct AtALimit {
    killer: Killer,
    uid: u32,
    told: Teller,
    victim: Victim,
}

/// Nothing is logged of the practice.
fn quietly<T>(f: impl FnOnce() -> T) -> T {
    tracing::subscriber::with_default(tracing::subscriber::NoSubscriber::new(), f)
}

impl Rehearsal {
    /// Starts the victims; `watch` is asked for processes only.
    pub fn prepare(watch: &dyn Watch) -> Result<Self, RehearsalError> {
        quietly(|| {
            let start = || Victim::start(UID).map_err(|e| io("cannot start a victim", e));
            let reaper = Reaper::start(1).map_err(|e| io("cannot start a reaper", e))?;
            Ok(Self { at_a_limit: AtALimit::prepare(watch, start()?)?, victim: start()?, reaper })
        })
    }

    /// Kills them.
    pub fn run(self) -> Result<(), RehearsalError> {
        let Self { at_a_limit, victim, reaper } = self;
        quietly(|| {
            at_a_limit.map_or(Ok(()), AtALimit::run)?;
            for_the_machine(&victim, &reaper)
        })
    }
}

fn io(doing: &'static str, error: std::io::Error) -> RehearsalError {
    RehearsalError::Io(doing, error)
}

fn alive(why: impl std::fmt::Display) -> RehearsalError {
    RehearsalError::Alive(why.to_string())
}

/// A limit is broken, and the daemon has to kill.
impl AtALimit {
    fn prepare(watch: &dyn Watch, victim: Victim) -> Result<Option<Self>, RehearsalError> {
        let mut samples = Vec::new();
        watch.processes(&mut samples)?;
        let found = samples.iter().find(|sample| sample.tgid == victim.pid());
        let sample = *found.ok_or(RehearsalError::Unseen(victim.pid()))?;
        if sample.uid == 0 {
            return Ok(None);
        }
        // A child has its parent's oom_score_adj, and ours may be the one of those that nobody kills.
        let sample = ProcessSample { anon_pages: HARD_PAGES, oom_score_adj: 0, ..sample };
        let made_up = MadeUp::new(sample);
        let made_up = made_up.map_err(|e| io("cannot make an eventfd", e))?;
        let (told, uid) = (made_up.teller(), sample.uid);
        let reaper = Reaper::start(1).map_err(|e| io("cannot start a reaper", e))?;
        let mut killer =
            Killer::new(Box::new(made_up), reaper).map_err(|e| io("cannot make epoll", e))?;
        let hard_bytes = HARD_PAGES * rustix::param::page_size() as u64;
        let limit = Limit::new(hard_bytes, None).map_err(alive)?;
        killer.set_limit(uid, limit, Source::Runtime, Asker::Root).map_err(alive)?;
        Ok(Some(Self { killer, uid, told, victim }))
    }

    fn run(mut self) -> Result<(), RehearsalError> {
        self.told.break_soft(self.uid);
        self.killer.dispatch();
        self.told.break_hard(self.uid);
        self.killer.dispatch();
        let begun = Instant::now();
        loop {
            let last = self.killer.records().latest(1, None).pop();
            match last.map(|why| why.outcome) {
                Some(Outcome::Reclaimed { .. }) => return Ok(()),
                Some(Outcome::Dying) if begun.elapsed() < PATIENCE => {}
                Some(outcome) => return Err(alive(format!("it came to this: {outcome:?}"))),
                None => return Err(alive("nobody was chosen")),
            }
            std::thread::sleep(PAUSE);
            if self.victim.has_ended() {
                self.told.is_gone();
            }
            self.killer.dispatch();
        }
    }
}

/// The machine is short of memory: the victim is held, and its memory taken from outside.
fn for_the_machine(child: &Victim, reaper: &Reaper) -> Result<(), RehearsalError> {
    let victim = reclaim::Victim::open(child.pid()).map_err(alive)?;
    victim.hold_and_kill().map_err(alive)?;
    let mut reclaim = Reclaim::new(victim, Help::default());
    let begun = Instant::now();
    while reclaim.step(monotonic_ns(), reaper, 0) != Progress::Gone {
        if begun.elapsed() >= PATIENCE {
            return Err(alive("it was killed and does not go"));
        }
        std::thread::sleep(PAUSE);
        reaper.drain(|_, done| {
            reclaim.helped(monotonic_ns(), done);
        });
    }
    match reclaim.mrelease() {
        Some(Mrelease::Failed(errno)) => Err(alive(format!("process_mrelease: {errno}"))),
        _ => Ok(()),
    }
}
