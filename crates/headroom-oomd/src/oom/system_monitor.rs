//! Detects that the system as a whole is short of memory. Then any process can be the victim,
//! whether its account has a limit or not.

use std::path::Path;

use control::oomd::{Trigger, Why};
use headroom_linux::clock::monotonic_ns;
use headroom_linux::machine_memory::{MachineReader, Zram};
use memory_ledger::limit::Bytes;
use memory_ledger::machine::usable_swap;
use memory_ledger::process::WINDOW_NS;
use memory_ledger::{
    Bombs, Choice, Count, Floors, Herds, Machine, MachineReading, NS_PER_MS, NoVictim, Pressure,
    PressureTrigger, Scope, Thresholds, Uid,
};

use super::kill_plan::{
    Decision, KillPlan, Method, PinnedVictim, Purpose, Unarmed, no_kill_record,
};
use super::shared_state::SharedState;

/// Interval of reading zram's compression ratio, and the stall time while memory is plenty,
/// milliseconds.
const SLOW_LOOK_MS: u64 = 1_000;
/// Longest time between SIGTERM and SIGKILL, milliseconds: saving data takes time, and all other
/// processes wait while memory is short.
const SIGTERM_GRACE_MS: u64 = 1_000;
/// If less time is left until the hard level, milliseconds, no SIGTERM is sent but SIGKILL.
const MIN_SIGTERM_GRACE_MS: u64 = 200;
/// Idle memory and unused leases are requested while available memory is below the soft level plus
/// this fraction (1/2) of it, early enough for a response.
const SHRINK_SHARE: u64 = 2;
/// Files that processes hold open are searched if shared and unevictable memory are at least this
/// fraction (1/2) of the soft level.
const SHARED_SHARE: u64 = 2;
/// Interval of recording that no process can be killed, milliseconds.
const REPORT_MS: u64 = 60_000;

/// The detector of system memory pressure.
#[derive(Default)]
pub(super) struct SystemMonitor {
    /// `None`: the system is not monitored.
    source: Option<Source>,
    /// Why no process is killed though the system is short of memory.
    no_victim: Option<NoVictim>,
    /// When the lack of a victim may be recorded again, nanoseconds, CLOCK_MONOTONIC.
    next_report_ns: u64,
    /// A kill for the present shortage was planned and only observed.
    planned: bool,
    /// When a process was last killed for the system, nanoseconds, CLOCK_MONOTONIC. `None`: longer
    /// ago than a window, and the shortage has ended since.
    killed_ns: Option<u64>,
}

struct Source {
    reader: MachineReader,
    machine: Machine,
    zram: Zram,
    next_slow_look_ns: u64,
    stalled_ns: Option<u64>,
    reclaims: Option<u64>,
    /// Memory that may be in files that nobody has mapped: shared and unevictable memory, bytes.
    in_files_bytes: u64,
    /// Bytes above the soft level; `None`: that level is far.
    room: Option<u64>,
}

/// The result of a check of the system.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemLook {
    /// Whether the soft level is near or passed.
    pub(super) near: bool,
    /// Whether it is near, and shared or unevictable memory may be the reason.
    pub(super) much_shared: bool,
    /// `None`: the system is not short of memory.
    pub(super) trigger: Option<PressureTrigger>,
}

impl Source {
    fn read(&mut self) -> Result<MachineReading, headroom_linux::machine_memory::ReadError> {
        let info = self.reader.meminfo()?;
        let at_ns = monotonic_ns();
        self.in_files_bytes = info.shmem.unwrap_or(0) + info.unevictable.unwrap_or(0);
        let available = info.available.unwrap_or(0);
        let total = info.of_programs();
        let swap_total = info.swap_total.unwrap_or(0);
        // If memory is plenty, a process that waits for memory waits because of its own cgroup's
        // limit.
        let short = available < total / 4;
        if short || at_ns >= self.next_slow_look_ns {
            self.stalled_ns = self.reader.stalled().map(|time| time.as_nanos() as u64);
            self.reclaims = self.reader.reclaims();
        }
        if at_ns >= self.next_slow_look_ns {
            self.next_slow_look_ns = at_ns + SLOW_LOOK_MS * NS_PER_MS;
            self.zram = if swap_total > 0 { self.reader.zram() } else { Zram::default() };
        }
        let Zram { free, stored, taken } = self.zram;
        let swap_free = info.swap_free.unwrap_or(0);
        Ok(MachineReading {
            at_ns,
            available,
            total,
            swap_free: usable_swap(swap_free, free, stored, taken, available),
            swap_total,
            stalled_ns: self.stalled_ns.filter(|_| short),
            reclaims: self.reclaims,
        })
    }

    fn soft_bytes(&self, reading: &MachineReading) -> u64 {
        self.machine.thresholds().soft.of(reading.total)
    }
}

impl SystemMonitor {
    /// Starts monitoring the system by the files in these directories. Returns the degradation if
    /// the kernel has no pressure stall information.
    pub(super) fn start(
        &mut self,
        proc: &Path,
        sys: &Path,
        thresholds: Thresholds,
    ) -> Result<Option<String>, headroom_linux::machine_memory::ReadError> {
        let reader = MachineReader::open(proc, sys)?;
        let blind = !reader.knows_stalls() && thresholds.stall_ms > 0;
        let source = Source {
            reader,
            machine: Machine::new(thresholds),
            zram: Zram::default(),
            next_slow_look_ns: 0,
            stalled_ns: None,
            reclaims: None,
            in_files_bytes: 0,
            room: None,
        };
        (self.source, self.no_victim) = (Some(source), None);
        let lost = "no pressure stall information (CONFIG_PSI, psi=1): a machine that thrashes \
                    with memory left is not noticed";
        Ok(blind.then(|| lost.to_owned()))
    }

    /// Stops monitoring the system.
    pub(super) fn stop(&mut self) {
        *self = Self::default();
    }

    /// The levels in force; `None`: the system is not monitored.
    pub(super) fn thresholds(&self) -> Option<&Thresholds> {
        self.source.as_ref().map(|source| source.machine.thresholds())
    }

    /// Sets other levels and keeps the readings.
    pub(super) fn set_thresholds(&mut self, thresholds: Thresholds) {
        if let Some(source) = &mut self.source {
            source.machine.set_thresholds(thresholds);
        }
    }

    /// When a check is due, nanoseconds, CLOCK_MONOTONIC.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.source.as_ref().map(|source| source.machine.next_look_ns())
    }

    /// What can be leased before the system reaches its soft level, bytes, as of the last check.
    /// `None`: that level is far, or the system is not monitored.
    pub(super) fn room(&self) -> Option<u64> {
        self.source.as_ref().and_then(|source| source.room)
    }

    /// Checks the system if a check is due.
    pub(super) fn look(&mut self) -> Option<SystemLook> {
        let source = self.source.as_mut()?;
        if monotonic_ns() < source.machine.next_look_ns() {
            return None;
        }
        let reading = match source.read() {
            Ok(reading) => reading,
            Err(error) => {
                tracing::warn!("{error}; trying again in a second");
                source.machine.postpone(monotonic_ns() + SLOW_LOOK_MS * NS_PER_MS);
                return None;
            }
        };
        let soft = source.soft_bytes(&reading);
        let near = reading.available < soft + soft / SHRINK_SHARE;
        source.room = near.then(|| reading.available.saturating_sub(soft));
        let trigger = source.machine.read(reading);
        if trigger.is_none() {
            self.no_victim = None;
            self.planned = false;
            let recent = |at_ns: &u64| monotonic_ns().saturating_sub(*at_ns) < WINDOW_NS;
            self.killed_ns = self.killed_ns.filter(recent);
        }
        let near = near || trigger.is_some();
        let much_shared = near && source.in_files_bytes >= soft / SHARED_SHARE;
        Some(SystemLook { near, much_shared, trigger })
    }

    /// Plans the kill that relieves the system.
    pub(super) fn plan(&mut self, trigger: &PressureTrigger, state: &mut SharedState) -> Decision {
        let floors = self.thresholds().map(|thresholds| thresholds.floors);
        let bombs = if floors == Some(Floors::Ignore) { Bombs::AtOnce } else { Bombs::AfterKills };
        let scope = Scope {
            need_bytes: Some(trigger.need_bytes),
            herds: Herds::OneFirst,
            bombs,
            floor_bytes: trigger.floor_bytes,
            cover_bytes: trigger.cover_bytes,
            ..Scope::default()
        };
        let choice = match choose(scope, state) {
            Ok(choice) => choice,
            Err(none) => {
                self.no_victim = Some(none);
                return Decision::NoVictim(none.into());
            }
        };
        self.no_victim = None;
        let Ok(pinned) = PinnedVictim::open(&choice.victim) else { return Decision::Retry };
        let grace = sigterm_grace_ms(trigger.pressure)
            .filter(|_| pinned.victim.handles_sigterm() && choice.sharers == 0);
        let reading = trigger.reading;
        Decision::Kill(KillPlan {
            purpose: Purpose::System,
            trigger: trigger_of(trigger.pressure),
            method: grace.map_or(Method::Kill, |grace_ms| Method::Terminate { grace_ms }),
            payer: state.charged(choice.victim.account),
            group: None,
            choice,
            pinned: Some(pinned),
            used_bytes: reading.total.saturating_sub(reading.available),
            hard_bytes: 0,
            state: trigger.to_string(),
            noticed_ns: Some(reading.at_ns),
        })
    }

    /// Whether a kill that is only observed is the first one since the system recovered.
    pub(super) fn is_first_plan(&mut self) -> bool {
        !std::mem::replace(&mut self.planned, true)
    }

    /// The record of a shortage in which no process can be killed, at most once per `REPORT_MS`.
    pub(super) fn no_victim_record(
        &mut self,
        trigger: &PressureTrigger,
        why: &Unarmed,
    ) -> Option<Why> {
        let now_ns = monotonic_ns();
        if now_ns < self.next_report_ns {
            return None;
        }
        self.next_report_ns = now_ns + REPORT_MS * NS_PER_MS;
        let PressureTrigger { pressure, reading, .. } = trigger;
        Some(Why {
            used_bytes: reading.total.saturating_sub(reading.available),
            state: trigger.to_string(),
            // Decisions about the system are recorded for root.
            ..no_kill_record(Uid::ROOT.into(), trigger_of(*pressure), why.to_string())
        })
    }

    /// The current degradation as a sentence.
    pub(super) fn degraded(&self) -> Option<String> {
        let why = self.no_victim.as_ref()?;
        Some(format!("the machine is short of memory, and no process is killed: {why}"))
    }

    /// Credits the memory of victims, bytes, whether killed for the system or for a limit.
    pub(super) fn credit(&mut self, bytes: u64) {
        if let Some(source) = &mut self.source {
            source.machine.credit(bytes, monotonic_ns());
        }
    }

    /// Extends the credit while victims are exiting.
    pub(super) fn extend_credit(&mut self) {
        if let Some(source) = &mut self.source {
            source.machine.extend_credit(monotonic_ns());
        }
    }

    /// Notes a kill for the system: stall times before the kill no longer count.
    pub(super) fn on_killed(&mut self) {
        self.killed_ns = Some(monotonic_ns());
        if let Some(source) = &mut self.source {
            source.machine.forget_stalls();
        }
    }

    /// Whether a process was killed for the system within a window, or for a shortage that lasts.
    pub(super) fn has_killed(&self) -> bool {
        self.killed_ns.is_some()
    }

    /// The state of the system as text, and the process that would be killed if it were short of
    /// memory now.
    pub(super) fn explain(
        &mut self,
        state: &mut SharedState,
    ) -> (String, Result<Choice, NoVictim>) {
        let (text, need_bytes) = match &mut self.source {
            None => ("the machine's memory is not watched".to_owned(), 0),
            Some(source) => {
                let text = match source.read() {
                    Ok(reading) => {
                        let soft = Bytes(source.soft_bytes(&reading));
                        let available = Bytes(reading.available);
                        format!("{available} available; a process is killed below {soft}")
                    }
                    Err(error) => error.to_string(),
                };
                let latest = source.machine.reading();
                (text, latest.map_or(0, |reading| source.soft_bytes(reading) / 2))
            }
        };
        let scope = Scope { need_bytes: Some(need_bytes), ..Scope::default() };
        (text, choose(scope, state))
    }
}

fn choose(scope: Scope<'_>, state: &mut SharedState) -> Result<Choice, NoVictim> {
    state.refresh_processes();
    // The size of a process is what a kill frees, regardless of what a limit counts.
    state.size_by(Count::default());
    state.snapshot.choose(&Scope { passed_over: state.kills.stuck(), ..scope })
}

fn trigger_of(pressure: Pressure) -> Trigger {
    match pressure {
        Pressure::Soft { .. } | Pressure::Hard => Trigger::Memory,
        Pressure::Exhausting { .. } => Trigger::Forecast,
        Pressure::Stalled { .. } => Trigger::Stall,
    }
}

/// Grace period between SIGTERM and SIGKILL, milliseconds: half of the time that is left.
fn sigterm_grace_ms(pressure: Pressure) -> Option<u64> {
    let Pressure::Soft { left_ms } = pressure else { return None };
    let half = left_ms.map_or(SIGTERM_GRACE_MS, |left| left / 2);
    (half >= MIN_SIGTERM_GRACE_MS).then_some(half.min(SIGTERM_GRACE_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_gets_sigterm_first_if_time_remains() {
        assert_eq!(sigterm_grace_ms(Pressure::Soft { left_ms: None }), Some(1000));
        assert_eq!(sigterm_grace_ms(Pressure::Soft { left_ms: Some(60_000) }), Some(1000));
        assert_eq!(sigterm_grace_ms(Pressure::Soft { left_ms: Some(600) }), Some(300));
        assert_eq!(sigterm_grace_ms(Pressure::Soft { left_ms: Some(300) }), None);
        assert_eq!(sigterm_grace_ms(Pressure::Hard), None);
        assert_eq!(sigterm_grace_ms(Pressure::Exhausting { in_ms: 50 }), None);
    }
}
