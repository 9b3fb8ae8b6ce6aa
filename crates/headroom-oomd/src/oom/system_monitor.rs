//! Detects that the system as a whole runs short of memory. Then any process can be the victim,
//! whether its account has a limit or not.

use std::path::Path;

use control::oomd::{Trigger, Why};
use machine_memory::machine::{MachineReader, Zram};
use memory_ledger::machine::usable_swap;
use memory_ledger::process::WINDOW_NS;
use memory_ledger::{
    Bombs, Choice, Count, Floors, Herds, Machine, MachineReading, NoVictim, Pressure,
    PressureTrigger, Scope, Thresholds, Uid,
};

use super::kill_plan::{Decision, KillPlan, Method, PinnedVictim, Purpose, Unarmed};
use super::kill_record::no_kill_record;
use super::shared_state::SharedState;
use crate::clock::{NS_PER_MS, monotonic_ns};

/// How often zram's compression ratio is read, and the time that all programs have waited while
/// memory is plenty, milliseconds.
const SLOW_LOOK_MS: u64 = 1_000;
/// How long a process that was asked to end has for it at the most, milliseconds: saving takes
/// time, and while memory is short all others wait.
const ASK_GRACE_MS: u64 = 1_000;
/// With less time than this until the hard level no process is asked, milliseconds.
const MIN_ASK_GRACE_MS: u64 = 200;
/// Idle memory and unused leases are requested when this share more than the soft level is
/// available still: then there is time.
const SHRINK_SHARE: u64 = 2;
/// How often it is recorded that no process can be killed, milliseconds.
const REPORT_MS: u64 = 60_000;

/// The detector of a system that runs short of memory.
#[derive(Default)]
pub(super) struct SystemMonitor {
    /// `None`: the system is not monitored.
    source: Option<Source>,
    /// Why no process is killed though the system is short of memory.
    no_victim: Option<NoVictim>,
    /// When that may be recorded again, nanoseconds.
    next_report_ns: u64,
    /// A kill for the present shortage was planned and not carried out.
    planned: bool,
    /// When a process was killed for the system the last time, nanoseconds.
    killed_ns: Option<u64>,
}

struct Source {
    reader: MachineReader,
    machine: Machine,
    zram: Zram,
    next_slow_look_ns: u64,
    stalled_ns: Option<u64>,
    reclaims: Option<u64>,
    /// Bytes above the soft level, while that is near.
    room: Option<u64>,
}

/// A look at the system.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemLook {
    /// The soft level is near, or passed.
    pub(super) near: bool,
    /// `None`: the system is not short of memory.
    pub(super) trigger: Option<PressureTrigger>,
}

impl Source {
    fn read(&mut self) -> Result<MachineReading, machine_memory::ReadError> {
        let info = self.reader.meminfo()?;
        let at_ns = monotonic_ns();
        let available = info.available.unwrap_or(0);
        let total = available + info.anon.unwrap_or(0);
        let swap_total = info.swap_total.unwrap_or(0);
        // A program that waits for memory while there is plenty waits for a limit of its own.
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
    /// Monitors the system that is described in these folders. Returns what is lost where the
    /// kernel does not report how long programs wait.
    pub(super) fn start(
        &mut self,
        proc: &Path,
        sys: &Path,
        thresholds: Thresholds,
    ) -> Result<Option<String>, machine_memory::ReadError> {
        let reader = MachineReader::open(proc, sys)?;
        let blind = !reader.knows_stalls() && thresholds.stall_ms > 0;
        let source = Source {
            reader,
            machine: Machine::new(thresholds),
            zram: Zram::default(),
            next_slow_look_ns: 0,
            stalled_ns: None,
            reclaims: None,
            room: None,
        };
        (self.source, self.no_victim) = (Some(source), None);
        let lost = "no pressure stall information (CONFIG_PSI, psi=1): a machine that thrashes \
                    with memory left is not noticed";
        Ok(blind.then(|| lost.to_owned()))
    }

    /// The system is not monitored any more.
    pub(super) fn stop(&mut self) {
        *self = Self::default();
    }

    /// The levels in force; `None`: the system is not monitored.
    pub(super) fn thresholds(&self) -> Option<&Thresholds> {
        self.source.as_ref().map(|source| source.machine.thresholds())
    }

    /// Other levels from now on; what was read stays known.
    pub(super) fn set_thresholds(&mut self, thresholds: Thresholds) {
        if let Some(source) = &mut self.source {
            source.machine.set_thresholds(thresholds);
        }
    }

    /// When a look is due, nanoseconds.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.source.as_ref().map(|source| source.machine.next_look_ns())
    }

    /// What can still be leased before the system reaches its soft level, bytes, as of the last
    /// look. `None`: that level is far, or the system not monitored.
    pub(super) fn room(&self) -> Option<u64> {
        self.source.as_ref().and_then(|source| source.room)
    }

    /// Looks at the system if a look is due.
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
        }
        Some(SystemLook { near: near || trigger.is_some(), trigger })
    }

    /// The kill that relieves the system.
    pub(super) fn plan(&mut self, trigger: &PressureTrigger, state: &mut SharedState) -> Decision {
        let recent = |at_ns: u64| monotonic_ns().saturating_sub(at_ns) < WINDOW_NS;
        let herds =
            if self.killed_ns.is_some_and(recent) { Herds::Together } else { Herds::OneFirst };
        let floors = self.thresholds().map(|thresholds| thresholds.floors);
        let bombs = if floors == Some(Floors::Ignore) { Bombs::AtOnce } else { Bombs::AfterKills };
        let scope = Scope {
            need_bytes: Some(trigger.need_bytes),
            herds,
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
        let grace = ask_grace_ms(trigger.pressure)
            .filter(|_| pinned.victim.can_be_asked() && choice.sharers == 0);
        let reading = trigger.reading;
        Decision::Kill(KillPlan {
            purpose: Purpose::System,
            trigger: trigger_of(trigger.pressure),
            method: grace.map_or(Method::Kill, |grace_ms| Method::Ask { grace_ms }),
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

    /// Whether a kill that is not carried out is the first one since the system had recovered.
    pub(super) fn is_first_plan(&mut self) -> bool {
        !std::mem::replace(&mut self.planned, true)
    }

    /// The record of a shortage in which no process can be killed, once in a while.
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
            // Of the machine, so for root.
            ..no_kill_record(Uid::ROOT.into(), trigger_of(*pressure), why.to_string())
        })
    }

    /// What the daemon cannot do at present.
    pub(super) fn degraded(&self) -> Option<String> {
        let why = self.no_victim.as_ref()?;
        Some(format!("the machine is short of memory, and no process is killed: {why}"))
    }

    /// Victims with so much memory were killed, for the system or a limit.
    pub(super) fn credit(&mut self, bytes: u64) {
        if let Some(source) = &mut self.source {
            source.machine.credit(bytes, monotonic_ns());
        }
    }

    /// Victims are on their way out.
    pub(super) fn extend_credit(&mut self) {
        if let Some(source) = &mut self.source {
            source.machine.extend_credit(monotonic_ns());
        }
    }

    /// A process was killed for the system: a stall has had its victim.
    pub(super) fn on_killed(&mut self) {
        self.killed_ns = Some(monotonic_ns());
        if let Some(source) = &mut self.source {
            source.machine.forget_stalls();
        }
    }

    /// The state of the system as text, and the victim if it ran short now.
    pub(super) fn explain(
        &mut self,
        state: &mut SharedState,
    ) -> (String, Result<Choice, NoVictim>) {
        let (text, need_bytes) = match &mut self.source {
            None => ("the machine's memory is not watched".to_owned(), 0),
            Some(source) => {
                let text = match source.read() {
                    Ok(reading) => {
                        let soft = source.soft_bytes(&reading) >> 20;
                        let available = reading.available >> 20;
                        format!(
                            "{available} MiB are available; below {soft} MiB somebody would die"
                        )
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
    // What comes back with a kill counts, whatever a limit counts.
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

/// How long a victim may be asked instead of killed, milliseconds: half of the time that is left.
fn ask_grace_ms(pressure: Pressure) -> Option<u64> {
    let Pressure::Soft { left_ms } = pressure else { return None };
    let half = left_ms.map_or(ASK_GRACE_MS, |left| left / 2);
    (half >= MIN_ASK_GRACE_MS).then_some(half.min(ASK_GRACE_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_is_asked_first_where_there_is_time() {
        assert_eq!(ask_grace_ms(Pressure::Soft { left_ms: None }), Some(1000));
        assert_eq!(ask_grace_ms(Pressure::Soft { left_ms: Some(60_000) }), Some(1000));
        assert_eq!(ask_grace_ms(Pressure::Soft { left_ms: Some(600) }), Some(300));
        assert_eq!(ask_grace_ms(Pressure::Soft { left_ms: Some(300) }), None);
        assert_eq!(ask_grace_ms(Pressure::Hard), None);
        assert_eq!(ask_grace_ms(Pressure::Exhausting { in_ms: 50 }), None);
    }
}
