//! Actual usage of accounts: when it is measured, how it corrects the sum, and whether a kill may
//! follow from it.
//!
//! An account's sum counts a page once for each process that maps it, and does not count page
//! tables and files that are held open. So the sum is only the trigger. While it is above the soft
//! limit, actual usage is measured separately, and the difference corrects the sum until the next
//! measurement. Invariants:
//! * an account within its limit by a fresh measurement loses no process;
//! * pages that may be shared count in full when no measurement is made within [`PATIENCE_MS`], or
//!   [`RUNNING_PATIENCE_MS`] while one is running;
//! * measurements take [`CPU_PERCENT`] of one CPU at most, unless that made them older than
//!   [`OLDEST_MS`].
//!
//! Far from its limit an account is measured in idle time: which of its pages a fork brought, and
//! which are shared, has to be known before they are near it, where the fastest program is faster
//! than a measurement. Shared pages lower the sum there by a small amount only: sharers that exit
//! make the correction too large without an event. More of them stay unconfirmed and correct no
//! sum, so that the sum that triggers is not too small, and what may kill without a measurement is
//! never too large.

use std::collections::BTreeMap;

use crate::NS_PER_MS;
use crate::account::AccountId;
use crate::limit::{Count, Limit, cleared_below};

/// Maximum age of a correction while the sum is above the soft limit, milliseconds.
pub const RENEW_MS: u64 = 200;
/// Minimum interval between two measurements when a kill depends on the second, milliseconds.
const CONFIRM_MS: u64 = 20;
/// Maximum age of a correction where a measurement takes so long that the CPU budget demands
/// pauses, milliseconds.
pub const OLDEST_MS: u64 = 1_000;
/// CPU time of measurements, percent of one CPU.
pub const CPU_PERCENT: u64 = 5;
/// CPU time for one measurement on which no kill depends, milliseconds: [`CPU_PERCENT`] of
/// [`RENEW_MS`].
pub const READ_MS: u64 = RENEW_MS * CPU_PERCENT / 100;
/// Maximum time that a kill waits for a measurement to be made, milliseconds.
pub const PATIENCE_MS: u64 = 1_000;
/// Maximum time that a kill waits while a measurement is running, milliseconds. It does not wait
/// for locks that users hold, but for a CPU where far more programs are runnable.
pub const RUNNING_PATIENCE_MS: u64 = 3_000;
/// The sum is raised only by more than this fraction of the soft limit. Page tables of ordinary
/// programs are far smaller (a 512th of their memory), and for these the kill in the page fault
/// stays exact.
const RAISE_SHARE: u64 = 64;
/// Far from the limit, shared pages lower the sum by at most this fraction of the distance from the
/// soft to the hard limit: the soft limit is crossed in time even if all of them have become
/// private meanwhile.
const LOWER_SHARE: u64 = 4;

/// CPU time of measurements of all accounts far from their limits together, percent of one CPU.
const IDLE_CPU_PERCENT: u64 = 1;
/// Minimum interval between two measurements of an account far from its limit, milliseconds: with
/// the interval of looks less than a second passes from a fork to its confirmation.
const IDLE_MS: u64 = 500;
/// Interval if an account far from its limit holds memory outside of its sum, milliseconds.
const HIDDEN_MS: u64 = 2_000;
/// Maximum time in which one measurement excludes further ones in idle time, milliseconds.
const IDLE_PAUSE_MS: u64 = 10_000;
/// Unconfirmed bytes of which no measurement in idle time is due: sixteen pages.
const CONFIRMED_BYTES: u64 = 64 << 10;

/// A kill waits longer if the memory that is being freed has fallen by this fraction of it, or of
/// the soft limit: so the account is over its limit for some seconds at most, and a kill waits for
/// the exits of many processes with large shared memory, each of which frees it once more.
const FALLING_SHARE: u64 = 4;

/// Usage of an account by its processes' resident sets, bytes. Victims that are exiting do not
/// count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Each page is counted once per process that maps it.
    pub summed_bytes: u64,
    /// Part of `summed_bytes` that may be shared: it was added since the last measurement, or that
    /// has found much of it shared while the account was far from its limit.
    pub unconfirmed_bytes: u64,
    /// The correction in force.
    pub correction_bytes: i64,
}

impl Sum {
    /// Actual usage, as far as it is known.
    pub fn used_bytes(&self) -> u64 {
        self.summed_bytes.saturating_add_signed(self.correction_bytes)
    }

    /// Part of `summed_bytes` that counts more than once, as far as is known, or that may.
    pub fn common_bytes(&self) -> u64 {
        self.correction_bytes.min(0).unsigned_abs().saturating_add(self.unconfirmed_bytes)
    }

    /// Whether it is at the soft limit, with or without the correction.
    fn is_near(&self, limit: Limit) -> bool {
        self.used_bytes().max(self.summed_bytes) >= limit.soft_bytes()
    }

    /// Part of [`used_bytes`](Self::used_bytes) that was measured or cannot be shared.
    fn confirmed_bytes(&self) -> u64 {
        self.used_bytes().saturating_sub(self.unconfirmed_bytes)
    }

    /// Part of [`confirmed_bytes`](Self::confirmed_bytes) that cannot have been freed since the
    /// measurement without a change of the sum.
    pub fn certain_bytes(&self) -> u64 {
        self.confirmed_bytes().saturating_sub(self.correction_bytes.max(0).unsigned_abs())
    }
}

/// How actual usage was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageSource {
    /// Not measured: the sum is far below the limit.
    #[default]
    Sum,
    /// Proportional set sizes, page tables and files held open.
    Pss,
    /// The memory controller's charge of the user's slice.
    Controller,
}

impl UsageSource {
    /// The name for messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "resident sets",
            Self::Pss => "proportional set sizes",
            Self::Controller => "memory controller",
        }
    }
}

/// Whether a measurement may use the memory controller's charge of the user's slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ControllerUse {
    /// If the slice contains all of the user's processes and no others.
    #[default]
    Allowed,
    /// Proportional set sizes only.
    Excluded,
}

/// Properties of an account's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumState {
    /// When the sum is updated.
    pub updates: SumUpdates,
    /// Whether the sum leaves out memory that the controller still charges.
    pub victims: Victims,
}

/// Whether processes of an account were signalled and have not exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// No victim is in flight.
    None,
    /// The victims' memory is not in the sum any more.
    Dying,
}

/// When a sum is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumUpdates {
    /// At each page fault.
    Immediate,
    /// At each scan: the controller's charge can be newer.
    Periodic,
}

/// Whether the memory controller's charge is comparable with an account's sum.
pub fn controller_use(account: AccountId, count: Count, sum: SumState) -> ControllerUse {
    let comparable = matches!(account, AccountId::User(_))
        // The controller does not divide the page cache into mapped and other files.
        && !count.file
        && sum.updates == SumUpdates::Immediate
        && sum.victims == Victims::None;
    if comparable { ControllerUse::Allowed } else { ControllerUse::Excluded }
}

/// Reason for measuring an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Its sum is near its limit, or has a correction.
    Usage,
    /// The machine's page tables or shared memory have grown: some process holds memory that no sum
    /// shows.
    Unseen,
}

/// A measurement that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The account to measure.
    pub account: AccountId,
    /// Its sum now, bytes.
    pub summed_bytes: u64,
    /// Bytes: no more processes need be read if usage by those read so far is at most this.
    pub enough_bytes: u64,
    /// Bytes: processes may be skipped if at most this is charged to them together.
    pub tolerated_bytes: u64,
    /// How many processes to read.
    pub effort: Effort,
    /// Whether the memory controller may be read instead.
    pub controller: ControllerUse,
    /// Reason for the measurement.
    pub demand: Demand,
}

/// How many processes a measurement reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As many as can be read within [`READ_MS`], starting with those that were not read for
    /// longest.
    Some,
    /// All processes, until usage is low enough: a kill depends on the measurement.
    All,
}

/// A measurement that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// The account that was measured.
    pub account: AccountId,
    /// Actual usage minus the order's `summed_bytes`. Memory that could not be read is counted as
    /// in the sum.
    pub difference_bytes: i64,
    /// Part of the order's `summed_bytes` that belongs to no process: a fork in progress already
    /// has its pages charged, but is not visible as a process yet, and a process that has exited
    /// still has those that it has not freed yet. Without pages that listed processes have as well,
    /// as far as that is known. It includes processes that [`Effort::Some`] excludes and that were
    /// never read, and those that did not answer.
    pub unlisted_bytes: u64,
    /// Part of `unlisted_bytes` that a fork in progress or a system call of another process uses,
    /// or of a process that did not answer. The user determines when it is freed.
    pub used_unlisted_bytes: u64,
    /// Part of `unlisted_bytes` of processes that [`Effort::Some`] excludes or that did not answer.
    pub unread_bytes: u64,
    /// How usage was measured.
    pub source: UsageSource,
    /// CPU time of the measurement, nanoseconds.
    pub cost_ns: u64,
}

impl Measurement {
    /// [`unlisted_bytes`](Self::unlisted_bytes) less what was certain when the measurement began:
    /// not to read a process makes none of its memory doubtful.
    fn doubtful_bytes(&self, begun: Sum, correction: i64) -> u64 {
        let unlisted_bytes = self.unlisted_bytes.saturating_sub(self.unread_bytes);
        let counted_bytes = begun.summed_bytes.saturating_add_signed(correction.min(0));
        let doubtful_bytes = counted_bytes.saturating_sub(begun.certain_bytes());
        doubtful_bytes.clamp(unlisted_bytes, self.unlisted_bytes)
    }
}

/// Correction of the account's sum after a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumCorrection {
    /// Bytes to be added to the sum from now on.
    pub bytes: i64,
    /// The sum that was measured, bytes.
    pub summed_bytes: u64,
    /// [`Sum::unconfirmed_bytes`] when the measurement began.
    pub unconfirmed_bytes: u64,
    /// Part of `summed_bytes` that is unconfirmed from now on.
    pub unlisted_bytes: u64,
}

/// Input of the decision to measure an account.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The sum in force.
    pub sum: Sum,
    /// The account's limit.
    pub limit: Limit,
    /// See [`controller_use`].
    pub controller: ControllerUse,
}

/// Whether the result of a measurement counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Validity {
    #[default]
    Valid,
    Discarded,
}

/// A search for memory that the account's sum does not show. It ends with a measurement that
/// counts: what has grown once need not grow again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Search {
    #[default]
    NotWanted,
    Wanted,
    /// By the running measurement.
    Running,
}

/// When an account is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pace {
    /// It may be near its limit, or is searched: by itself.
    #[default]
    Near,
    /// Far from its limit: in turn with the others, in idle time.
    Idle,
    /// Far from its limit: not until it [`has_changed`](State::has_changed).
    Settled,
}

/// A measurement far from the limit.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The sum when it began.
    summed_bytes: u64,
    /// Part of the sum that stayed unconfirmed since it was not read.
    unlisted_bytes: u64,
    /// Part of the sum that is shared.
    shared_bytes: u64,
    /// Part of the sum that stayed unconfirmed: `unlisted_bytes`, and what is shared if that is too
    /// much to lower the sum.
    unconfirmed_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    pace: Pace,
    /// The last measurement, if it was far from the limit.
    known: Known,
    /// The sum when the running measurement began.
    running: Option<Sum>,
    /// Whether that began in idle time, and excludes others.
    in_turn: bool,
    search: Search,
    /// Whether the result of the running measurement counts.
    validity: Validity,
    /// End of the last measurement, nanoseconds.
    ended_ns: Option<u64>,
    cost_ns: u64,
    source: UsageSource,
    /// Whether the next measurement may use the controller.
    controller: ControllerUse,
    /// Time since which a kill waits, nanoseconds.
    waiting_ns: Option<u64>,
    /// Memory of no process in the last measurement, bytes.
    unlisted_bytes: u64,
    /// Memory that is being freed, when the wait began or was extended last, bytes.
    freed_bytes: Option<u64>,
    /// Time when the next measurement is due, nanoseconds.
    due_ns: u64,
    /// Earliest begin after one that could not begin, nanoseconds.
    retry_ns: u64,
}

impl State {
    /// The result of the running measurement does not count.
    fn repeat_search(&mut self) {
        if self.search == Search::Running {
            self.search = Search::Wanted;
        }
    }

    /// No kill waits any more: the account is within its limit, or all of its memory was measured.
    fn end_wait(&mut self) {
        (self.waiting_ns, self.freed_bytes) = (None, None);
    }

    /// Ends or extends the wait of a kill. A fork ends soon, and the kernel frees the memory of a
    /// process that has exited, which takes seconds for many large processes on a busy machine. If
    /// it does not fall, it counts in full after a while. Memory that another process uses extends
    /// no wait: its user could free it bit by bit.
    fn measured_unlisted(&mut self, measurement: Measurement, soft: u64, now_ns: u64) {
        let Measurement { unlisted_bytes, used_unlisted_bytes, .. } = measurement;
        let small = soft / RAISE_SHARE;
        if unlisted_bytes <= small {
            self.end_wait();
            return;
        }
        let freed_bytes = unlisted_bytes.saturating_sub(used_unlisted_bytes);
        let falls = |before: u64| freed_bytes <= before - before.min(soft) / FALLING_SHARE;
        if freed_bytes > small && self.freed_bytes.is_none_or(falls) {
            self.freed_bytes = Some(freed_bytes);
            self.waiting_ns = self.waiting_ns.map(|_| now_ns);
        }
    }

    /// Whether a kill has waited for long enough: for memory of no process, or, with all memory
    /// that was added since the last measurement, for the next one.
    fn has_waited(&self, since_ns: u64, sum: Sum, hard: u64, now_ns: u64) -> bool {
        let is_over = |begun_ns| now_ns.saturating_sub(begun_ns) >= self.patience_ns();
        let measured_ns = self.ended_ns.map_or(since_ns, |ended_ns| ended_ns.max(since_ns));
        let unlisted_exceeds = sum.confirmed_bytes().saturating_add(self.unlisted_bytes) > hard;
        is_over(measured_ns) || (unlisted_exceeds && is_over(since_ns))
    }

    /// The account may be near its limit: its first measurement waits for no earlier one.
    fn approach(&mut self) {
        if self.pace != Pace::Near {
            (self.pace, self.ended_ns) = (Pace::Near, None);
        }
    }

    /// Whether pages have been added that may be shared, or pages have gone that were.
    fn has_changed(&self, sum: Sum) -> bool {
        let more = |now: u64, before: u64| now > before.saturating_add(CONFIRMED_BYTES);
        let shares = sum.unconfirmed_bytes.max(self.known.shared_bytes) > CONFIRMED_BYTES;
        more(sum.unconfirmed_bytes, self.known.unconfirmed_bytes)
            || (shares && more(self.known.summed_bytes, sum.summed_bytes))
    }

    /// The next measurement of an account far from its limit is due in idle time, after a pause.
    fn idle(&mut self, pause_ms: u64, now_ns: u64) {
        let next_ns = self.ended_ns.map_or(now_ns, |ended_ns| ended_ns + pause_ms * NS_PER_MS);
        let sooner_ns = if self.pace == Pace::Idle { self.due_ns } else { u64::MAX };
        (self.pace, self.due_ns) = (Pace::Idle, next_ns.min(sooner_ns).max(self.retry_ns));
    }

    /// Ends a measurement of an account far from its limit, which corrects its sum by `bytes`.
    fn end_far(&mut self, source: UsageSource, bytes: i64, now_ns: u64) {
        if self.search == Search::Wanted {
            return;
        }
        self.pace = Pace::Settled;
        if self.known.unlisted_bytes > CONFIRMED_BYTES {
            self.idle(IDLE_MS, now_ns);
        } else if bytes > 0 {
            self.idle(HIDDEN_MS, now_ns);
        } else {
            let measured = self.known.shared_bytes > 0;
            self.source = if measured { source } else { UsageSource::Sum };
        }
    }

    /// Maximum time that a kill waits now, nanoseconds.
    fn patience_ns(&self) -> u64 {
        let ms = if self.running.is_some() { RUNNING_PATIENCE_MS } else { PATIENCE_MS };
        ms * NS_PER_MS
    }

    /// Earliest begin of the next measurement, nanoseconds. The first one may begin at once.
    fn next_ns(&self, awaited: Awaited, now_ns: u64) -> u64 {
        let next_ns =
            self.ended_ns.map_or(now_ns, |ended_ns| ended_ns + pause_ns(self.cost_ns, awaited));
        next_ns.max(self.retry_ns)
    }
}

/// The measurements of all accounts that need any.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    accounts: BTreeMap<AccountId, State>,
    /// Earliest begin of a measurement in idle time, nanoseconds.
    next_idle_ns: u64,
    /// CPU time of the last list of processes for a measurement, nanoseconds.
    listing_ns: u64,
}

impl Measurements {
    /// Accounts for which [`begin`](Self::begin) may be due.
    pub fn accounts(&self) -> impl Iterator<Item = AccountId> {
        let near = self.accounts.iter().filter(|(_, state)| state.pace == Pace::Near);
        near.map(|(account, _)| *account)
    }

    /// Part of [`Sum::unconfirmed_bytes`] that the last measurement has found shared. It counts
    /// more than once in [`Sum::used_bytes`], since the account was far from its limit.
    pub fn shared_bytes(&self, account: AccountId) -> u64 {
        self.accounts
            .get(&account)
            .map_or(0, |state| state.known.unconfirmed_bytes - state.known.unlisted_bytes)
    }

    /// How each account that is known to need measurements was measured last.
    pub fn sources(&self) -> impl Iterator<Item = UsageSource> {
        self.accounts.values().map(|state| state.source)
    }

    /// Adds an account that may be near its limit.
    pub fn follow(&mut self, account: AccountId) {
        self.accounts.entry(account).or_default().approach();
    }

    /// Looks at an account that may have pages to be confirmed in idle time.
    pub fn look(&mut self, account: AccountId, sum: Sum, limit: Limit, now_ns: u64) {
        if sum.is_near(limit) {
            self.follow(account);
            return;
        }
        if let Some(state) = self.accounts.get_mut(&account) {
            if state.pace != Pace::Near && state.has_changed(sum) {
                state.idle(IDLE_MS, now_ns);
            }
        } else if sum.unconfirmed_bytes > CONFIRMED_BYTES || sum.correction_bytes != 0 {
            self.accounts.entry(account).or_default().idle(IDLE_MS, now_ns);
        }
    }

    /// Searches for memory that the account holds and its sum does not show, by the next
    /// measurement that begins and counts.
    pub fn search(&mut self, account: AccountId) {
        let state = self.accounts.entry(account).or_default();
        state.approach();
        state.search = Search::Wanted;
    }

    /// Removes an account that has no limit any more.
    pub fn forget(&mut self, account: AccountId) {
        let gone = self.accounts.remove(&account);
        if gone.is_some_and(|state| state.in_turn && state.running.is_some()) {
            // Nobody learns of its cost.
            self.next_idle_ns = 0;
        }
    }

    /// How the account's actual usage was measured last.
    pub fn source(&self, account: AccountId) -> UsageSource {
        self.accounts.get(&account).map(|state| state.source).unwrap_or_default()
    }

    /// The measurement that is to begin now for one of [`accounts`](Self::accounts). One that is
    /// far from its limit is measured in idle time from now on, or not at all.
    pub fn begin(&mut self, account: AccountId, need: Need, now_ns: u64) -> Option<Order> {
        let Need { sum, limit, controller } = need;
        let state = self.accounts.get_mut(&account)?;
        if sum.used_bytes() <= limit.hard_bytes() {
            // The next crossing waits for itself: processes that end together cause several.
            state.end_wait();
        }
        if state.running.is_some() || state.pace != Pace::Near {
            return None;
        }
        let wanted = state.search == Search::Wanted;
        let demand = if wanted { Demand::Unseen } else { Demand::Usage };
        if !sum.is_near(limit) && demand == Demand::Usage {
            if sum.correction_bytes == 0 && sum.unconfirmed_bytes <= CONFIRMED_BYTES {
                self.accounts.remove(&account);
            } else {
                state.idle(RENEW_MS, now_ns);
            }
            return None;
        }
        let awaited = is_unconfirmed(sum, limit, state, now_ns);
        state.due_ns = state.next_ns(awaited, now_ns);
        if now_ns < state.due_ns {
            return None;
        }
        (state.running, state.in_turn) = (Some(sum), false);
        if demand == Demand::Unseen {
            state.search = Search::Running;
        }
        let soft = limit.soft_bytes();
        let (effort, enough_bytes) = match awaited {
            Awaited::No => (Effort::Some, cleared_below(soft)),
            Awaited::Yes => (Effort::All, soft),
        };
        Some(Order {
            account,
            summed_bytes: sum.summed_bytes,
            enough_bytes,
            tolerated_bytes: soft / RAISE_SHARE,
            effort,
            controller: state.controller.max(controller),
            demand,
        })
    }

    /// The account whose measurement in idle time is due now: the one that has waited for longest.
    pub fn idle_account(&self, now_ns: u64) -> Option<AccountId> {
        if now_ns < self.next_idle_ns {
            return None;
        }
        let idle = self.accounts.iter().filter(|(_, state)| {
            state.pace == Pace::Idle && state.running.is_none() && state.due_ns <= now_ns
        });
        idle.min_by_key(|(_, state)| state.due_ns).map(|(account, _)| *account)
    }

    /// Sets the CPU time of listing the processes for a measurement, nanoseconds: of very many it
    /// takes longer than the measurement.
    pub fn set_listing_ns(&mut self, listing_ns: u64) {
        self.listing_ns = listing_ns;
    }

    /// The measurement of [`idle_account`](Self::idle_account) that is to begin now.
    pub fn begin_idle(&mut self, account: AccountId, need: Need, now_ns: u64) -> Option<Order> {
        let Need { sum, limit, controller } = need;
        if sum.is_near(limit) {
            self.follow(account);
            return self.begin(account, need, now_ns);
        }
        let state = self.accounts.get_mut(&account)?;
        (state.running, state.in_turn) = (Some(sum), true);
        // Another one begins once this one's cost is known, or in its worst case.
        self.next_idle_ns = now_ns + IDLE_PAUSE_MS * NS_PER_MS;
        Some(Order {
            account,
            summed_bytes: sum.summed_bytes,
            enough_bytes: 0,
            tolerated_bytes: CONFIRMED_BYTES,
            effort: Effort::Some,
            controller: state.controller.max(controller),
            demand: Demand::Usage,
        })
    }

    /// Ends a measurement, with the account's present sum. Returns `None` if no correction follows:
    /// the account's limit was removed, or the controller was read while the sum changed.
    pub fn end(
        &mut self,
        measurement: Measurement,
        summed_bytes: u64,
        limit: Limit,
        now_ns: u64,
    ) -> Option<SumCorrection> {
        let state = self.accounts.get_mut(&measurement.account)?;
        let sum = state.running.take()?;
        if state.in_turn {
            let cost_ns = measurement.cost_ns.saturating_add(self.listing_ns);
            let pause_ns = cost_ns.saturating_mul(100 / IDLE_CPU_PERCENT);
            self.next_idle_ns = now_ns + pause_ns.min(IDLE_PAUSE_MS * NS_PER_MS);
        }
        if std::mem::take(&mut state.validity) == Validity::Discarded {
            state.repeat_search();
            return None;
        }
        let small = limit.soft_bytes() / RAISE_SHARE;
        let by_controller = measurement.source == UsageSource::Controller;
        if by_controller && summed_bytes.abs_diff(sum.summed_bytes) > small {
            // The charge belongs to neither sum. An account that keeps changing is measured by PSS
            // instead.
            state.controller = ControllerUse::Excluded;
            state.cost_ns = measurement.cost_ns;
            state.due_ns = now_ns;
            state.repeat_search();
            return None;
        }
        if state.search == Search::Running {
            state.search = Search::NotWanted;
        }
        state.controller = ControllerUse::Allowed;
        state.ended_ns = Some(now_ns);
        state.cost_ns = measurement.cost_ns;
        state.source = measurement.source;
        state.due_ns = state.next_ns(Awaited::No, now_ns);
        // Usage cannot be negative.
        let least = -i64::try_from(sum.summed_bytes).unwrap_or(i64::MAX);
        let mut bytes = measurement.difference_bytes;
        if by_controller {
            // Pages that were added meanwhile are in the sum as well as in the charge.
            bytes -= summed_bytes.saturating_sub(sum.summed_bytes) as i64;
        }
        let bytes = bytes.max(least);
        let raises_little = bytes > 0 && bytes.unsigned_abs() <= small;
        let bytes = if raises_little { 0 } else { bytes };
        let unlisted_bytes = measurement.doubtful_bytes(sum, bytes);
        state.unlisted_bytes = unlisted_bytes;
        if sum.summed_bytes.saturating_add_signed(bytes) <= limit.hard_bytes() {
            state.end_wait();
        } else {
            let measurement = Measurement { unlisted_bytes, ..measurement };
            state.measured_unlisted(measurement, limit.soft_bytes(), now_ns);
        }
        let corrected = Sum { summed_bytes, unconfirmed_bytes: 0, correction_bytes: bytes };
        let (bytes, unconfirmed_bytes) = if corrected.is_near(limit) {
            state.known = Known::default();
            (bytes, unlisted_bytes)
        } else {
            let Sum { summed_bytes, .. } = sum;
            let shared_bytes = bytes.min(0).unsigned_abs();
            let lowers = shared_bytes <= (limit.hard_bytes() - limit.soft_bytes()) / LOWER_SHARE;
            let unconfirmed_bytes = unlisted_bytes + if lowers { 0 } else { shared_bytes };
            state.known = Known { summed_bytes, unlisted_bytes, shared_bytes, unconfirmed_bytes };
            state.end_far(measurement.source, bytes, now_ns);
            (if lowers { bytes } else { bytes.max(0) }, unconfirmed_bytes)
        };
        Some(SumCorrection {
            bytes,
            summed_bytes: sum.summed_bytes,
            unconfirmed_bytes: sum.unconfirmed_bytes,
            unlisted_bytes: unconfirmed_bytes.min(sum.summed_bytes),
        })
    }

    /// Discards the last measurement, and one that is running: memory that it includes is gone. A
    /// kill that depends on them waits for the next one, which searches for what is left.
    pub fn discard(&mut self, account: AccountId, now_ns: u64) {
        if let Some(state) = self.accounts.get_mut(&account) {
            state.approach();
            state.search = Search::Wanted;
            state.ended_ns = None;
            state.due_ns = now_ns;
            if state.running.is_some() {
                state.validity = Validity::Discarded;
            }
        }
    }

    /// Cancels a measurement that could not begin. It is due again after a pause: the reason, such
    /// as a full queue, lasts.
    pub fn cancel(&mut self, account: AccountId, now_ns: u64) {
        if let Some(state) = self.accounts.get_mut(&account) {
            state.running = None;
            state.validity = Validity::Valid;
            state.repeat_search();
            state.ended_ns.get_or_insert(now_ns);
            state.retry_ns = now_ns + RENEW_MS / 2 * NS_PER_MS;
            state.due_ns = state.due_ns.max(state.retry_ns);
            if state.in_turn {
                self.next_idle_ns = state.retry_ns;
            }
        }
    }

    /// Whether a process may be killed for the account's limit. `false`: usage is within the limit,
    /// or a measurement has to confirm that it is not; [`begin`](Self::begin) is due for it.
    pub fn may_kill(&mut self, account: AccountId, sum: Sum, limit: Limit, now_ns: u64) -> bool {
        if sum.used_bytes() <= limit.hard_bytes() {
            return false;
        }
        if sum.certain_bytes() > limit.hard_bytes() {
            return true;
        }
        let state = self.accounts.entry(account).or_default();
        state.approach();
        if is_unconfirmed(sum, limit, state, now_ns) == Awaited::No {
            return true;
        }
        if state.running.is_none() {
            state.due_ns = state.next_ns(Awaited::Yes, now_ns);
        }
        let since_ns = *state.waiting_ns.get_or_insert(now_ns);
        state.has_waited(since_ns, sum, limit.hard_bytes(), now_ns)
    }

    /// Time when [`begin`](Self::begin) is to be called even without an event, nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let due = |state: &State| match (state.running, state.waiting_ns) {
            // The end of the measurement wakes the caller; this is the maximum wait for it.
            (Some(_), Some(since_ns)) => Some(since_ns + state.patience_ns()),
            (Some(_), None) => None,
            (None, _) => match state.pace {
                Pace::Near => Some(state.due_ns),
                Pace::Idle => Some(state.due_ns.max(self.next_idle_ns)),
                Pace::Settled => None,
            },
        };
        self.accounts.values().filter_map(due).min()
    }
}

/// Whether a kill depends on the next measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    No,
    Yes,
}

fn is_unconfirmed(sum: Sum, limit: Limit, state: &State, now_ns: u64) -> Awaited {
    let hard = limit.hard_bytes();
    if sum.used_bytes() <= hard || sum.certain_bytes() > hard {
        return Awaited::No;
    }
    let fresh = state.ended_ns.is_some_and(|at| now_ns.saturating_sub(at) < RENEW_MS * NS_PER_MS);
    if fresh && sum.confirmed_bytes() > hard { Awaited::No } else { Awaited::Yes }
}

/// Nanoseconds from the end of one measurement to the begin of the next.
fn pause_ns(cost_ns: u64, awaited: Awaited) -> u64 {
    let affordable = cost_ns.saturating_mul(100 / CPU_PERCENT);
    let (least, most) = match awaited {
        Awaited::No => (RENEW_MS / 2, OLDEST_MS),
        Awaited::Yes => (CONFIRM_MS, RENEW_MS),
    };
    affordable.clamp(least * NS_PER_MS, most * NS_PER_MS)
}
