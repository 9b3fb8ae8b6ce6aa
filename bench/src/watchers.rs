//! Page-fault work with and without the notifier, alternately.

use anyhow::{Context, Result, ensure};
use memory_ledger::{AccountId, Uid};
use memory_watch::notifier::CountRuns;
use memory_watch::{Notifier, SlotLimit, Watch};

use crate::fault_work::{self, Work};
use crate::peer::Worker;

/// Work of the notifier meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events {
    /// Events that its programs ran for.
    pub events: u64,
    /// Run time of all events, nanoseconds, including the measurement.
    pub ns: u64,
}

/// The notifier, for one user.
pub struct Watcher {
    account: AccountId,
    notifier: Notifier,
}

impl Watcher {
    /// Loads the notifier in the kernel.
    pub fn new(uid: Uid) -> Result<Self> {
        let notifier = Notifier::load().context("the notifier cannot be loaded")?;
        Ok(Self { account: AccountId::User(uid), notifier })
    }

    /// Runs the work on all workers concurrently, while the user has this limit; without one, the
    /// notifier is detached. Returns their CPU time, nanoseconds.
    pub fn watch(
        &mut self,
        limit: Option<SlotLimit>,
        workers: &mut [Worker],
        work: Work,
        times: usize,
    ) -> Result<u64> {
        if let Some(limit) = limit {
            self.notifier.set_limit(self.account, limit)?;
        }
        let attached = self.notifier.is_attached();
        ensure!(attached == limit.is_some(), "the notifier is not as requested");
        workers.iter_mut().try_for_each(|worker| fault_work::begin(worker, work, times))?;
        let cpu_ns = workers.iter_mut().map(fault_work::finish).sum();
        if limit.is_some() {
            self.notifier.clear_limit(self.account)?;
        }
        cpu_ns
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
        self.watch(Some(limit), workers, work, times)?;
        let after = self.notifier.run_stats()?;
        Ok(Events { events: after.runs - before.runs, ns: after.run_time_ns - before.run_time_ns })
    }
}
