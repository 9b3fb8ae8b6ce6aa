//! The system is said to be short of memory, and the manager finds no process but the victims.

use std::path::Path;
use std::time::Instant;

use memory_ledger::{Floors, Level, Thresholds};
use memory_watch::ProcessSample;

use super::practice::{PATIENCE, PAUSE, RehearsalError, alive, sample_of, wait_for_decision};
use super::victim::Victim;
use super::watch::Teller;
use crate::oom::OomManager;

/// Pids are smaller (`PID_MAX_LIMIT`): nobody is killed in place of one who does not exist.
const NOBODYS_PID: u32 = 1 << 22;
/// As many are a herd with two others ...
const FEW: u32 = 1;
/// ... and so many a fork bomb.
const MANY: u32 = memory_ledger::herd::BOMB_BIRTHS as u32;

/// All of memory and swap would have to be free.
const EVERYTHING: Level = Level::percent(100);
/// None of them would.
const NOTHING: Level = Level::Bytes(0);

/// One who is asked, two of a herd, two of a fork bomb.
pub(super) struct OfTheMachine {
    samples: [ProcessSample; 5],
    victims: [Victim; 5],
}

impl OfTheMachine {
    pub(super) fn prepare(
        samples: &[ProcessSample],
        victims: [Victim; 5],
    ) -> Result<Self, RehearsalError> {
        let mut own = [ProcessSample::default(); 5];
        for (own, victim) in own.iter_mut().zip(&victims) {
            *own = sample_of(samples, victim)?;
        }
        Ok(Self { samples: own, victims })
    }

    /// `before` is the manager's last decision.
    pub(super) fn run(
        &self,
        oom: &mut OomManager,
        told: &Teller,
        before: Option<u64>,
    ) -> Result<(), RehearsalError> {
        let soft = Thresholds { hard: NOTHING, swap_hard: NOTHING, ..raised() };
        let [asked, herd @ .., third, fourth] = self.samples;
        let first = kill(oom, told, soft, (&[asked], 0), before)?;
        let second = kill(oom, told, raised(), (&herd, FEW), Some(first))?;
        kill(oom, told, raised(), (&[third, fourth], MANY), Some(second))?;
        // The decisions are about the first of each; the others died a moment later.
        let begun = Instant::now();
        while let Some(left) = self.victims.iter().find(|victim| !victim.has_ended()) {
            if begun.elapsed() >= PATIENCE {
                return Err(alive(format!("pid {} was not killed", left.pid())));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Has these die, who look like a family with so many more that do not exist. Returns the
/// decision's number.
fn kill(
    oom: &mut OomManager,
    told: &Teller,
    thresholds: Thresholds,
    (victims, more): (&[ProcessSample], u32),
    before: Option<u64>,
) -> Result<u64, RehearsalError> {
    let group = victims[0].tgid;
    let of_the_group = |victim: &ProcessSample| ProcessSample { group, ..*victim };
    let nobody = |number| {
        let pid = NOBODYS_PID + number;
        ProcessSample { tgid: pid, group, anon_pages: 1, mm_id: 0, ..victims[0] }
    };
    let victims = victims.iter().map(of_the_group).collect();
    told.show(victims, (0..more).map(nobody).collect());
    let begun = Instant::now();
    // While the others of the last herd are dying nobody else is chosen.
    while last(oom) == before && begun.elapsed() < PATIENCE {
        let watched = oom.monitor_system(Path::new("/proc"), Path::new("/sys"), thresholds);
        watched.map_err(|e| alive(format!("the machine cannot be watched: {e}")))?;
        oom.dispatch();
        if last(oom) == before {
            std::thread::sleep(PAUSE);
        }
    }
    // One decision is enough.
    told.show(Vec::new(), Vec::new());
    wait_for_decision(oom, before, || ())
}

fn last(oom: &OomManager) -> Option<u64> {
    oom.records().latest(1, None).first().map(|why| why.id)
}

/// The hard level is always reached.
fn raised() -> Thresholds {
    Thresholds {
        soft: EVERYTHING,
        hard: EVERYTHING,
        swap_soft: EVERYTHING,
        swap_hard: EVERYTHING,
        floors: Floors::Ignore,
        ..Thresholds::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::practice;
    use super::*;
    use crate::watching::{self, Wanted};

    #[test]
    fn one_is_asked_and_a_herd_and_a_fork_bomb_are_killed_of_our_own_children_alone() {
        let start = || Victim::start(practice::UID).unwrap();
        let victims: [Victim; 5] = std::array::from_fn(|_| start());
        let bystander = start();
        let watch = watching::select(Wanted::Proc, None).unwrap().watch;
        let mut samples = Vec::new();
        watch.processes(&mut samples).unwrap();
        let reaper = reclaim::Reaper::start(1).unwrap();
        let (mut oom, told) = practice::practising(reaper).unwrap();
        let practice = OfTheMachine::prepare(&samples, victims).unwrap();
        practice.run(&mut oom, &told, None).unwrap();
        let mut records = oom.records().latest(10, None);
        records.sort_unstable_by_key(|why| why.id);
        let [first, herd, bomb] = records.try_into().unwrap();
        assert!(first.state.contains("below the soft level"), "{first:?}");
        assert!(herd.rule.starts_with("herd: 3 processes") && herd.others.len() == 1, "{herd:?}");
        assert!(bomb.rule.starts_with("fork bomb: ") && bomb.others.len() == 1, "{bomb:?}");
        let ended: Vec<bool> = practice.victims.iter().map(Victim::has_ended).collect();
        assert_eq!(ended, [true; 5]);
        assert!(!bystander.has_ended());
    }
}
