//! Counters of decisions and outcomes since the daemon was started.

use control::oomd::{Counters, KilledBy, Kills, Outcome, Trigger, Why};

/// All combinations of trigger and killer, so that each counter exists, at 0, before the first
/// kill.
const KINDS: [(Trigger, KilledBy); 9] = [
    (Trigger::Notifier, KilledBy::Kernel),
    (Trigger::Notifier, KilledBy::Daemon),
    (Trigger::Timer, KilledBy::Daemon),
    (Trigger::Request, KilledBy::Daemon),
    (Trigger::LimitSet, KilledBy::Daemon),
    (Trigger::SoftLimit, KilledBy::Daemon),
    (Trigger::Memory, KilledBy::Daemon),
    (Trigger::Forecast, KilledBy::Daemon),
    (Trigger::Stall, KilledBy::Daemon),
];

/// All counters at 0.
pub fn none() -> Counters {
    let kills = |(trigger, killer)| Kills { trigger, killer, count: 0 };
    Counters { kills: KINDS.map(kills).into(), ..Counters::default() }
}

/// Counts a decision.
pub fn decided(counters: &mut Counters, why: &Why) {
    if why.outcome == Outcome::Observed {
        return;
    }
    let Some(killer) = why.killer else {
        counters.without_victim += 1;
        return;
    };
    counters.processes += why.killed().count() as u64;
    let same = |kills: &&mut Kills| (kills.trigger, kills.killer) == (why.trigger, killer);
    match counters.kills.iter_mut().find(same) {
        Some(kills) => kills.count += 1,
        None => counters.kills.push(Kills { trigger: why.trigger, killer, count: 1 }),
    }
    if let Some(micros) = why.decide_micros {
        counters.decide.add(micros);
    }
}

/// Counts the outcome of a decision.
pub fn ended(counters: &mut Counters, outcome: &Outcome) {
    match outcome {
        Outcome::Reclaimed { bytes_back, micros, .. } => {
            counters.bytes_back = counters.bytes_back.saturating_add(*bytes_back);
            counters.reclaim.add(*micros);
        }
        Outcome::Stuck { .. } => counters.stuck += 1,
        Outcome::Dying | Outcome::Unknown | Outcome::Observed | Outcome::NoVictim { .. } => {}
    }
}
