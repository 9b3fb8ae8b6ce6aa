//! Kills for lack of system memory: thresholds that are always reached, and a list of processes
//! that holds only the victims.

use std::path::Path;
use std::time::Instant;

use memory_ledger::{Floors, Level, Thresholds};
use memory_watch::ProcessSample;

use super::Victim;
use super::fake_watch::FakeWatchControl;
use super::{
    POLL_INTERVAL, SelfTestError, TIMEOUT, last_kill, not_killed, sample_of, wait_for_decision,
};
use crate::oom::OomManager;

/// Above `PID_MAX_LIMIT`: such a pid cannot belong to a process.
const FIRST_UNUSED_PID: u32 = 1 << 22;
/// Added to two victims, these make a herd.
const HERD_EXTRA: u32 = 1;
/// Added to two victims, these make a fork bomb.
const FORK_BOMB_EXTRA: u32 = memory_ledger::herd::BOMB_BIRTHS as u32;

/// Always reached: all memory would have to be free.
const ALWAYS: Level = Level::percent(100);
/// Never reached.
const NEVER: Level = Level::Bytes(0);

/// One victim of SIGTERM, two of a herd, two of a fork bomb.
pub(super) struct SystemMemoryTest {
    samples: [ProcessSample; 5],
    victims: [Victim; 5],
}

impl SystemMemoryTest {
    pub(super) fn prepare(
        samples: &[ProcessSample],
        victims: [Victim; 5],
    ) -> Result<Self, SelfTestError> {
        let mut own = [ProcessSample::default(); 5];
        for (own, victim) in own.iter_mut().zip(&victims) {
            *own = sample_of(samples, victim)?;
        }
        // Of one group: after the kill of one process its family is killed as a herd.
        let group = own[0].tgid;
        own.iter_mut().for_each(|sample| sample.group = group);
        Ok(Self { samples: own, victims })
    }

    /// Runs the three kills. `before` is the manager's last decision.
    pub(super) fn run(
        &self,
        oom: &mut OomManager,
        control: &FakeWatchControl,
        before: Option<u64>,
    ) -> Result<(), SelfTestError> {
        let soft = Thresholds { hard: NEVER, swap_hard: NEVER, ..always_reached() };
        let [single, herd @ .., third, fourth] = self.samples;
        let first = kill(oom, control, soft, (&[single], 0), before)?;
        let second = kill(oom, control, always_reached(), (&herd, HERD_EXTRA), Some(first))?;
        kill(oom, control, always_reached(), (&[third, fourth], FORK_BOMB_EXTRA), Some(second))?;
        // A decision ends with its first victim; the others exit a moment later.
        let started = Instant::now();
        while let Some(left) = self.victims.iter().find(|victim| !victim.has_ended()) {
            if started.elapsed() >= TIMEOUT {
                return Err(not_killed(format!("pid {} was not killed", left.pid())));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

/// Lists the victims with `more` nonexistent members of their family and waits until they
/// are killed. Returns the decision's number.
fn kill(
    oom: &mut OomManager,
    control: &FakeWatchControl,
    thresholds: Thresholds,
    (victims, more): (&[ProcessSample], u32),
    before: Option<u64>,
) -> Result<u64, SelfTestError> {
    let nonexistent = |number| {
        let pid = FIRST_UNUSED_PID + number;
        ProcessSample { tgid: pid, anon_pages: 1, mm_id: 0, ..victims[0] }
    };
    control.list(victims.to_vec(), (0..more).map(nonexistent).collect());
    let started = Instant::now();
    // No victim is chosen while the last herd is exiting.
    while last(oom) == before && started.elapsed() < TIMEOUT {
        let monitored = oom.monitor_system(Path::new("/proc"), Path::new("/sys"), thresholds);
        monitored.map_err(|e| not_killed(format!("system memory cannot be monitored: {e}")))?;
        oom.dispatch();
        if last(oom) == before {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    // An empty list prevents a second decision.
    control.list(Vec::new(), Vec::new());
    wait_for_decision(oom, before, || ())
}

fn last(oom: &OomManager) -> Option<u64> {
    last_kill(oom).map(|why| why.id)
}

/// The hard thresholds are always reached.
fn always_reached() -> Thresholds {
    Thresholds {
        soft: ALWAYS,
        hard: ALWAYS,
        swap_soft: ALWAYS,
        swap_hard: ALWAYS,
        floors: Floors::Ignore,
        ..Thresholds::default()
    }
}

#[cfg(test)]
mod tests {
    use memory_watch::Watch;

    use super::super::{UID, oom_manager_with_fake_watch};
    use super::*;

    #[test]
    fn only_own_children_get_sigterm_or_are_killed_as_herd_and_fork_bomb() {
        let start = || Victim::start(UID).unwrap();
        let victims: [Victim; 5] = std::array::from_fn(|_| start());
        let bystander = start();
        let watch: Box<dyn Watch> = Box::new(memory_watch::ProcPoller::new().unwrap());
        let mut samples = Vec::new();
        watch.processes(&mut samples).unwrap();
        let reaper = reclaim::Reaper::start(1).unwrap();
        let (mut oom, control) = oom_manager_with_fake_watch(reaper).unwrap();
        let test = SystemMemoryTest::prepare(&samples, victims).unwrap();
        test.run(&mut oom, &control, None).unwrap();
        let mut records = oom.records().latest(10, None);
        records.retain(|why| why.victim.is_some());
        records.sort_unstable_by_key(|why| why.id);
        let [first, herd, bomb] = records.try_into().unwrap();
        assert!(first.state.contains("below the soft level"), "{first:?}");
        assert!(herd.rule.starts_with("herd: 3 processes") && herd.others.len() == 1, "{herd:?}");
        assert!(bomb.rule.starts_with("fork bomb: ") && bomb.others.len() == 1, "{bomb:?}");
        let ended: Vec<bool> = test.victims.iter().map(Victim::has_ended).collect();
        assert_eq!(ended, [true; 5]);
        assert!(!bystander.has_ended());
    }
}
