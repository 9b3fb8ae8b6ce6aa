//! A kill for practice, before the daemon says that it is ready.
//!
//! It makes present what a kill needs of our program and its libraries, so that memory can be
//! locked as it is: a page of code that is first needed when memory is short would have to be read
//! from disk then. And it says at start what would fail in need.
//!
//! The victims are children of ours, made for it. Most are ended by a [`OomManager`] of its own,
//! whose watch is made up and shows nobody else: one at a limit; of the rest, because the machine
//! is said to be short, one is asked to end, a herd and a fork bomb are killed. The last one dies
//! by hand, with `process_mrelease`, to see whether that works.

mod machine;
mod practice;
mod victim;
mod watch;

use std::time::Instant;

use memory_ledger::{Limit, Requester, Source, Uid};
use memory_watch::{ProcessSample, Watch};
use reclaim::{Mrelease, Progress, Reaper, Reclaim};

use crate::oom::OomManager;
use machine::OfTheMachine;
pub use practice::RehearsalError;
use practice::{
    HARD_PAGES, PATIENCE, PAUSE, UID, alive, io, practising, sample_of, wait_for_decision,
};
use victim::Victim;
use watch::Teller;

/// All that is needed for it, made beforehand: so that the practice itself uses what a kill uses,
/// and no more.
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
        oom.set_limit(sample.uid.into(), limit, Source::Runtime, Requester::Root).map_err(alive)?;
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
        oom.clear_limit(account, Requester::Root).map_err(alive)?;
        Ok(decision)
    }
}

/// The victim is killed, and its memory released by a reaper.
fn by_hand(child: &Victim, reaper: &Reaper) -> Result<(), RehearsalError> {
    let victim = reclaim::Victim::open(child.pid()).map_err(alive)?;
    victim.send_kill().map_err(alive)?;
    let mut reclaim = Reclaim::new(victim);
    let begun = Instant::now();
    while reclaim.step(reaper, 0) != Progress::Gone {
        if begun.elapsed() >= PATIENCE {
            return Err(alive("it was killed and does not go"));
        }
        std::thread::sleep(PAUSE);
        reaper.drain(|_, done| {
            reclaim.helped(done);
        });
    }
    match reclaim.mrelease() {
        Some(Mrelease::Failed(errno)) => Err(alive(format!("process_mrelease: {errno}"))),
        _ => Ok(()),
    }
}
