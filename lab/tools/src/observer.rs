//! Looks at the machine every 10 ms while a scenario plays.

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
/// After the memory is back, for a late wrong victim to show.
const SETTLE_NS: u64 = SECOND_NS;
/// The pressure begins when less than this much of all memory is available.
const LOW_PERCENT: u64 = 10;
/// It is over when this much of what was available before the load is available again.
const BACK_PERCENT: u64 = 90;

/// The processes that are looked at.
pub struct Parts {
    /// Feels every delay.
    pub interactive: Part,
    /// Must live.
    pub bystander: Part,
    /// Must not.
    pub load: Part,
}

/// When and against what to observe.
pub struct Terms {
    /// Before the load.
    pub before: MemInfo,
    /// When it started.
    pub started_ns: u64,
    /// How long at the most.
    pub seconds: u64,
    /// The limit of the load's user, where that is what counts.
    pub limit_kib: Option<u64>,
}

/// What the observer saw.
#[derive(Default)]
pub struct Observed {
    /// MemAvailable.
    pub lowest_available_kib: u64,
    /// SwapFree.
    pub lowest_swap_free_kib: u64,
    /// The longest delay of the interactive process, one that lasts included.
    pub stall_ns_max: u64,
    /// The observer's own longest delay: it has locked memory and real-time priority, so this is
    /// the host's doing, or the guest kernel's with interrupts off.
    pub own_lateness_ns_max: u64,
    /// When the pressure began.
    pub pressed_at_ns: Option<u64>,
    /// When it ended, if it stayed away.
    pub back_at_ns: Option<u64>,
    /// The most that the load had above its user's limit.
    pub over_limit_kib_max: u64,
}

/// Samples until the memory is back and things have settled, or time is up.
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
    /// Notes the begin and the end of the pressure.
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

    /// The load is gone, and its memory is back or was never missed.
    fn is_over(&self, groups: &Groups, parts: &Parts, now: u64) -> bool {
        let quiet_since = match (self.pressed_at_ns, parts.load.ended) {
            (Some(_), _) => self.back_at_ns,
            // A killer may act before memory is low by our measure: then there is nothing to
            // recover from.
            (None, ended) => ended.map(|(at, _)| at),
        };
        groups.is_empty("load") && quiet_since.is_some_and(|at| now > at + SETTLE_NS)
    }
}
