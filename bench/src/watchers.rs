//! Programs that watch page-fault work, compared with none, alternately.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use libbpf_rs::Link;
use memory_ledger::{AccountId, Uid};
use memory_watch::notifier::CountRuns;
use memory_watch::{Notifier, SlotLimit, Watch};

use crate::fault_work::{Work, Worker};
use crate::poll_by_timer::{self, LookByTimer, PERIOD};
use crate::scan_every_event::ScanEveryEvent;

/// Scans of the timer that its cost is the mean of.
const LOOKS: u32 = 20;

/// One of the compared watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watcher {
    /// None: the baseline of the others.
    Nobody,
    /// The notifier without any limit, and so detached.
    NoLimit,
    /// The notifier, with this limit.
    Headroom(SlotLimit),
    /// Every event scans all processes.
    EveryEvent,
    /// A timer scans all processes.
    Timer,
}

impl Watcher {
    /// Name of the subject in results.
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

/// Time that some work took, all workers together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// From the first order to the last answer, nanoseconds.
    pub wall_ns: u64,
}

/// Work of the notifier meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events {
    /// Events that its programs ran for.
    pub events: u64,
    /// Run time of all events, nanoseconds, including the measurement.
    pub ns: u64,
}

/// All watchers, for one user.
pub struct Watchers {
    uid: Uid,
    notifier: Notifier,
    every_event: Option<ScanEveryEvent>,
    /// Scans until it is dropped.
    timer: Option<LookByTimer>,
    /// CPU time of one of its scans, nanoseconds.
    look_ns: f64,
}

impl Watchers {
    /// Loads the watchers in the kernel. If the kernel cannot scan at every event, that one is left
    /// out and the reason is printed.
    pub fn new(uid: Uid) -> Result<Self> {
        let notifier = Notifier::load().context("the notifier cannot be loaded")?;
        let every_event = ScanEveryEvent::load(uid)
            .inspect_err(|error| eprintln!("no scan at every event: {error:#}"))
            .ok();
        let look_ns = poll_by_timer::cost_ns(LOOKS)?;
        Ok(Self { uid, notifier, every_event, timer: None, look_ns })
    }

    fn account(&self) -> AccountId {
        AccountId::User(self.uid)
    }

    /// Whether this watcher is available.
    pub fn has(&self, watcher: Watcher) -> bool {
        watcher != Watcher::EveryEvent || self.every_event.is_some()
    }

    /// Runs the work on all workers concurrently, while this watcher is active.
    pub fn watch(
        &mut self,
        watcher: Watcher,
        workers: &mut [Worker],
        work: Work,
        times: usize,
    ) -> Result<Took> {
        let scan = self.begin(watcher)?;
        let attached = matches!(watcher, Watcher::Headroom(_));
        ensure!(self.notifier.is_attached() == attached, "the notifier is not as requested");
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
        ensure!(looked == scan.is_some(), "the scanning program is not as requested");
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

    /// The share of a CPU that this watcher itself uses, besides the cost for the watched
    /// processes.
    pub fn share(&self, watcher: Watcher) -> f64 {
        match watcher {
            Watcher::Timer => self.look_ns / PERIOD.as_nanos() as f64,
            _ => 0.0,
        }
    }

    /// Counts the notifier's events for some work.
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
