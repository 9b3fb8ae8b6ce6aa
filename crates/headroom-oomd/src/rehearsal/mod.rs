//! A kill for practice, before the daemon says that it is ready.
//!
//! It makes present what a kill needs of our program and its libraries, so that memory can be locked as it is:
//! a page of code that is first needed when memory is short would have to be read from disk then. And it
//! says at start what would fail in need.
//!
//! The victims are children of ours, made for it. Most are ended by a [`OomManager`] of its own, whose watch is made up and
//! shows nobody else: one at a limit; of the rest, because the machine is said to be short, one is asked to end, a herd
//! and a fork bomb are killed. The last one dies by hand, with `process_mrelease`, to see whether that works.

mod machine;
mod victim;
mod watch;

use std::time::{Duration, Instant};

use control::oomd::Outcome;
use memory_ledger::{Asker, Limit, Source, Uid};
use memory_watch::{ProcessSample, Watch};
use reclaim::{Help, Mrelease, Progress, Reaper, Reclaim};

use crate::clock::monotonic_ns;
use crate::oom::OomManager;
use machine::OfTheMachine;
use victim::Victim;
use watch::{MadeUp, Teller};

/// The victims' user: nobody's uid, far from those that are given out, so that no limit is about it.
const UID: Uid = Uid::LAST_LIMITABLE;
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
    oom: OomManager,
    told: Teller,
    /// `None`: no other user is to be had, as in some containers; root has no limits.
    at_a_limit: Option<AtALimit>,
    of_the_machine: OfTheMachine,
    victim: Victim,
    reaper: Reaper,
}

struct AtALimit {
    sample: ProcessSample,
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
            let reaper = || Reaper::start(1).map_err(|e| io("cannot start a reaper", e));
            let (at_a_limit, others) =
                (start()?, [start()?, start()?, start()?, start()?, start()?]);
            let victim = start()?;
            let mut samples = Vec::new();
            watch.processes(&mut samples)?;
            let (mut oom, told) = practising(reaper()?)?;
            Ok(Self {
                at_a_limit: AtALimit::prepare(&mut oom, &samples, at_a_limit)?,
                of_the_machine: OfTheMachine::prepare(&samples, others)?,
                oom,
                told,
                victim,
                reaper: reaper()?,
            })
        })
    }

    /// Kills them.
    pub fn run(self) -> Result<(), RehearsalError> {
        let Self { mut oom, told, at_a_limit, of_the_machine, victim, reaper } = self;
        quietly(|| {
            let practised = at_a_limit.map(|it| it.run(&mut oom, &told)).transpose()?;
            of_the_machine.run(&mut oom, &told, practised)?;
            by_hand(&victim, &reaper)
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
    fn prepare(
        oom: &mut OomManager,
        samples: &[ProcessSample],
        victim: Victim,
    ) -> Result<Option<Self>, RehearsalError> {
        let sample = sample_of(samples, &victim)?;
        if sample.uid == Uid::ROOT {
            return Ok(None);
        }
        let hard_bytes = HARD_PAGES * rustix::param::page_size() as u64;
        let limit = Limit::new(hard_bytes, None).map_err(alive)?;
        oom.set_limit(sample.uid.into(), limit, Source::Runtime, Asker::Root).map_err(alive)?;
        Ok(Some(Self { sample, victim }))
    }

    /// Returns the decision's number. There is no limit any more then.
    fn run(self, oom: &mut OomManager, told: &Teller) -> Result<u64, RehearsalError> {
        let account = self.sample.uid.into();
        told.show(vec![self.sample], Vec::new());
        told.break_soft(account);
        oom.dispatch();
        told.break_hard(account);
        oom.dispatch();
        let decision = wait_for_decision(oom, None, || {
            if self.victim.has_ended() {
                told.is_gone();
            }
        })?;
        oom.clear_limit(account, Asker::Root).map_err(alive)?;
        Ok(decision)
    }
}

/// Has the manager go on until its last decision, another one than `before`, has ended. `look` looks after the rest.
fn wait_for_decision(
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
fn practising(reaper: Reaper) -> Result<(OomManager, Teller), RehearsalError> {
    let made_up = MadeUp::new(HARD_PAGES).map_err(|e| io("cannot make an eventfd", e))?;
    let told = made_up.teller();
    let oom = OomManager::builder(Box::new(made_up), reaper).build();
    let oom = oom.map_err(|e| io("cannot make epoll", e))?;
    Ok((oom, told))
}

/// A victim as the real watch shows it, but large.
fn sample_of(samples: &[ProcessSample], victim: &Victim) -> Result<ProcessSample, RehearsalError> {
    let found = samples.iter().find(|sample| sample.tgid == victim.pid());
    let sample = *found.ok_or(RehearsalError::Unseen(victim.pid()))?;
    // A child has its parent's oom_score_adj, and ours may be the one of those that nobody kills.
    Ok(ProcessSample { anon_pages: HARD_PAGES, oom_score_adj: 0, ..sample })
}

/// The victim is held, and its memory taken from outside.
fn by_hand(child: &Victim, reaper: &Reaper) -> Result<(), RehearsalError> {
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
