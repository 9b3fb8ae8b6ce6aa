//! Memory pressure of the whole machine: too little available, soon exhausted, or all tasks
//! stalled.
//!
//! Works without any limit. Each reading returns a [`Pressure`] or none, and sets the time of the
//! next reading.

use std::collections::VecDeque;
use std::fmt;

use crate::kill_rate::RateLimit;
use crate::{NS_PER_MS, NS_PER_SECOND};

const MIB: u64 = 1 << 20;

/// Rate at which programs can fill memory, bytes per second: earlyoom's measurement with several
/// programs filling at once. Determines how long no reading is needed.
pub(crate) const FASTEST_FILL: u64 = 6_000 * MIB;
/// The pause between two readings, milliseconds. A reading costs some 10 µs.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 10..=1_000;
/// Growth is measured over at most this time, and at least a tenth of it, milliseconds.
const RATE_WINDOW_MS: u64 = 500;
/// Number of readings that are kept: a window of the shortest pauses.
const KEPT: usize = (RATE_WINDOW_MS / 10) as usize + 2;
/// Milliseconds after a victim's exit within which its memory appears in `MemAvailable`: pages wait
/// in per-CPU lists. 0.4 s was measured.
const ARRIVAL_MS: u64 = 500;
/// A kill has to free at least this fraction of the need.
const FLOOR_SHARE: u64 = 64;
/// The forecast of exhaustion applies below this multiple of the soft level. Above it a program
/// that allocates all it needs at once would be mistaken for a leak.
const FORECAST_LEVELS: u64 = 2;

/// An amount of memory that should stay free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Hundredths of a percent of the total.
    Share(u32),
    /// Bytes.
    Bytes(u64),
}

impl Level {
    /// Percent of the total.
    pub const fn percent(percent: u32) -> Self {
        Self::Share(percent * 100)
    }

    /// The level in bytes.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(hundredths) => {
                let part = u128::from(whole) * u128::from(hundredths) / 10_000;
                u64::try_from(part).unwrap_or(u64::MAX)
            }
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(hundredths) if hundredths % 100 == 0 => write!(f, "{}%", hundredths / 100),
            Self::Share(hundredths) => write!(f, "{}.{:02}%", hundredths / 100, hundredths % 100),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
        }
    }
}

/// Thresholds at which processes are killed. Memory *and* swap have to be short: while swap is
/// free, the kernel can reclaim memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Available memory at which a victim gets SIGTERM, or SIGKILL if there is no time for SIGTERM.
    pub soft: Level,
    /// Available memory at which a victim gets SIGKILL.
    pub hard: Level,
    /// Free swap at which the soft level counts.
    pub swap_soft: Level,
    /// Free swap at which the hard level counts.
    pub swap_hard: Level,
    /// A process is killed if memory and swap will be exhausted within this time, milliseconds; 0:
    /// never.
    pub forecast_ms: u64,
    /// A process is killed if all tasks were stalled on memory for this share of `stall_ms`,
    /// percent.
    pub stall_percent: u32,
    /// Window of `stall_percent`, milliseconds; 0: never.
    pub stall_ms: u64,
    /// Whether a kill has to free a minimum.
    pub floors: Floors,
    /// Maximum rate of kills: above it only the hard level and the forecast kill. For users with a
    /// limit, exceeding it is only reported.
    pub kills: RateLimit,
}

impl Default for Thresholds {
    /// earlyoom's levels, which have been tested on desktops for years.
    fn default() -> Self {
        Self {
            soft: Level::percent(10),
            hard: Level::percent(5),
            swap_soft: Level::percent(10),
            swap_hard: Level::percent(5),
            // Two readings and a kill: a victim of 1 GiB has exited after some 60 ms.
            forecast_ms: 100,
            // A stall for half of 5 s is no transient: no user can work under it.
            stall_percent: 50,
            stall_ms: 5_000,
            floors: Floors::Apply,
            kills: RateLimit::default(),
        }
    }
}

/// Whether a kill has to free a minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floors {
    /// At least a sixty-fourth of the need, and all candidates together all of it.
    Apply,
    /// Any process may be killed.
    Ignore,
}

/// The machine's memory at one moment, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineReading {
    /// Time of the reading, nanoseconds.
    pub at_ns: u64,
    /// Memory that new programs can have without swapping (`MemAvailable`).
    pub available: u64,
    /// Memory that all programs have and could have: available, anonymous and shared memory, page
    /// tables, and files that the kernel cannot take back. The kernel's own memory is left out: on
    /// a machine where that is a lot, a share of all memory comes too late.
    pub total: u64,
    /// Free swap that can be used.
    pub swap_free: u64,
    /// Total swap.
    pub swap_total: u64,
    /// Time that all tasks have been stalled on memory since boot, nanoseconds (PSI full); `None`
    /// where the kernel does not report it.
    pub stalled_ns: Option<u64>,
    /// Number of global memory reclaims since boot, without those for a control group's limit;
    /// `None` where the kernel does not report it.
    pub reclaims: Option<u64>,
}

/// Swap that can really be used, bytes, when some of it is compressed memory (zram): filling that
/// needs memory as well. `stored` bytes lie in it at present and take `taken` bytes of memory.
pub fn usable_swap(free: u64, zram_free: u64, stored: u64, taken: u64, available: u64) -> u64 {
    // Before enough data is stored, assume a ratio of a third, the usual one of zstd and lzo on
    // programs' memory.
    let (stored, taken) = if stored < MIB { (3, 1) } else { (stored, taken.max(1)) };
    let room = u128::from(available) * u128::from(stored) / u128::from(taken);
    let zram_usable = zram_free.min(u64::try_from(room).unwrap_or(u64::MAX));
    free.saturating_sub(zram_free).saturating_add(zram_usable)
}

/// Reason for a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// Below the soft level. `left_ms`: time until the hard level at the present rate.
    Soft {
        /// `None`: available memory does not shrink.
        left_ms: Option<u64>,
    },
    /// Below the hard level.
    Hard,
    /// Above the levels, but exhausted soon at the present rate.
    Exhausting {
        /// Milliseconds until nothing is left.
        in_ms: u64,
    },
    /// All tasks are stalled on memory.
    Stalled {
        /// Share of the time, percent.
        percent: u32,
    },
}

impl Pressure {
    /// The machine can run on for a while without a kill.
    pub fn can_wait(self) -> bool {
        matches!(self, Self::Soft { .. } | Self::Stalled { .. })
    }
}

/// A pressure and the reading that shows it, displayed as a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureTrigger {
    /// The reason for the kill.
    pub pressure: Pressure,
    /// The reading that shows the pressure.
    pub reading: MachineReading,
    /// Bytes that would end the pressure.
    pub need_bytes: u64,
    /// Bytes that one kill has to free at least.
    pub floor_bytes: u64,
    /// Bytes that all kills together have to free at least: up to the soft level.
    pub cover_bytes: u64,
}

impl fmt::Display for PressureTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MachineReading { available, total, swap_free, swap_total, .. } = self.reading;
        let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
        let (mib, share) = (available / MIB, percent(available, total));
        write!(f, "{mib} MiB ({share:.1} %) of memory available")?;
        if swap_total > 0 {
            write!(
                f,
                ", {} MiB ({:.1} %) of swap",
                swap_free / MIB,
                percent(swap_free, swap_total)
            )?;
        }
        match self.pressure {
            Pressure::Soft { .. } => write!(f, ": below the soft level"),
            Pressure::Hard => write!(f, ": below the hard level"),
            Pressure::Exhausting { in_ms } => write!(f, ": at this rate exhausted in {in_ms} ms"),
            Pressure::Stalled { percent } => {
                write!(f, ": all programs waited for memory {percent} % of the time")
            }
        }
    }
}

/// Monitors the readings.
#[derive(Clone, Debug)]
pub struct Machine {
    thresholds: Thresholds,
    /// Oldest first.
    kept: VecDeque<MachineReading>,
    /// Oldest first: time of the reading, and total stall time by then.
    stalls: VecDeque<(u64, u64)>,
    /// Stall time of all tasks while the kernel reclaimed memory of the machine, nanoseconds.
    reclaim_stalled_ns: u64,
    coming: Option<Coming>,
    next_look_ns: u64,
}

/// Memory that victims have lost and `MemAvailable` does not show yet.
#[derive(Clone, Copy, Debug)]
struct Coming {
    bytes: u64,
    /// Available memory at the kill, bytes.
    available: u64,
    until_ns: u64,
}

impl Coming {
    /// Bytes that `MemAvailable` does not show yet.
    fn missing(&self, reading: &MachineReading) -> u64 {
        if reading.at_ns >= self.until_ns {
            return 0;
        }
        self.bytes.saturating_sub(reading.available.saturating_sub(self.available))
    }
}

impl Machine {
    /// No reading yet; the first one is due at once.
    pub fn new(thresholds: Thresholds) -> Self {
        let (kept, stalls) = (VecDeque::with_capacity(KEPT + 1), VecDeque::with_capacity(64));
        let (reclaim_stalled_ns, coming) = (0, None);
        Self { thresholds, kept, stalls, reclaim_stalled_ns, coming, next_look_ns: 0 }
    }

    /// The thresholds in force.
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Changes the thresholds; earlier readings are kept.
    pub fn set_thresholds(&mut self, thresholds: Thresholds) {
        self.thresholds = thresholds;
        self.next_look_ns = 0;
    }

    /// The latest reading.
    pub fn reading(&self) -> Option<&MachineReading> {
        self.kept.back()
    }

    /// When the next reading is due, nanoseconds.
    pub fn next_look_ns(&self) -> u64 {
        self.next_look_ns
    }

    /// Postpones the next reading to `until_ns`, after one that failed.
    pub fn postpone(&mut self, until_ns: u64) {
        self.next_look_ns = until_ns;
    }

    /// Discards the stalls after a kill for them: only a new stall raises the pressure again.
    pub fn forget_stalls(&mut self) {
        self.stalls.clear();
    }

    /// Victims with this much memory were killed, bytes: it counts as available until
    /// `MemAvailable` shows it, or until the credit expires.
    pub fn credit(&mut self, bytes: u64, now_ns: u64) {
        let Some(reading) = self.kept.back() else { return };
        let before = self.coming.map_or(0, |coming| coming.missing(reading));
        let (bytes, available) = (bytes.saturating_add(before), reading.available);
        self.coming = Some(Coming { bytes, available, until_ns: now_ns + ARRIVAL_MS * NS_PER_MS });
    }

    /// Victims are still exiting: the time for their memory begins when they have exited.
    pub fn extend_credit(&mut self, now_ns: u64) {
        if let Some(coming) = &mut self.coming {
            coming.until_ns = now_ns + ARRIVAL_MS * NS_PER_MS;
        }
    }

    /// Evaluates a reading.
    pub fn read(&mut self, reading: MachineReading) -> Option<PressureTrigger> {
        self.follow_stalls(&reading);
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(reading);
        let missing = self.coming.map_or(0, |coming| coming.missing(&reading));
        if missing == 0 {
            self.coming = None;
        }
        let stalled = self.stalled_percent(&reading);
        let soft = self.thresholds.soft.of(reading.total);
        let hard = self.thresholds.hard.of(reading.total);
        let rate = self.bytes_lost_a_second();
        self.next_look_ns = reading.at_ns + pause_ns(&reading, soft, rate);

        let swap_below = |level: Level| reading.swap_free <= level.of(reading.swap_total);
        let available = reading.available.saturating_add(missing);
        let exhausted_ms = ms_until(available + reading.swap_free, rate);
        let near = available <= soft.saturating_mul(FORECAST_LEVELS);
        let pressure = if available <= hard && swap_below(self.thresholds.swap_hard) {
            Pressure::Hard
        } else if available <= soft && swap_below(self.thresholds.swap_soft) {
            Pressure::Soft { left_ms: ms_until(available.saturating_sub(hard), rate) }
        } else if let Some(in_ms) =
            exhausted_ms.filter(|ms| near && *ms < self.thresholds.forecast_ms)
        {
            Pressure::Exhausting { in_ms }
        } else if let Some(percent) = stalled.filter(|p| *p >= self.thresholds.stall_percent) {
            Pressure::Stalled { percent }
        } else {
            return None;
        };
        // Half of the soft level is added: at the level itself the next page would raise the
        // pressure again.
        let need_bytes = (soft + soft / 2).saturating_sub(available);
        let (floor_bytes, cover_bytes) = match self.thresholds.floors {
            Floors::Apply => (need_bytes / FLOOR_SHARE, soft.saturating_sub(available)),
            Floors::Ignore => (0, 0),
        };
        Some(PressureTrigger { pressure, reading, need_bytes, floor_bytes, cover_bytes })
    }

    /// Tasks that wait for the limit of their own control group count as stalled as well, while the
    /// machine has memory: only stalls during which the kernel reclaimed memory of the machine
    /// count.
    fn follow_stalls(&mut self, reading: &MachineReading) {
        let Some(last) = self.kept.back() else { return };
        let grew = match (last.reclaims, reading.reclaims) {
            (Some(before), Some(now)) => now > before,
            _ => true,
        };
        if let (Some(before), Some(now), true) = (last.stalled_ns, reading.stalled_ns, grew) {
            self.reclaim_stalled_ns += now.saturating_sub(before);
        }
    }

    /// Loss of memory and swap together, bytes per second; `None` if there is none.
    fn bytes_lost_a_second(&self) -> Option<u64> {
        let now = self.kept.back()?;
        let age = |then: &MachineReading| now.at_ns.saturating_sub(then.at_ns);
        let window = RATE_WINDOW_MS * NS_PER_MS;
        let then = self.kept.iter().find(|then| age(then) <= window)?;
        let elapsed = age(then);
        let free = |reading: &MachineReading| reading.available.saturating_add(reading.swap_free);
        let lost = free(then).checked_sub(free(now)).filter(|lost| *lost > 0)?;
        if elapsed < window / 10 {
            return None;
        }
        let rate = u128::from(lost) * NS_PER_SECOND / u128::from(elapsed);
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// Share of the last `stall_ms` in which all tasks were stalled, percent; `None` before the
    /// readings cover `stall_ms`.
    fn stalled_percent(&mut self, reading: &MachineReading) -> Option<u32> {
        let window = self.thresholds.stall_ms * NS_PER_MS;
        reading.stalled_ns.filter(|_| window > 0)?;
        let stalled_ns = self.reclaim_stalled_ns;
        let spacing = window / 32;
        if self.stalls.back().is_none_or(|(at, _)| reading.at_ns.saturating_sub(*at) >= spacing) {
            self.stalls.push_back((reading.at_ns, stalled_ns));
        }
        // The oldest entry that is still needed is the last one outside of the window.
        while self.stalls.get(1).is_some_and(|(at, _)| reading.at_ns.saturating_sub(*at) >= window)
        {
            self.stalls.pop_front();
        }
        let (at, before) = *self.stalls.front()?;
        let elapsed = reading.at_ns.saturating_sub(at);
        let waited = u128::from(stalled_ns.saturating_sub(before));
        (elapsed >= window).then(|| (waited * 100 / u128::from(elapsed.max(1))).min(100) as u32)
    }
}

fn ms_until(bytes: u64, rate: Option<u64>) -> Option<u64> {
    let ms = u128::from(bytes) * 1000 / u128::from(rate?.max(1));
    Some(u64::try_from(ms).unwrap_or(u64::MAX))
}

/// Pause until the soft level can be reached: at the fastest fill rate, or a quarter of the time
/// that is left at the present rate. Free swap does not prolong the pause: it fills as quickly.
fn pause_ns(reading: &MachineReading, soft: u64, rate: Option<u64>) -> u64 {
    let above = reading.available.saturating_sub(soft);
    let fastest = ms_until(above, Some(FASTEST_FILL)).unwrap_or(0);
    let present = ms_until(above, rate).map_or(u64::MAX, |ms| ms / 4);
    fastest.min(present).clamp(*PAUSE_MS.start(), *PAUSE_MS.end()) * NS_PER_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MS: u64 = NS_PER_MS;

    fn reading(at_ms: u64, available_mib: u64) -> MachineReading {
        let (at_ns, available) = (at_ms * MS, available_mib * MIB);
        MachineReading { at_ns, available, total: 1000 * MIB, ..MachineReading::default() }
    }

    fn pressure(machine: &mut Machine, reading: MachineReading) -> Option<Pressure> {
        machine.read(reading).map(|trigger| trigger.pressure)
    }

    #[test]
    fn below_the_soft_level_sigterm_is_sent_and_below_the_hard_level_sigkill() {
        let mut machine = Machine::new(Thresholds::default());
        assert_eq!(pressure(&mut machine, reading(0, 500)), None);
        assert_eq!(pressure(&mut machine, reading(1000, 101)), None);
        let soft = pressure(&mut machine, reading(2000, 100));
        assert_eq!(soft, Some(Pressure::Soft { left_ms: None }));
        assert_eq!(pressure(&mut machine, reading(3000, 50)), Some(Pressure::Hard));
        let trigger = machine.read(reading(3001, 50)).unwrap();
        assert_eq!(trigger.need_bytes, 100 * MIB);
        assert_eq!(trigger.to_string(), "50 MiB (5.0 %) of memory available: below the hard level");
    }

    #[test]
    fn memory_of_a_victim_counts_as_available_until_it_is_or_its_time_is_over() {
        let mut machine = Machine::new(Thresholds::default());
        assert_eq!(pressure(&mut machine, reading(0, 40)), Some(Pressure::Hard));
        machine.credit(200 * MIB, 0);
        assert_eq!(pressure(&mut machine, reading(10, 40)), None, "240 MiB soon");
        assert_eq!(pressure(&mut machine, reading(20, 20)), None, "others took 20");
        machine.extend_credit(300 * MS);
        assert_eq!(pressure(&mut machine, reading(700, 40)), None);
        assert_eq!(pressure(&mut machine, reading(800, 40)), Some(Pressure::Hard), "it is late");
        machine.credit(200 * MIB, 800 * MS);
        assert_eq!(pressure(&mut machine, reading(900, 240)), None, "it is there");
        assert_eq!(pressure(&mut machine, reading(910, 40)), Some(Pressure::Hard), "and gone");
        machine.credit(5 * MIB, 910 * MS);
        assert_eq!(pressure(&mut machine, reading(920, 40)), Some(Pressure::Hard), "too little");
    }

    #[test]
    fn a_kill_has_to_bring_a_part_of_the_need() {
        let mut machine = Machine::new(Thresholds::default());
        let trigger = machine.read(reading(0, 22)).unwrap();
        let floors = (trigger.need_bytes, trigger.floor_bytes, trigger.cover_bytes);
        assert_eq!(floors, (128 * MIB, 2 * MIB, 78 * MIB));
        machine.set_thresholds(Thresholds { floors: Floors::Ignore, ..Thresholds::default() });
        let trigger = machine.read(reading(10, 22)).unwrap();
        assert_eq!((trigger.floor_bytes, trigger.cover_bytes), (0, 0));
    }

    #[test]
    fn programs_that_wait_for_their_own_limit_do_not_stall_the_machine() {
        let waiting = |reclaims: fn(u64) -> Option<u64>| {
            let mut machine = Machine::new(Thresholds::default());
            let found = (0..=60).filter_map(|step| {
                let at_ms = step * 100;
                let stalled_ns = Some(at_ms * 9 / 10 * MS);
                let reclaims = reclaims(step);
                let reading = MachineReading { stalled_ns, reclaims, ..reading(at_ms, 200) };
                pressure(&mut machine, reading)
            });
            found.last()
        };
        assert!(matches!(waiting(Some), Some(Pressure::Stalled { .. })), "the machine reclaims");
        assert!(matches!(waiting(|_| None), Some(Pressure::Stalled { .. })), "not known");
        assert_eq!(waiting(|_| Some(5)), None);
    }

    #[test]
    fn no_process_is_killed_while_swap_is_free() {
        let mut machine = Machine::new(Thresholds::default());
        let swap = |at_ms, free_mib| MachineReading {
            swap_total: 1000 * MIB,
            swap_free: free_mib * MIB,
            ..reading(at_ms, 40)
        };
        assert_eq!(pressure(&mut machine, swap(0, 300)), None);
        assert!(matches!(pressure(&mut machine, swap(1000, 100)), Some(Pressure::Soft { .. })));
        let trigger = machine.read(swap(2000, 50)).unwrap();
        assert_eq!(trigger.pressure, Pressure::Hard);
        assert!(trigger.to_string().contains("50 MiB (5.0 %) of swap"), "{trigger}");
    }

    #[test]
    fn compressed_swap_counts_as_far_as_there_is_memory_for_it() {
        let mib = |n: u64| n * MIB;
        assert_eq!(usable_swap(mib(900), 0, 0, 0, mib(40)), mib(900), "a disk");
        assert_eq!(usable_swap(mib(900), mib(900), mib(300), mib(100), mib(40)), mib(120));
        assert_eq!(usable_swap(mib(900), mib(400), mib(300), mib(100), mib(40)), mib(620));
        assert_eq!(usable_swap(mib(900), mib(900), 0, 0, mib(40)), mib(120), "nothing stored yet");
        assert_eq!(usable_swap(mib(900), mib(900), mib(300), mib(100), mib(4000)), mib(900));
    }

    #[test]
    fn a_fast_leak_is_seen_before_the_levels_are_reached() {
        let mut machine = Machine::new(Thresholds::default());
        // 2 GB/s: 190 MiB are gone in 95 ms.
        for step in 0..7 {
            let at_20ms = reading(20 * step, 470 - 40 * step);
            assert_eq!(pressure(&mut machine, at_20ms), None, "step {step}");
        }
        let Some(Pressure::Exhausting { in_ms }) = pressure(&mut machine, reading(140, 190)) else {
            panic!("not seen")
        };
        assert!((90..100).contains(&in_ms), "{in_ms}");
        assert!(machine.next_look_ns() <= 152 * MS);
    }

    #[test]
    fn growth_with_ample_free_memory_causes_no_kill() {
        let mut machine = Machine::new(Thresholds::default());
        for step in 0..8 {
            assert_eq!(pressure(&mut machine, reading(10 * step, 900 - 90 * step)), None);
        }
    }

    #[test]
    fn the_time_left_follows_from_the_rate() {
        let mut machine = Machine::new(Thresholds::default());
        machine.read(reading(0, 140));
        let soft = pressure(&mut machine, reading(400, 90));
        assert_eq!(soft, Some(Pressure::Soft { left_ms: Some(320) }));
    }

    #[test]
    fn checks_are_more_frequent_with_less_free_memory() {
        let mut machine = Machine::new(Thresholds::default());
        let mut pause = |available, total| {
            let at_ns = 5_000_000_000_000;
            machine.read(MachineReading { at_ns, available, total, ..MachineReading::default() });
            (machine.next_look_ns() - at_ns) / MS
        };
        assert_eq!(pause(60 * GIB, 64 * GIB), 1000);
        assert_eq!(pause(4 * GIB, 16 * GIB), 409);
        assert_eq!(pause(GIB, 16 * GIB), 10);
    }

    #[test]
    fn a_long_full_stall_kills_one_process_and_restarts_the_timer() {
        let mut machine = Machine::new(Thresholds::default());
        let waits = |at_ms: u64, stalled_ms: u64| MachineReading {
            stalled_ns: Some(stalled_ms * MS),
            ..reading(at_ms, 200)
        };
        for second in 0..5 {
            assert_eq!(pressure(&mut machine, waits(second * 1000, second * 600)), None);
        }
        assert_eq!(
            pressure(&mut machine, waits(5000, 3000)),
            Some(Pressure::Stalled { percent: 60 })
        );
        machine.forget_stalls();
        assert_eq!(pressure(&mut machine, waits(5010, 3010)), None);
        for second in 6..20 {
            let (at, waited) = (second * 1000, 3010 + (second - 5) * 400);
            assert_eq!(
                pressure(&mut machine, waits(at, waited)),
                None,
                "two fifths are not enough"
            );
        }
    }
}
