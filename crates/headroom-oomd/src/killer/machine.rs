//! When the machine itself runs short, whoever is to blame dies, limited or not.

use std::path::Path;

use control::oomd::{Explanation, Trigger};
use machine_memory::machine::{MachineReader, Zram};
use memory_ledger::machine::usable_swap;
use memory_ledger::{
    Alarm, Choice, Count, Machine, MachineReading, ProcessId, Raised, RateLimit, Sake, Scope,
    Thresholds, choose,
};
use reclaim::Victim;

use super::Killer;
use super::aftermath::Asked;
use super::arm::{identity, kept_by};
use super::strike::{Blow, candidate};
use crate::clock::{NS_PER_MS, monotonic_ns};

/// How often zram is asked how well it compresses, and how long all programs have waited while
/// memory is plenty, milliseconds.
const SLOW_LOOK_MS: u64 = 1_000;
/// How long a process that was asked to end has for it at the most, milliseconds: saving takes time,
/// and while memory is short all others wait.
const ASK_GRACE_MS: u64 = 1_000;
/// With less time than this until the hard level nobody is asked, milliseconds.
const ASK_LEAST_MS: u64 = 200;

/// Idle memory and unused leases are asked for when this share more than the soft level is available still:
/// then there is time.
const SHRINK_SHARE: u64 = 2;

/// The machine as seen by the killer.
pub(super) struct MachineWatch {
    reader: MachineReader,
    pub(super) machine: Machine,
    zram: Zram,
    slow_look_ns: u64,
    stalled_ns: Option<u64>,
    /// Victims that did not go.
    pub(super) stuck: Vec<ProcessId>,
    /// It has been said that nobody can be killed.
    helpless: bool,
    /// Bytes above the soft level, while that is near.
    pub(super) room: Option<u64>,
}

impl MachineWatch {
    fn read(&mut self) -> Result<MachineReading, machine_memory::ReadError> {
        let info = self.reader.meminfo()?;
        let at_ns = monotonic_ns();
        let available = info.available.unwrap_or(0);
        let total = available + info.anon.unwrap_or(0);
        let swap_total = info.swap_total.unwrap_or(0);
        // Who waits for memory while there is plenty waits for a limit of its own.
        let short = available < total / 4;
        if short || at_ns >= self.slow_look_ns {
            self.stalled_ns = self.reader.stalled().map(|time| time.as_nanos() as u64);
        }
        if at_ns >= self.slow_look_ns {
            self.slow_look_ns = at_ns + SLOW_LOOK_MS * NS_PER_MS;
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
        })
    }
}

impl Killer {
    /// Watches the machine as well. Returns what is lost where the kernel does not say how long
    /// programs wait.
    pub fn watch_machine(
        &mut self,
        thresholds: Thresholds,
    ) -> Result<Option<String>, machine_memory::ReadError> {
        self.watch_machine_of(Path::new("/proc"), Path::new("/sys"), thresholds)
    }

    /// The same, of the machine that is described in these folders.
    pub fn watch_machine_of(
        &mut self,
        proc: &Path,
        sys: &Path,
        thresholds: Thresholds,
    ) -> Result<Option<String>, machine_memory::ReadError> {
        let reader = MachineReader::open(proc, sys)?;
        self.kill_rate.set_limit(thresholds.kills);
        let blind = !reader.knows_stalls() && thresholds.stall_ms > 0;
        self.machine = Some(MachineWatch {
            reader,
            machine: Machine::new(thresholds),
            zram: Zram::default(),
            slow_look_ns: 0,
            stalled_ns: None,
            stuck: Vec::new(),
            helpless: false,
            room: None,
        });
        let lost = "no pressure stall information (CONFIG_PSI, psi=1): a machine that thrashes with \
                    memory left is not noticed";
        Ok(blind.then(|| lost.to_owned()))
    }

    pub(super) fn machine_deadline_ns(&self) -> Option<u64> {
        self.machine.as_ref().map(|watch| watch.machine.next_look_ns())
    }

    /// Looks if a look is due, and acts.
    pub(super) fn look_at_machine(&mut self) {
        let Some(watch) = &mut self.machine else { return };
        if monotonic_ns() < watch.machine.next_look_ns() {
            return;
        }
        let (raised, near) = match watch.read() {
            Ok(reading) => {
                let soft = watch.machine.thresholds().soft.of(reading.total);
                let near = reading.available < soft + soft / SHRINK_SHARE;
                watch.room = near.then(|| reading.available.saturating_sub(soft));
                (watch.machine.read(reading), near)
            }
            Err(error) => {
                tracing::warn!("{error}; trying again in a second");
                watch.machine.postpone(monotonic_ns() + SLOW_LOOK_MS * NS_PER_MS);
                return;
            }
        };
        if near || raised.is_some() {
            self.shrink();
            self.press_everybody();
        }
        let Some(watch) = &mut self.machine else { return };
        let Some(raised) = raised else {
            watch.helpless = false;
            return;
        };
        if matches!(raised.alarm, Alarm::Hard | Alarm::Exhausting { .. }) {
            self.ask_no_longer();
        }
        // One decision at a time: what a victim gives back has to be seen first.
        if self.dying.is_empty() && !self.should_wait(&raised) {
            self.strike_anywhere(&raised);
        }
    }

    /// So many have died that one more is no help, and the machine can still do without.
    fn should_wait(&mut self, raised: &Raised) -> bool {
        let spent = self.kill_rate.is_spent(Sake::Machine, monotonic_ns());
        if !spent {
            self.too_many.remove(&Sake::Machine);
        }
        if !spent || !raised.alarm.can_wait() {
            return false;
        }
        if self.too_many.insert(Sake::Machine) {
            let RateLimit { most, within_ms } = self.kill_rate.limit();
            tracing::warn!(
                "{raised}, and {most} victims within {within_ms} ms have not helped: only the hard level and \
                 the forecast kill until it is over; does something start them again and again?"
            );
        }
        true
    }

    fn strike_anywhere(&mut self, raised: &Raised) {
        let choice = match self.choose_anywhere(raised.need_bytes) {
            Ok(choice) => choice,
            Err(nobody) => {
                let Some(watch) = &mut self.machine else { return };
                if !std::mem::replace(&mut watch.helpless, true) {
                    tracing::warn!("{raised}, and nobody can be killed: {nobody}");
                }
                return;
            }
        };
        let (id, account) = (choice.victim.id, choice.victim.account);
        let Ok(victim) = Victim::open_as(identity(id, choice.victim.uid)) else { return };
        let kept = kept_by(id.pid);
        let time = time_to_ask(raised.alarm).filter(|_| victim.can_be_asked());
        let trigger = trigger_of(raised.alarm);
        self.told_before(&choice.victim, trigger, 0);
        let asked = time.map(|ms| Asked::until(monotonic_ns() + ms * NS_PER_MS));
        let done = if asked.is_some() { victim.ask_to_end() } else { victim.hold_and_kill() };
        if done.is_err() {
            return;
        }
        let signalled_ns = monotonic_ns();
        if self.ledger.account(account).is_some() && asked.is_none() {
            self.tell_the_notifier(account, id);
        }
        if let Some(watch) = &mut self.machine {
            watch.machine.forget_stalls();
        }
        let reading = raised.reading;
        self.follow(Blow {
            account,
            cgroup: None,
            trigger,
            state: raised.to_string(),
            killer: control::oomd::Killer::Daemon,
            choice,
            kept,
            victim: Some(victim),
            asked,
            used_bytes: reading.total.saturating_sub(reading.available),
            signalled_ns,
            decide_ns: Some(signalled_ns.saturating_sub(reading.at_ns)),
        });
    }

    fn choose_anywhere(&mut self, need_bytes: u64) -> Result<Choice, memory_ledger::NoVictim> {
        self.look_at_processes();
        // What comes back with a kill counts, whatever a limit says.
        self.size_by(Count::default());
        let passed_over = self.machine.as_ref().map_or(&[][..], |watch| &watch.stuck);
        let scope = Scope { account: None, passed_over, need_bytes: Some(need_bytes) };
        choose(&scope, &self.processes, &self.protected)
    }

    /// Who would die if the machine ran short now.
    pub(super) fn explain_machine(&mut self) -> Explanation {
        let state = match self.machine.as_mut().map(|watch| (watch.read(), watch)) {
            Some((Ok(reading), watch)) => {
                let soft = watch.machine.thresholds().soft.of(reading.total);
                let (available, soft) = (reading.available >> 20, soft >> 20);
                format!("{available} MiB are available; below {soft} MiB somebody would die")
            }
            Some((Err(error), _)) => error.to_string(),
            None => "the machine's memory is not watched".to_owned(),
        };
        let need = self.machine.as_ref().and_then(|watch| {
            let reading = watch.machine.reading()?;
            Some(watch.machine.thresholds().soft.of(reading.total) / 2)
        });
        let choice = self.choose_anywhere(need.unwrap_or(0));
        explanation(state, choice)
    }
}

/// A choice in the words of the control socket.
pub(super) fn explanation(
    state: String,
    choice: Result<Choice, memory_ledger::NoVictim>,
) -> Explanation {
    match choice {
        Ok(choice) => Explanation {
            state,
            victim: Some(candidate(&choice.victim)),
            others: choice.others.iter().map(candidate).collect(),
            runner_up: choice.runner_up.as_ref().map(candidate),
            considered: choice.considered,
            rule: choice.cause.to_string(),
        },
        Err(nobody) => Explanation {
            state,
            victim: None,
            others: Vec::new(),
            runner_up: None,
            considered: 0,
            rule: nobody.to_string(),
        },
    }
}

fn trigger_of(alarm: Alarm) -> Trigger {
    match alarm {
        Alarm::Soft { .. } | Alarm::Hard => Trigger::Memory,
        Alarm::Exhausting { .. } => Trigger::Forecast,
        Alarm::Stalled { .. } => Trigger::Stall,
    }
}

/// How long a victim may be asked instead of killed, milliseconds: half of the time that is left.
fn time_to_ask(alarm: Alarm) -> Option<u64> {
    let Alarm::Soft { left_ms } = alarm else { return None };
    let half = left_ms.map_or(ASK_GRACE_MS, |left| left / 2);
    (half >= ASK_LEAST_MS).then_some(half.min(ASK_GRACE_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_time_is_asked_first() {
        assert_eq!(time_to_ask(Alarm::Soft { left_ms: None }), Some(1000));
        assert_eq!(time_to_ask(Alarm::Soft { left_ms: Some(60_000) }), Some(1000));
        assert_eq!(time_to_ask(Alarm::Soft { left_ms: Some(600) }), Some(300));
        assert_eq!(time_to_ask(Alarm::Soft { left_ms: Some(300) }), None);
        assert_eq!(time_to_ask(Alarm::Hard), None);
        assert_eq!(time_to_ask(Alarm::Exhausting { in_ms: 50 }), None);
    }
}
