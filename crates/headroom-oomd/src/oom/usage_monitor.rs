//! Actual usage of accounts: starts measurements, and corrects the accounts by them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use headroom_linux::clock::monotonic_ns;
use memory_ledger::{
    AccountId, Demand, Effort, KillsInFlight, Limit, Measurement, Measurements, NS_PER_MS, Need,
    Order, ProcessId, SumState, SumUpdates, UsageSource, Victims, controller_use,
};
use memory_watch::{Backend, Correction, ProcessSample, SpaceState, UnlistedSpace};

use super::accounts::{Accounts, Size, size_by};
use super::scan_timer::CALM_SCAN_SHARE;
use super::shared_state::ProcessSnapshot;
use crate::usage::{
    FileSearchMode, GROWTH_BYTES, Held, Holder, Measured, Member, Request, Unlisted, UsageWorker,
};

/// Maximum number of measurements started per iteration of the event loop; others follow in the
/// next one.
const MOST_BEGUN: usize = 32;

/// Interval of looking for pages that are to be confirmed in idle time, milliseconds. A look takes
/// 0.1 µs per account; with very many accounts the interval is longer, as for calm scans.
const LOOK_MS: u64 = 250;
/// Pause between two searches for memory files, milliseconds. A search takes 4 µs for each open
/// file.
const RENEW_MS: u64 = 500;
/// Maximum time that a kill waits for the first search, milliseconds.
const PATIENCE_MS: u64 = 100;
/// An address space that is used and does not grow notably for this long belongs to no fork in
/// progress: it is kept, milliseconds. The measurement and the kill follow within the second for
/// which an account may exceed its limit.
const KEPT_MS: u64 = 400;
/// Growth by this fraction is notable. A system call can add single pages to an address space that
/// it keeps; a fork copies faster.
const NOTABLE_SHARE: u64 = 8;

/// Schedules measurements of accounts. Without a worker the sum of its processes is used for each
/// account.
#[derive(Default)]
pub(super) struct UsageMonitor {
    measurements: Measurements,
    worker: Option<UsageWorker>,
    unlisted_spaces: UnlistedSpaces,
    file_search: FileSearch,
    next_look_ns: u64,
}

impl UsageMonitor {
    pub(super) fn new(worker: Option<UsageWorker>) -> Self {
        Self { worker, ..Self::default() }
    }

    /// Readable when a measurement has ended.
    pub(super) fn events_fd(&self) -> Option<BorrowedFd<'_>> {
        self.worker.as_ref().map(AsFd::as_fd)
    }

    /// Measures the account when needed from now on.
    pub(super) fn follow(&mut self, account: AccountId) {
        if self.worker.is_some() {
            self.measurements.follow(account);
        }
    }

    /// Searches for memory that the account holds and its sum does not show.
    pub(super) fn search(&mut self, account: AccountId) {
        if self.worker.is_some() {
            self.measurements.search(account);
        }
    }

    /// Drops the state of an account whose limit is gone.
    pub(super) fn forget(&mut self, account: AccountId) {
        self.measurements.forget(account);
        self.unlisted_spaces.forget(account);
    }

    /// The source of the account's usage.
    pub(super) fn source(&self, account: AccountId) -> UsageSource {
        self.measurements.source(account)
    }

    /// The part of the account's usage that counts more than once, as far as it is known, bytes.
    pub(super) fn shared_bytes(&self, account: AccountId, accounts: &Accounts) -> u64 {
        let unconfirmed = accounts.sum(account).map_or(0, |(sum, _)| sum.unconfirmed_bytes);
        self.measurements.shared_bytes(account).min(unconfirmed)
    }

    /// The sources of all accounts that are measured at present.
    pub(super) fn sources(&self) -> impl Iterator<Item = UsageSource> {
        self.measurements.sources().filter(|source| *source != UsageSource::Sum)
    }

    pub(super) fn next_deadline_ns(&self, accounts: &Accounts) -> Option<u64> {
        let look_ns = self.looks_at(accounts).then_some(self.next_look_ns);
        [self.measurements.next_deadline_ns(), look_ns].into_iter().flatten().min()
    }

    /// Whether accounts far from their limits are looked at. Without the notifier each kill waits
    /// for a measurement in any case.
    fn looks_at(&self, accounts: &Accounts) -> bool {
        self.worker.is_some()
            && accounts.watch().backend() == Backend::Bpf
            && !accounts.ledger().accounts().is_empty()
    }

    fn look(&mut self, accounts: &Accounts, now_ns: u64) {
        if now_ns < self.next_look_ns || !self.looks_at(accounts) {
            return;
        }
        for account in accounts.ids() {
            if let Some((sum, limit)) = accounts.sum(account) {
                self.measurements.look(account, sum, limit, now_ns);
            }
        }
        let ended_ns = monotonic_ns();
        let pause_ns = (LOOK_MS * NS_PER_MS).max((ended_ns - now_ns) * CALM_SCAN_SHARE);
        self.next_look_ns = ended_ns + pause_ns;
    }

    /// A victim of the account has exited: memory outside of the account's sum may be gone with it.
    pub(super) fn on_victim_gone(&mut self, account: AccountId, accounts: &Accounts) {
        if accounts.sum(account).is_some_and(|(sum, _)| sum.correction_bytes > 0) {
            self.measurements.discard(account, monotonic_ns());
        }
    }

    /// Whether a process may be killed: the account is over its limit by memory that cannot be
    /// shared, or by its measured usage.
    pub(super) fn may_kill(&mut self, account: AccountId, accounts: &Accounts) -> bool {
        let Some((sum, limit)) = accounts.sum(account) else { return false };
        match self.worker {
            Some(_) => self.measurements.may_kill(account, sum, limit, monotonic_ns()),
            None => sum.used_bytes() > limit.hard_bytes(),
        }
    }

    /// Whether the account is above its soft limit even if memory that is not confirmed does not
    /// count.
    pub(super) fn is_surely_above_soft(&self, account: AccountId, accounts: &Accounts) -> bool {
        let Some((sum, limit)) = accounts.sum(account) else { return false };
        let bytes = if self.worker.is_some() { sum.certain_bytes() } else { sum.used_bytes() };
        bytes > limit.soft_bytes()
    }

    /// Searches for memory files that processes hold open, if the last search is not recent.
    pub(super) fn search_files(&mut self, accounts: &Accounts, snapshot: &mut ProcessSnapshot) {
        let now_ns = monotonic_ns();
        let Some(worker) = self.worker.as_ref().filter(|_| self.file_search.is_due(now_ns)) else {
            return;
        };
        let Ok(samples) = snapshot.list(accounts.watch()) else { return };
        let page_bytes = accounts.page_bytes();
        let holder = |sample: &ProcessSample| Holder {
            id: sample.id(),
            uid: sample.uid,
            owner: sample.owner(),
            shmem_bytes: sample.shmem_pages * page_bytes,
        };
        // If the queue is full, the search is due again at the next look.
        if worker.search_files(samples.iter().map(holder).collect()).is_ok() {
            self.file_search.begin(now_ns);
        }
    }

    /// The result of a search for memory files that has ended, bytes by process.
    pub(super) fn take_held_files(&mut self) -> Option<BTreeMap<ProcessId, u64>> {
        let held = self.worker.as_ref()?.take_held_files()?;
        self.file_search.end(monotonic_ns());
        Some(held)
    }

    /// Whether a process may be killed for the system: it is known what files processes hold open,
    /// or the search is late.
    pub(super) fn knows_files(&self) -> bool {
        self.worker.is_none() || self.file_search.allows_kill(monotonic_ns())
    }

    /// The system is far from its soft level.
    pub(super) fn end_file_search(&mut self) {
        self.file_search = FileSearch::default();
    }

    /// The measurements that are due.
    pub(super) fn due_measurements(
        &mut self,
        accounts: &mut Accounts,
        kills: &KillsInFlight,
    ) -> Vec<DueOrder> {
        let now_ns = monotonic_ns();
        self.look(accounts, now_ns);
        let Some(worker) = &self.worker else { return Vec::new() };
        let lazily_freed_pages = worker.take_lazily_freed();
        if lazily_freed_pages > 0 {
            // It is not known which account's they are.
            accounts.doubt_all(lazily_freed_pages);
        }
        worker.set_limit_count(accounts.ledger().accounts().len());
        if worker.take_growth() {
            accounts.ids().into_iter().for_each(|account| self.search(account));
        }
        let followed: Vec<AccountId> = self.measurements.accounts().collect();
        let mut due = Vec::new();
        for account in followed {
            let Some(need) = self.need(account, accounts, kills) else { continue };
            if due.len() < MOST_BEGUN
                && let Some(order) = self.measurements.begin(account, need, now_ns)
            {
                due.push(DueOrder { order, limit: need.limit });
            }
        }
        if let Some(account) = self.measurements.idle_account(now_ns)
            && let Some(need) = self.need(account, accounts, kills)
            && let Some(order) = self.measurements.begin_idle(account, need, now_ns)
        {
            due.push(DueOrder { order, limit: need.limit });
        }
        due
    }

    /// Input of the decision to measure an account. `None`: its limit is gone.
    fn need(
        &mut self,
        account: AccountId,
        accounts: &Accounts,
        kills: &KillsInFlight,
    ) -> Option<Need> {
        let Some((sum, limit)) = accounts.sum(account) else {
            self.forget(account);
            return None;
        };
        let sum_state = sum_state(accounts, account, kills);
        let controller = controller_use(account, limit.count(), sum_state);
        Some(Need { sum, limit, controller })
    }

    /// Cancels these measurements, since processes could not be listed; they are due again later.
    pub(super) fn cancel_orders(&mut self, due: &[DueOrder]) {
        let now_ns = monotonic_ns();
        for due in due {
            self.measurements.cancel(due.order.account, now_ns);
        }
    }

    /// Sets the time that listing the processes for measurements has taken, nanoseconds.
    pub(super) fn set_listing_ns(&mut self, listing_ns: u64) {
        self.measurements.set_listing_ns(listing_ns);
    }

    /// Sends these requests to the worker.
    pub(super) fn send_orders(
        &mut self,
        due: Vec<DueOrder>,
        accounts: &Accounts,
        snapshot: &ProcessSnapshot,
        kills: &KillsInFlight,
    ) {
        let mut members: BTreeMap<AccountId, Vec<Member>> =
            due.iter().map(|due| (due.order.account, Vec::new())).collect();
        let mut held = held_memory(&due, accounts, snapshot, kills);
        let mut pids: BTreeMap<AccountId, Vec<u32>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let victims = kills.victims();
        for sample in snapshot.samples() {
            let account = accounts.account_of(sample);
            let Some(members) = members.get_mut(&account) else { continue };
            pids.entry(account).or_default().push(sample.tgid);
            // Processes that share an address space are charged once, if the address space is
            // known.
            let first = sample.mm_id == 0 || seen.insert(sample.mm_id);
            if first
                && victims.binary_search(&sample.id()).is_err()
                && is_charged(accounts, account, sample)
            {
                members.extend(member(accounts, account, sample));
            }
        }
        for DueOrder { order, limit } in due {
            let files = match order.demand {
                Demand::Unseen => FileSearchMode::Search,
                Demand::Usage => FileSearchMode::AsBefore,
            };
            let members = members.remove(&order.account).unwrap_or_default();
            let pids = pids.remove(&order.account).unwrap_or_default();
            let held = held.remove(&order.account).unwrap_or_default();
            let unlisted = self.unlisted(order, accounts, snapshot);
            let count = limit.count();
            let request = Request { order, count, members, files, held, unlisted, pids };
            let Some(worker) = &self.worker else { return };
            if worker.request(request).is_err() {
                // The worker's queue is full: the measurement is due again later.
                self.measurements.cancel(order.account, monotonic_ns());
            }
        }
    }

    /// The memory of address spaces without a process, if a kill depends on it.
    fn unlisted(
        &mut self,
        order: Order,
        accounts: &Accounts,
        snapshot: &ProcessSnapshot,
    ) -> Unlisted {
        let account = order.account;
        if order.effort == Effort::Some {
            return Unlisted::default();
        }
        let listed = snapshot.samples().iter().map(|sample| sample.mm_id).collect();
        let spaces = accounts.watch().unlisted_spaces(account, &listed).unwrap_or_else(|error| {
            tracing::warn!(%account, "cannot list address spaces: {error}; they count as freed");
            Vec::new()
        });
        let pages = self.unlisted_spaces.replace(account, &spaces, monotonic_ns());
        let page_bytes = accounts.page_bytes();
        Unlisted {
            kept_bytes: pages.kept * page_bytes,
            recent_bytes: pages.recent * page_bytes,
            shmem_bytes: pages.shmem * page_bytes,
        }
    }

    /// Corrects the accounts whose measurements have ended, and returns them.
    pub(super) fn apply_measurements(
        &mut self,
        accounts: &mut Accounts,
        snapshot: &mut ProcessSnapshot,
    ) -> Vec<AccountId> {
        let measured = match &self.worker {
            Some(worker) => worker.take_measured(),
            None => return Vec::new(),
        };
        let mut corrected = Vec::new();
        for Measured { measurement, lazily_freed } in measured {
            snapshot.set_lazily_freed(measurement.account, lazily_freed);
            corrected.extend(self.apply_measurement(measurement, accounts));
        }
        corrected
    }

    fn apply_measurement(
        &mut self,
        measurement: Measurement,
        accounts: &mut Accounts,
    ) -> Option<AccountId> {
        let account = measurement.account;
        let (sum, limit) = accounts.sum(account)?;
        let end = self.measurements.end(measurement, sum.summed_bytes, limit, monotonic_ns())?;
        if end.bytes.saturating_add(GROWTH_BYTES as i64) <= sum.correction_bytes
            && let Some(worker) = &self.worker
        {
            worker.note_unseen_fall();
        }
        let page_bytes = accounts.page_bytes();
        let correction = Correction {
            pages: end.bytes / page_bytes as i64,
            summed_pages: end.summed_bytes / page_bytes,
            unconfirmed_pages: end.unconfirmed_bytes / page_bytes,
            unlisted_pages: end.unlisted_bytes / page_bytes,
        };
        tracing::debug!(%account, ?measurement, ?correction, "usage measured");
        if let Err(error) = accounts.watch_mut().correct(account, correction) {
            tracing::warn!(%account, "cannot correct the account: {error}");
        }
        Some(account)
    }
}

/// A measurement to be started.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueOrder {
    order: Order,
    limit: Limit,
}

/// The memory that other daemons hold for the accounts to be measured.
fn held_memory(
    due: &[DueOrder],
    accounts: &Accounts,
    snapshot: &ProcessSnapshot,
    kills: &KillsInFlight,
) -> BTreeMap<AccountId, Vec<Held>> {
    if snapshot.held_memory.is_empty() {
        return BTreeMap::new();
    }
    let measured = due.iter().map(|due| due.order.account).collect();
    let victims = kills.victims();
    let samples = snapshot.samples().iter();
    let samples = samples.filter(|sample| snapshot.held_memory.is_reported(sample.tgid));
    let samples =
        samples.filter(|sample| !sample.exiting && victims.binary_search(&sample.id()).is_err());
    let payers = samples.map(|sample| (sample.tgid, accounts.account_of(sample))).collect();
    snapshot.held_memory.by_account(&measured, &payers, accounts.ledger().groups())
}

fn sum_state(accounts: &Accounts, account: AccountId, kills: &KillsInFlight) -> SumState {
    let updates = match accounts.watch().backend() {
        Backend::Bpf => SumUpdates::Immediate,
        Backend::ProcPolling => SumUpdates::Periodic,
    };
    let latched = accounts.watch().usage(account).is_some_and(|usage| usage.latched);
    let dying = latched || kills.all().iter().any(|kill| kill.payer() == account);
    SumState { updates, victims: if dying { Victims::Dying } else { Victims::None } }
}

/// Whether the process is charged to this account: a process that shares its address space with
/// another user's may be charged to that user.
fn is_charged(accounts: &Accounts, account: AccountId, sample: &ProcessSample) -> bool {
    sample.mm_id == 0
        || matches!(accounts.watch().charged(sample), Ok(Some(it)) if it.account == account)
}

fn member(accounts: &Accounts, account: AccountId, sample: &ProcessSample) -> Option<Member> {
    let count = accounts.ledger().account(account)?.limit().count();
    let page_bytes = accounts.page_bytes();
    let Size { rss_bytes, swap_bytes } = size_by(count, sample, page_bytes);
    Some(Member {
        id: sample.id(),
        uid: sample.uid,
        owner: sample.owner(),
        charged_bytes: rss_bytes + swap_bytes,
        shmem_bytes: if count.shmem { sample.shmem_pages * page_bytes } else { 0 },
        page_table_bytes: sample.page_table_bytes,
    })
}

/// The searches for memory files that processes hold open, since the system came near its soft
/// level and has much shared memory. Times are nanoseconds, CLOCK_MONOTONIC.
#[derive(Debug, Default)]
struct FileSearch {
    begun_ns: Option<u64>,
    ended_ns: Option<u64>,
}

impl FileSearch {
    /// Whether a search should begin.
    fn is_due(&self, now_ns: u64) -> bool {
        match (self.begun_ns, self.ended_ns) {
            (None, _) => true,
            (Some(begun_ns), Some(ended_ns)) if ended_ns >= begun_ns => {
                now_ns.saturating_sub(ended_ns) >= RENEW_MS * NS_PER_MS
            }
            // One is running.
            (Some(_), _) => false,
        }
    }

    fn begin(&mut self, now_ns: u64) {
        self.begun_ns = Some(now_ns);
    }

    fn end(&mut self, now_ns: u64) {
        self.ended_ns = Some(now_ns);
    }

    /// Whether a process may be killed: the result of a search is known, or late.
    fn allows_kill(&self, now_ns: u64) -> bool {
        let is_late = |begun_ns| now_ns.saturating_sub(begun_ns) >= PATIENCE_MS * NS_PER_MS;
        self.ended_ns.is_some() || self.begun_ns.is_some_and(is_late)
    }
}

/// Memory of an account's address spaces that no process has, pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnlistedPages {
    /// Address spaces that are kept: their memory is in use, and cannot be shared by a fork in
    /// progress.
    kept: u64,
    /// All others that are used.
    recent: u64,
    /// Shared memory of those that are not kept: used ones, and ones that the kernel is freeing.
    shmem: u64,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    pages: u64,
    /// Since when it has about this size, nanoseconds.
    since_ns: u64,
}

impl Seen {
    fn has_grown_to(&self, pages: u64) -> bool {
        pages > self.pages + self.pages / NOTABLE_SHARE
    }
}

/// Address spaces that no process has, of accounts on which a kill depends: those of forks in
/// progress, and those that a system call of another process uses after their processes have
/// exited.
#[derive(Debug, Default)]
struct UnlistedSpaces {
    by_account: BTreeMap<AccountId, BTreeMap<u64, Seen>>,
}

impl UnlistedSpaces {
    /// Replaces the address spaces of an account.
    fn replace(
        &mut self,
        account: AccountId,
        spaces: &[UnlistedSpace],
        now_ns: u64,
    ) -> UnlistedPages {
        let before = self.by_account.remove(&account).unwrap_or_default();
        let (mut now, mut unlisted) = (BTreeMap::new(), UnlistedPages::default());
        for space in spaces {
            let pages = space.pages;
            if space.state == SpaceState::Freed {
                unlisted.shmem += space.shmem_pages;
                continue;
            }
            let known = before.get(&space.mm_id).filter(|seen| !seen.has_grown_to(pages));
            let seen = known.copied().unwrap_or(Seen { pages, since_ns: now_ns });
            if now_ns - seen.since_ns >= KEPT_MS * NS_PER_MS {
                unlisted.kept += pages;
            } else {
                unlisted.recent += pages;
                unlisted.shmem += space.shmem_pages;
            }
            now.insert(space.mm_id, seen);
        }
        if !now.is_empty() {
            self.by_account.insert(account, now);
        }
        unlisted
    }

    /// Drops the state of an account.
    fn forget(&mut self, account: AccountId) {
        self.by_account.remove(&account);
    }
}

#[cfg(test)]
mod tests {
    use memory_ledger::Uid;

    use super::*;

    const MS: u64 = NS_PER_MS;

    #[test]
    fn a_kill_waits_for_the_first_search_only_and_not_for_long() {
        let mut search = FileSearch::default();
        assert!(search.is_due(0) && !search.allows_kill(0));
        search.begin(0);
        assert!(!search.is_due(99 * MS) && !search.allows_kill(99 * MS));
        assert!(search.allows_kill(100 * MS));
        search.end(120 * MS);
        assert!(search.allows_kill(120 * MS) && !search.is_due(600 * MS));
        assert!(search.is_due(620 * MS));
        search.begin(620 * MS);
        assert!(search.allows_kill(620 * MS) && !search.is_due(2000 * MS));
    }

    const ACCOUNT: AccountId = AccountId::User(Uid(1000));

    #[test]
    fn an_address_space_is_kept_if_it_is_used_and_does_not_grow() {
        let mut spaces = UnlistedSpaces::default();
        let mut look = |ms: u64, sizes: &[(u64, u64)], state| {
            let space = |(mm_id, pages): &(u64, u64)| UnlistedSpace {
                mm_id: *mm_id,
                pages: *pages,
                shmem_pages: *pages,
                state,
            };
            let list: Vec<UnlistedSpace> = sizes.iter().map(space).collect();
            let UnlistedPages { kept, recent, shmem } =
                spaces.replace(ACCOUNT, &list, ms * NS_PER_MS);
            (kept, recent, shmem)
        };
        assert_eq!(look(0, &[(1, 10), (2, 20)], SpaceState::Used), (0, 30, 30));
        assert_eq!(look(200, &[(1, 10), (2, 25)], SpaceState::Used), (0, 35, 35), "a fork grows");
        assert_eq!(look(400, &[(1, 10), (2, 25)], SpaceState::Used), (10, 25, 25));
        assert_eq!(look(500, &[(1, 11), (2, 26)], SpaceState::Used), (11, 26, 26), "single pages");
        assert_eq!(look(600, &[(1, 10), (2, 25)], SpaceState::Freed), (0, 0, 35));
        assert_eq!(look(800, &[(1, 10), (2, 25)], SpaceState::Used), (0, 35, 35), "others by now");
    }
}
