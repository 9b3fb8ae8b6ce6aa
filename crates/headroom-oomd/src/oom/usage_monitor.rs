//! Actual usage of accounts: has it measured, and corrects the accounts.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use memory_ledger::{
    AccountId, Demand, KillsInFlight, Limit, Measurement, Measurements, Need, Order, Sum,
    UsageSource,
};
use memory_watch::{Correction, ProcessSample};

use super::accounts::Accounts;
use super::charge::{self, Size, size_by};
use crate::clock::monotonic_ns;
use crate::usage::{Files, Member, Request, UsageWorker};

/// Measurements that begin in one turn of the event loop; others follow in the next one.
const MOST_BEGUN: usize = 32;

/// When accounts are measured. Without a worker each account is taken for its sum.
#[derive(Default)]
pub(super) struct UsageMonitor {
    measurements: Measurements,
    worker: Option<UsageWorker>,
    /// Accounts that may hold what their sums do not show.
    unseen: BTreeSet<AccountId>,
}

impl UsageMonitor {
    pub(super) fn set_worker(&mut self, worker: UsageWorker) {
        self.worker = Some(worker);
    }

    /// Readable when a measurement has ended.
    pub(super) fn events_fd(&self) -> Option<BorrowedFd<'_>> {
        self.worker.as_ref().map(AsFd::as_fd)
    }

    /// The account may need measurements from now on.
    pub(super) fn follow(&mut self, account: AccountId) {
        if self.worker.is_some() {
            self.measurements.follow(account);
        }
    }

    /// The account may hold what its sum does not show.
    pub(super) fn search(&mut self, account: AccountId) {
        if self.worker.is_some() {
            self.unseen.insert(account);
            self.measurements.follow(account);
        }
    }

    /// The account's limit is gone.
    pub(super) fn forget(&mut self, account: AccountId) {
        self.measurements.forget(account);
        self.unseen.remove(&account);
    }

    /// How the account's usage was found.
    pub(super) fn source(&self, account: AccountId) -> UsageSource {
        self.measurements.source(account)
    }

    /// The account is over its limit by what cannot be shared, or was measured.
    pub(super) fn may_kill(&mut self, account: AccountId, sum: Sum, limit: Limit) -> bool {
        match self.worker {
            Some(_) => self.measurements.may_kill(account, sum, limit, monotonic_ns()),
            None => sum.used_bytes() > limit.hard_bytes(),
        }
    }

    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.measurements.next_deadline_ns()
    }
}

impl Accounts {
    /// What an account holds by its processes' resident sets.
    fn sum(&self, account: AccountId) -> Option<(Sum, Limit)> {
        let limit = self.ledger().account(account)?.limit();
        let usage = self.watch().usage(account)?;
        let bytes = |pages: u64| pages * self.page_bytes();
        let sum = Sum {
            summed_bytes: bytes(usage.summed_pages()),
            unconfirmed_bytes: bytes(usage.unconfirmed_pages),
            correction_bytes: usage.correction_pages * self.page_bytes() as i64,
        };
        Some((sum, limit))
    }

    /// How an account's usage was found.
    pub(super) fn usage_source(&self, account: AccountId) -> UsageSource {
        self.usage.source(account)
    }

    /// A process may be killed because this account is over its limit.
    pub(super) fn may_kill(&mut self, account: AccountId) -> bool {
        let Some((sum, limit)) = self.sum(account) else { return false };
        self.usage.may_kill(account, sum, limit)
    }

    /// Measurements whose time has come.
    pub(super) fn due_measurements(&mut self) -> Vec<DueOrder> {
        let Some(worker) = &self.usage.worker else { return Vec::new() };
        worker.set_limit_count(self.ledger().accounts().len());
        if worker.take_growth() {
            self.ids().into_iter().for_each(|account| self.usage.search(account));
        }
        let now_ns = monotonic_ns();
        let followed: Vec<AccountId> = self.usage.measurements.accounts().collect();
        let mut due = Vec::new();
        for account in followed {
            let Some((sum, limit)) = self.sum(account) else {
                self.usage.forget(account);
                continue;
            };
            let unseen = self.usage.unseen.contains(&account);
            let demand = if unseen { Demand::Unseen } else { Demand::Usage };
            if due.len() < MOST_BEGUN
                && let Some(order) =
                    self.usage.measurements.begin(account, Need { sum, limit, demand }, now_ns)
            {
                self.usage.unseen.remove(&account);
                due.push(DueOrder { order, limit, demand });
            }
        }
        due
    }

    /// Processes could not be listed: these are ordered again later.
    pub(super) fn cancel_orders(&mut self, due: &[DueOrder]) {
        let now_ns = monotonic_ns();
        for due in due {
            self.usage.measurements.cancel(due.order.account, now_ns);
        }
    }

    /// Sends these measurements to the worker.
    pub(super) fn send_orders(
        &mut self,
        due: Vec<DueOrder>,
        samples: &[ProcessSample],
        kills: &KillsInFlight,
    ) {
        let mut members: BTreeMap<AccountId, Vec<Member>> =
            due.iter().map(|due| (due.order.account, Vec::new())).collect();
        let mut seen = BTreeSet::new();
        for sample in samples {
            let account = charge::account_of(self.ledger(), sample);
            let Some(members) = members.get_mut(&account) else { continue };
            // Processes that share an address space are charged once, where that is known.
            let first = sample.mm_id == 0 || seen.insert(sample.mm_id);
            if first && !kills.contains(sample.id()) && self.is_charged(account, sample) {
                members.extend(self.member(account, sample));
            }
        }
        for DueOrder { order, limit, demand } in due {
            let files = match demand {
                Demand::Unseen => Files::Search,
                Demand::Usage => Files::AsBefore,
            };
            let members = members.remove(&order.account).unwrap_or_default();
            let request = Request { order, count: limit.count(), members, files };
            let Some(worker) = &self.usage.worker else { return };
            if worker.request(request).is_err() {
                // Its queue is full: it is ordered again later.
                self.usage.measurements.cancel(order.account, monotonic_ns());
            }
        }
    }

    /// Of a process that shares its address space with another user's, the other user may pay.
    fn is_charged(&self, account: AccountId, sample: &ProcessSample) -> bool {
        sample.mm_id == 0
            || matches!(self.watch().charged(sample), Ok(Some(it)) if it.account == account)
    }

    fn member(&self, account: AccountId, sample: &ProcessSample) -> Option<Member> {
        let count = self.ledger().account(account)?.limit().count();
        let Size { rss_bytes, swap_bytes } = size_by(count, sample, self.page_bytes());
        Some(Member {
            id: sample.id(),
            uid: sample.uid,
            charged_bytes: rss_bytes + swap_bytes,
            shmem_bytes: sample.shmem_pages * self.page_bytes(),
            page_table_bytes: sample.page_table_bytes,
        })
    }

    /// Corrects the accounts whose measurements have ended, and returns them.
    pub(super) fn apply_measurements(&mut self) -> Vec<AccountId> {
        let measured = match &self.usage.worker {
            Some(worker) => worker.take_measured(),
            None => return Vec::new(),
        };
        measured.into_iter().filter_map(|measurement| self.apply_measurement(measurement)).collect()
    }

    fn apply_measurement(&mut self, measurement: Measurement) -> Option<AccountId> {
        let account = measurement.account;
        let limit = self.ledger().account(account)?.limit();
        let end = self.usage.measurements.end(measurement, limit, monotonic_ns())?;
        let page_bytes = self.page_bytes();
        let correction = Correction {
            pages: end.bytes / page_bytes as i64,
            summed_pages: end.summed_bytes / page_bytes,
            confirmed_pages: end.confirmed_bytes / page_bytes,
        };
        tracing::debug!(%account, ?measurement, ?correction, "usage measured");
        if let Err(error) = self.watch_mut().correct(account, correction) {
            tracing::warn!(%account, "cannot correct the account: {error}");
        }
        Some(account)
    }
}

/// A measurement that begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueOrder {
    order: Order,
    limit: Limit,
    demand: Demand,
}
