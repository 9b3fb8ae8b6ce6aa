//! Actual usage of accounts: when it is measured, what corrects the sum, and whether a kill may
//! follow from it.
//!
//! An account's sum counts a page once for each process that has it, and does not count page tables
//! and files that are held open. So the sum is only the trigger. While it is above the soft limit,
//! actual usage is measured outside, and the difference corrects the sum until the next
//! measurement. Invariants:
//! * an account within its limit by a fresh measurement loses no process;
//! * pages that may be shared count in full when no measurement comes within [`PATIENCE_MS`];
//! * measurements take [`CPU_PERCENT`] of one CPU at most, unless that made them older than
//!   [`OLDEST_MS`].

use std::collections::BTreeMap;

use crate::account_id::AccountId;
use crate::count::Count;
use crate::limit::Limit;

/// How old a correction may become while the sum is above the soft limit, milliseconds.
pub const RENEW_MS: u64 = 200;
/// How soon a measurement may follow another one where a kill depends on it, milliseconds.
const CONFIRM_MS: u64 = 20;
/// How old a correction may become where a measurement takes so long that the CPU budget demands
/// pauses, milliseconds.
pub const OLDEST_MS: u64 = 1_000;
/// CPU time of measurements, percent of one CPU.
pub const CPU_PERCENT: u64 = 5;
/// CPU time for one measurement on which no kill depends, milliseconds: that share of
/// [`RENEW_MS`].
pub const READ_MS: u64 = RENEW_MS * CPU_PERCENT / 100;
/// How long a kill waits for a measurement, milliseconds.
pub const PATIENCE_MS: u64 = 1_000;
/// The sum is raised only by more than this share of the soft limit. Page tables of ordinary
/// programs are a fraction of it (a 512th of their memory), and the kill in the page fault stays
/// exact for these.
const RAISE_SHARE: u64 = 64;
/// No process is read for an account whose sum is below the soft limit by this share of it.
const CLEAR_SHARE: u64 = 16;

const NS_PER_MS: u64 = 1_000_000;

/// What an account holds by its processes' resident sets, bytes. Victims that are dying do not
/// count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Each page as often as processes have it.
    pub summed_bytes: u64,
    /// Of these, bytes that came since the last measurement and may be shared.
    pub unconfirmed_bytes: u64,
    /// The correction in force.
    pub correction_bytes: i64,
}

impl Sum {
    /// Actual usage, as far as it is known.
    pub fn used_bytes(&self) -> u64 {
        self.summed_bytes.saturating_add_signed(self.correction_bytes)
    }

    /// Of it, bytes that were measured or cannot be shared.
    fn confirmed_bytes(&self) -> u64 {
        self.used_bytes().saturating_sub(self.unconfirmed_bytes)
    }

    /// Of these, bytes that cannot have been given back since without a change of the sum.
    fn certain_bytes(&self) -> u64 {
        self.confirmed_bytes().saturating_sub(self.correction_bytes.max(0).unsigned_abs())
    }
}

/// How actual usage was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageSource {
    /// It is not measured: the sum is far below the limit.
    #[default]
    Sum,
    /// Proportional set sizes, page tables and files held open.
    Pss,
    /// The memory controller's charge of the user's slice.
    Controller,
}

impl UsageSource {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sum => "resident sets",
            Self::Pss => "proportional set sizes",
            Self::Controller => "memory controller",
        }
    }
}

/// Whether a measurement may use the memory controller's charge of the user's slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerUse {
    /// If the slice contains all of the user's processes and no others.
    #[default]
    Allowed,
    /// Proportional set sizes only.
    Excluded,
}

/// How an account's sum comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumState {
    /// When the sum changes.
    pub updates: SumUpdates,
    /// Whether it leaves out memory that the controller still charges.
    pub victims: Victims,
}

/// Whether processes of an account have got their signal and are not gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// None have.
    None,
    /// Their memory is not in the sum any more.
    Dying,
}

/// When a sum changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumUpdates {
    /// With each page fault.
    Immediate,
    /// With a scan: the controller's charge can be newer.
    Periodic,
}

/// Whether the memory controller's charge is comparable with an account's sum.
pub fn controller_use(account: AccountId, count: Count, sum: SumState) -> ControllerUse {
    let comparable = matches!(account, AccountId::User(_))
        // The page cache is not divided into mapped files and others.
        && !count.file
        && sum.updates == SumUpdates::Immediate
        && sum.victims == Victims::None;
    if comparable { ControllerUse::Allowed } else { ControllerUse::Excluded }
}

/// Why an account is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// Its sum is near its limit, or is corrected.
    Usage,
    /// The machine's page tables or shared memory have grown: somebody holds what no sum shows.
    Unseen,
}

/// A measurement that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Of this account.
    pub account: AccountId,
    /// Its sum now, bytes.
    pub summed_bytes: u64,
    /// No process need be read when usage is at most so much without, bytes.
    pub enough_bytes: u64,
    /// Processes may be left out of which together so much is charged, bytes.
    pub tolerated_bytes: u64,
    /// How many processes are read.
    pub effort: Effort,
    /// Whether the memory controller may be read instead.
    pub controller: ControllerUse,
}

/// How many processes a measurement reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As many as [`READ_MS`] suffice for, those first that were not read for longest.
    Some,
    /// All: a kill depends on it.
    All,
}

/// A measurement that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Of this account.
    pub account: AccountId,
    /// Actual usage less the order's `summed_bytes`. What could not be read is counted as in the
    /// sum.
    pub difference_bytes: i64,
    /// Of the order's `summed_bytes`, what no process has that could be listed: a fork in progress
    /// has its pages already, and no process yet.
    pub unlisted_bytes: u64,
    /// How it was found.
    pub source: UsageSource,
    /// CPU time that it took, nanoseconds.
    pub cost_ns: u64,
}

/// What follows for the account's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumCorrection {
    /// To be added to the sum from now on.
    pub bytes: i64,
    /// The sum that was measured.
    pub summed_bytes: u64,
    /// So much of [`Sum::unconfirmed_bytes`] was measured.
    pub confirmed_bytes: u64,
}

/// What a measurement of an account is for.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The sum in force.
    pub sum: Sum,
    /// The account's limit.
    pub limit: Limit,
    /// What is to be measured.
    pub demand: Demand,
    /// See [`controller_use`].
    pub controller: ControllerUse,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The sum when the running measurement began.
    running: Option<Sum>,
    /// When the last one ended, nanoseconds.
    ended_ns: Option<u64>,
    cost_ns: u64,
    source: UsageSource,
    /// Of the next measurement.
    controller: ControllerUse,
    /// Since when a kill waits, nanoseconds.
    waiting_ns: Option<u64>,
    /// When the next one is due, nanoseconds.
    due_ns: u64,
}

impl State {
    /// When the next measurement may begin. The first one may at once.
    fn next_ns(&self, awaited: Awaited, now_ns: u64) -> u64 {
        self.ended_ns.map_or(now_ns, |ended_ns| ended_ns + pause_ns(self.cost_ns, awaited))
    }
}

/// The measurements of all accounts that need any.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    accounts: BTreeMap<AccountId, State>,
}

impl Measurements {
    /// Accounts that are measured at present.
    pub fn accounts(&self) -> impl Iterator<Item = AccountId> {
        self.accounts.keys().copied()
    }

    /// The account may need measurements from now on.
    pub fn follow(&mut self, account: AccountId) {
        self.accounts.entry(account).or_default();
    }

    /// Its limit is gone.
    pub fn forget(&mut self, account: AccountId) {
        self.accounts.remove(&account);
    }

    /// How the account's actual usage was found last.
    pub fn source(&self, account: AccountId) -> UsageSource {
        self.accounts.get(&account).map(|state| state.source).unwrap_or_default()
    }

    /// The measurement that is to begin now for an account that is followed. One that needs none
    /// any more is followed no longer.
    pub fn begin(&mut self, account: AccountId, need: Need, now_ns: u64) -> Option<Order> {
        let Need { sum, limit, demand, controller } = need;
        let state = self.accounts.get_mut(&account)?;
        if state.running.is_some() {
            return None;
        }
        let near = sum.used_bytes().max(sum.summed_bytes) >= limit.soft_bytes();
        if !near && sum.correction_bytes == 0 && demand == Demand::Usage {
            self.accounts.remove(&account);
            return None;
        }
        let awaited = is_unconfirmed(sum, limit, state, now_ns);
        state.due_ns = state.next_ns(awaited, now_ns);
        if now_ns < state.due_ns {
            return None;
        }
        state.running = Some(sum);
        let soft = limit.soft_bytes();
        let enough_bytes = soft - soft / CLEAR_SHARE;
        Some(Order {
            account,
            summed_bytes: sum.summed_bytes,
            enough_bytes,
            tolerated_bytes: soft / RAISE_SHARE,
            effort: match awaited {
                Awaited::No => Effort::Some,
                Awaited::Yes => Effort::All,
            },
            controller: match state.controller {
                ControllerUse::Allowed => controller,
                ControllerUse::Excluded => ControllerUse::Excluded,
            },
        })
    }

    /// A measurement has ended, and the account's sum is this now. `None`: nothing follows, for the
    /// account's limit is gone, or the controller was read while the sum moved.
    pub fn end(
        &mut self,
        measurement: Measurement,
        summed_bytes: u64,
        limit: Limit,
        now_ns: u64,
    ) -> Option<SumCorrection> {
        let state = self.accounts.get_mut(&measurement.account)?;
        let sum = state.running.take()?;
        let small = limit.soft_bytes() / RAISE_SHARE;
        let by_controller = measurement.source == UsageSource::Controller;
        if by_controller && summed_bytes.abs_diff(sum.summed_bytes) > small {
            // It belongs to neither sum. An account that keeps moving is measured otherwise.
            state.controller = ControllerUse::Excluded;
            state.cost_ns = measurement.cost_ns;
            state.due_ns = now_ns;
            return None;
        }
        state.controller = ControllerUse::Allowed;
        state.ended_ns = Some(now_ns);
        state.cost_ns = measurement.cost_ns;
        state.source = measurement.source;
        // A fork ends soon. Memory whose process has exited can stay for as long as another one
        // reads it, and counts in full after a while.
        if measurement.unlisted_bytes <= small {
            state.waiting_ns = None;
        }
        state.due_ns = state.next_ns(Awaited::No, now_ns);
        // Less than nothing cannot be in use.
        let least = -i64::try_from(sum.summed_bytes).unwrap_or(i64::MAX);
        let mut bytes = measurement.difference_bytes;
        if by_controller {
            // Pages that came meanwhile are in the sum as well as in the charge.
            bytes -= summed_bytes.saturating_sub(sum.summed_bytes) as i64;
        }
        let bytes = bytes.max(least);
        let raises_little = bytes > 0 && bytes.unsigned_abs() <= small;
        Some(SumCorrection {
            bytes: if raises_little { 0 } else { bytes },
            summed_bytes: sum.summed_bytes,
            confirmed_bytes: sum.unconfirmed_bytes.saturating_sub(measurement.unlisted_bytes),
        })
    }

    /// A measurement could not begin after all.
    pub fn cancel(&mut self, account: AccountId, now_ns: u64) {
        if let Some(state) = self.accounts.get_mut(&account) {
            state.running = None;
            state.ended_ns.get_or_insert(now_ns);
        }
    }

    /// A process may be killed for the account's limit. `false`: within its limit, or a measurement
    /// has to confirm that it is not, which [`begin`](Self::begin) is due for.
    pub fn may_kill(&mut self, account: AccountId, sum: Sum, limit: Limit, now_ns: u64) -> bool {
        if sum.used_bytes() <= limit.hard_bytes() {
            return false;
        }
        if sum.certain_bytes() > limit.hard_bytes() {
            return true;
        }
        let state = self.accounts.entry(account).or_default();
        if is_unconfirmed(sum, limit, state, now_ns) == Awaited::No {
            return true;
        }
        if state.running.is_none() {
            state.due_ns = state.next_ns(Awaited::Yes, now_ns);
        }
        let since_ns = *state.waiting_ns.get_or_insert(now_ns);
        now_ns.saturating_sub(since_ns) >= PATIENCE_MS * NS_PER_MS
    }

    /// When [`begin`](Self::begin) is to be called though nothing happens, nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let due = |state: &State| match (state.running, state.waiting_ns) {
            // The answer wakes; it is not waited for longer than that.
            (Some(_), Some(since_ns)) => Some(since_ns + PATIENCE_MS * NS_PER_MS),
            (Some(_), None) => None,
            (None, _) => Some(state.due_ns),
        };
        self.accounts.values().filter_map(due).min()
    }
}

/// A kill depends on the next measurement.
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

/// From the end of one measurement to the begin of the next.
fn pause_ns(cost_ns: u64, awaited: Awaited) -> u64 {
    let affordable = cost_ns.saturating_mul(100 / CPU_PERCENT);
    let (least, most) = match awaited {
        Awaited::No => (RENEW_MS / 2, OLDEST_MS),
        Awaited::Yes => (CONFIRM_MS, RENEW_MS),
    };
    affordable.clamp(least * NS_PER_MS, most * NS_PER_MS)
}
