//! Runs a worker and the thread that it traces on one CPU. Each stop of the thread wakes both once,
//! and waking an idle CPU takes longer than all other work of a delivery.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

fn only(cpu: usize) -> Option<CpuSet> {
    (cpu < CpuSet::MAX_CPU).then(|| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    })
}

/// Pins the calling thread to its current CPU until the guard is dropped.
pub(super) fn pin_to_this_cpu() -> Option<Pinned> {
    let usual = sched_getaffinity(None).ok()?;
    sched_setaffinity(None, &only(sched_getcpu())?).ok()?;
    Some(Pinned(usual))
}

/// Restores the affinity from before [`pin_to_this_cpu`].
pub(super) struct Pinned(CpuSet);

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Moves a sleeping thread to the current CPU; returns its affinity from before. `None`: it may not
/// be moved, or is bound to other CPUs.
pub(super) fn move_here(tid: u32) -> Option<CpuSet> {
    let thread = Pid::from_raw(tid as i32);
    let usual = sched_getaffinity(thread).ok()?;
    let here = sched_getcpu();
    if here >= CpuSet::MAX_CPU || !usual.is_set(here) {
        return None;
    }
    sched_setaffinity(thread, &only(here)?).ok()?;
    Some(usual)
}

/// Undoes [`move_here`].
pub(super) fn restore(tid: u32, usual: &CpuSet) {
    // A thread that has exited needs no affinity.
    let _ = sched_setaffinity(Pid::from_raw(tid as i32), usual);
}
