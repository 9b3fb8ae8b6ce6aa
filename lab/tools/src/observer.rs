//! Samples the machine's state every 10 ms while a scenario runs.

use std::sync::atomic::Ordering::Relaxed;

use crate::Result;
use crate::clock::{now_ns, sleep_until};
use crate::groups::{Groups, Part};
use crate::interactive::PERIOD_NS;
use crate::memory::{self, MemInfo};
use crate::shared::Shared;

const SAMPLE_NS: u64 = 10_000_000;
/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;
/// Time after the memory is back in which a late wrong victim can show.
const SETTLE_NS: u64 = SECOND_NS;
/// The pressure begins when less than this percentage of all memory is available.
const LOW_PERCENT: u64 = 10;
/// It is over when this percentage of the memory available before the load is available again.
const BACK_PERCENT: u64 = 90;

/// The observed processes.
pub struct Parts {
    /// Measures every delay.
    pub interactive: Part,
    /// Must survive.
    pub bystander: Part,
    /// Must be killed.
    pub load: Part,
}

/// Conditions of the observation.
pub struct Terms {
    /// Memory before the load.
    pub before: MemInfo,
    /// Start of the load, nanoseconds.
    pub started_ns: u64,
    /// Maximum duration of the observation.
    pub seconds: u64,
    /// The limit of the load's user, in a scenario about limits.
    pub limit_kib: Option<u64>,
}

/// Result of the observation.
#[derive(Default)]
pub struct Observed {
    /// Minimum of MemAvailable.
    pub lowest_available_kib: u64,
    /// Minimum of SwapFree.
    pub lowest_swap_free_kib: u64,
    /// The longest delay of the interactive process, including one that is not over yet.
    pub stall_ns_max: u64,
    /// The observer's own longest delay: it has locked memory and real-time priority, so this is
    /// caused by the host, or by the guest kernel with interrupts off.
    pub own_lateness_ns_max: u64,
    /// When the pressure began.
    pub pressed_at_ns: Option<u64>,
    /// When it ended, if it did not return.
    pub back_at_ns: Option<u64>,
    /// Maximum of the load's memory above its user's limit.
    pub over_limit_kib_max: u64,
}

/// Samples until the memory is back and [`SETTLE_NS`] has passed, or time is up.
pub fn observe(
    shared: &Shared,
    groups: &Groups,
    parts: &mut Parts,
    terms: &Terms,
) -> Result<Observed> {
    let mut seen = Observed {
        lowest_available_kib: terms.before.available_kib,
        lowest_swap_free_kib: terms.before.swap_free_kib,
        ..Observed::default()
    };
    let mut next = terms.started_ns;
    loop {
        next += SAMPLE_NS;
        sleep_until(next);
        let now = now_ns();
        seen.own_lateness_ns_max = seen.own_lateness_ns_max.max(now.saturating_sub(next));
        next = next.max(now.saturating_sub(SAMPLE_NS));
        let memory = memory::meminfo()?;
        seen.lowest_available_kib = seen.lowest_available_kib.min(memory.available_kib);
        seen.lowest_swap_free_kib = seen.lowest_swap_free_kib.min(memory.swap_free_kib);
        parts.bystander.reap();
        parts.load.reap();
        if !parts.interactive.reap() {
            let waiting = now.saturating_sub(shared.last_beat_ns.load(Relaxed) + PERIOD_NS);
            seen.stall_ns_max = seen.stall_ns_max.max(waiting).max(shared.max_lag_ns.load(Relaxed));
        }
        seen.pressure(groups, terms, memory, now);
        if seen.is_over(groups, parts, now) || now > terms.started_ns + terms.seconds * SECOND_NS {
            return Ok(seen);
        }
    }
}

impl Observed {
    /// Records the begin and the end of the pressure.
    fn pressure(&mut self, groups: &Groups, terms: &Terms, memory: MemInfo, now: u64) {
        let (pressed, back) = match terms.limit_kib {
            Some(limit) => {
                let usage = memory::cgroup_usage_kib(&groups.path("load"));
                self.over_limit_kib_max = self.over_limit_kib_max.max(usage.saturating_sub(limit));
                (usage > limit, usage <= limit)
            }
            None => (
                memory.available_kib * 100 < memory.total_kib * LOW_PERCENT,
                memory.available_kib * 100 >= terms.before.available_kib * BACK_PERCENT,
            ),
        };
        if pressed {
            self.pressed_at_ns = self.pressed_at_ns.or(Some(now));
            self.back_at_ns = None;
        } else if back && self.pressed_at_ns.is_some() {
            self.back_at_ns = self.back_at_ns.or(Some(now));
        }
    }

    /// Whether the load has exited, and its memory is back or was never missed.
    fn is_over(&self, groups: &Groups, parts: &Parts, now: u64) -> bool {
        let quiet_since = match (self.pressed_at_ns, parts.load.ended) {
            (Some(_), _) => self.back_at_ns,
            // A daemon may kill before memory is low by this definition: then there is no recovery
            // to wait for.
            (None, ended) => ended.map(|(at, _)| at),
        };
        groups.is_empty("load") && quiet_since.is_some_and(|at| now > at + SETTLE_NS)
    }
}
