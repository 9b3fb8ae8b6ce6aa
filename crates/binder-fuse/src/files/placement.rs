//! Has us and the thread that we trace take turns on one CPU. Each of its stops is a wake-up of it
//! and one of us, and waking a CPU that sleeps takes longer than all else that is done.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

fn only(cpu: usize) -> Option<CpuSet> {
    (cpu < CpuSet::MAX_CPU).then(|| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    })
}

/// The calling thread stays where it is until this is dropped.
pub(super) fn stay() -> Option<Here> {
    let usual = sched_getaffinity(None).ok()?;
    sched_setaffinity(None, &only(sched_getcpu())?).ok()?;
    Some(Here(usual))
}

/// See [`stay`].
pub(super) struct Here(CpuSet);

impl Drop for Here {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Brings a thread that sleeps to where we are; where it might be before. `None`: it stays where it
/// is, being somebody's whom we may not move, or bound to other CPUs.
pub(super) fn bring(tid: u32) -> Option<CpuSet> {
    let thread = Pid::from_raw(tid as i32);
    let usual = sched_getaffinity(thread).ok()?;
    let here = sched_getcpu();
    if here >= CpuSet::MAX_CPU || !usual.is_set(here) {
        return None;
    }
    sched_setaffinity(thread, &only(here)?).ok()?;
    Some(usual)
}

/// Undoes [`bring`].
pub(super) fn release(tid: u32, usual: &CpuSet) {
    // Who has died needs none.
    let _ = sched_setaffinity(Pid::from_raw(tid as i32), usual);
}
