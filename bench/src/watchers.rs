//! Who watches page-fault work, or nobody, in turns.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use libbpf_rs::Link;
use memory_ledger::{AccountId, Uid};
use memory_watch::notifier::CountRuns;
use memory_watch::{Notifier, SlotLimit, Watch};

use crate::fault_work::{Work, Worker};
use crate::look_by_timer::{self, LookByTimer, PERIOD};
use crate::scan_every_event::ScanEveryEvent;

/// Looks of the timer that its cost is the mean of.
const LOOKS: u32 = 20;

/// One of those who take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watcher {
    /// Nobody: what the others are compared with.
    Nobody,
    /// The notifier without any limit, and so detached.
    NoLimit,
    /// The notifier, with this limit.
    Headroom(SlotLimit),
    /// Every event looks at all processes.
    EveryEvent,
    /// A timer looks at all processes.
    Timer,
}

impl Watcher {
    /// The subject in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nobody => "no notifier",
            Self::NoLimit => "headroom, no limit",
            Self::Headroom(_) => "headroom",
            Self::EveryEvent => "naive scan an event",
            Self::Timer => "timer, 200 ms",
        }
    }
}

/// What some work took, all workers together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// From the first order to the last answer, nanoseconds.
    pub wall_ns: u64,
}

/// What the notifier did meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events {
    /// Events that it was told of.
    pub events: u64,
    /// What it took for all, nanoseconds, measuring included.
    pub ns: u64,
}

/// All of them, one user.
pub struct Watchers {
    uid: Uid,
    notifier: Notifier,
    every_event: Option<ScanEveryEvent>,
    /// Looks for as long as it is there.
    timer: Option<LookByTimer>,
    /// What one of its looks costs, CPU time.
    look_ns: f64,
}

impl Watchers {
    /// Loads those that watch in the kernel. Where that cannot scan at every event it is left out,
    /// and the reason is said.
    pub fn new(uid: Uid) -> Result<Self> {
        let notifier = Notifier::load().context("the notifier cannot be loaded")?;
        let every_event = ScanEveryEvent::load(uid)
            .inspect_err(|error| eprintln!("no scan at every event: {error:#}"))
            .ok();
        let look_ns = look_by_timer::cost_ns(LOOKS)?;
        Ok(Self { uid, notifier, every_event, timer: None, look_ns })
    }

    fn account(&self) -> AccountId {
        AccountId::User(self.uid)
    }

    /// Whether this one is to be had.
    pub fn has(&self, watcher: Watcher) -> bool {
        watcher != Watcher::EveryEvent || self.every_event.is_some()
    }

    /// Has all workers do their work at once, while this one watches.
    pub fn watch(
        &mut self,
        watcher: Watcher,
        workers: &mut [Worker],
        work: Work,
        times: usize,
    ) -> Result<Took> {
        let scan = self.begin(watcher)?;
        let attached = matches!(watcher, Watcher::Headroom(_));
        ensure!(self.notifier.is_attached() == attached, "the notifier is not as told");
        let looks = self.looks()?;
        let begun = Instant::now();
        for worker in workers.iter_mut() {
            worker.begin(work, times)?;
        }
        let mut cpu_ns = 0;
        for worker in workers.iter_mut() {
            cpu_ns += worker.finish()?;
        }
        let wall_ns = begun.elapsed().as_nanos() as u64;
        let looked = self.looks()? > looks;
        ensure!(looked == scan.is_some(), "the scanning program is not as told");
        drop(scan);
        self.end(watcher)?;
        Ok(Took { cpu_ns, wall_ns })
    }

    fn looks(&self) -> Result<u64> {
        self.every_event.as_ref().map_or(Ok(0), |scan| Ok(scan.looks()?.looks))
    }

    fn begin(&mut self, watcher: Watcher) -> Result<Option<Link>> {
        match watcher {
            Watcher::Nobody | Watcher::NoLimit => {}
            Watcher::Headroom(limit) => self.notifier.set_limit(self.account(), limit)?,
            Watcher::EveryEvent => return self.scanning(),
            Watcher::Timer => self.timer = Some(LookByTimer::start()?),
        }
        Ok(None)
    }

    fn scanning(&self) -> Result<Option<Link>> {
        let scan = self.every_event.as_ref().context("no scan at every event")?;
        scan.attach().map(Some)
    }

    fn end(&mut self, watcher: Watcher) -> Result<()> {
        if let Watcher::Headroom(_) = watcher {
            self.notifier.clear_limit(self.account())?;
        }
        self.timer = None;
        Ok(())
    }

    /// The share of a CPU that this watcher itself takes, besides what the watched pay.
    pub fn share(&self, watcher: Watcher) -> f64 {
        match watcher {
            Watcher::Timer => self.look_ns / PERIOD.as_nanos() as f64,
            _ => 0.0,
        }
    }

    /// Counts what the notifier has to do with some work.
    pub fn count(
        &mut self,
        limit: SlotLimit,
        workers: &mut [Worker],
        work: Work,
        times: usize,
    ) -> Result<Events> {
        let _counting = CountRuns::start()?;
        let before = self.notifier.run_stats()?;
        self.watch(Watcher::Headroom(limit), workers, work, times)?;
        let after = self.notifier.run_stats()?;
        Ok(Events { events: after.runs - before.runs, ns: after.run_time_ns - before.run_time_ns })
    }
}
