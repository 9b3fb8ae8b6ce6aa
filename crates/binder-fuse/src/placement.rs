//! Runs the waker and the woken thread on one CPU. Each wake-up of an idle CPU takes longer than
//! all other work of a call or a delivery.
//!
//! Only the affinity of a thread decides where it wakes up, so it is narrowed for the wake-up and
//! restored at once. Each change is recorded in memory that the [`guardian`](crate::guardian)
//! shares: it restores the affinity if this process is killed in between.

use std::cell::UnsafeCell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Maximum number of threads that are moved at the same time: by the event loop, and by each worker
/// that installs files. Further ones are not moved.
const SLOTS: usize = 64;
/// `tid` of a slot that is being filled.
const CLAIMED: u32 = u32::MAX;

/// A thread whose affinity is narrowed.
#[derive(Debug)]
struct Slot {
    /// 0: the slot is free.
    tid: AtomicU32,
    /// Written by the claimant before `tid`; read by it, and by the guardian after its exit.
    usual: UnsafeCell<CpuSet>,
    /// The CPU that the thread is narrowed to; like `usual`.
    cpu: UnsafeCell<usize>,
}

struct Slots([Slot; SLOTS]);

// SAFETY: the cells are accessed by the thread that has claimed the slot only.
unsafe impl Sync for Slot {}

static MOVED: OnceLock<&'static Slots> = OnceLock::new();

fn only(cpu: usize) -> Option<CpuSet> {
    (cpu < CpuSet::MAX_CPU).then(|| {
        let mut set = CpuSet::new();
        set.set(cpu);
        set
    })
}

/// Creates the memory for the records. No thread is moved before; the guardian must be forked
/// afterwards.
pub(crate) fn record_moves() -> io::Result<()> {
    if MOVED.get().is_none() {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice, which is never unmapped. All
        // zeros are free slots.
        let slots = unsafe {
            let at = mmap_anonymous(std::ptr::null_mut(), size_of::<Slots>(), access, flags)?;
            &*at.cast::<Slots>()
        };
        let _ = MOVED.set(slots);
    }
    Ok(())
}

/// For the guardian: restores the threads that a killed process has left narrowed.
pub(crate) fn restore_recorded() {
    for slot in MOVED.get().iter().flat_map(|slots| &slots.0) {
        let tid = slot.tid.load(Ordering::Acquire);
        if tid != 0 && tid != CLAIMED {
            slot.restore(tid);
        }
    }
}

impl Slot {
    /// Restores the affinity, unless another process or the thread itself has changed it meanwhile.
    fn restore(&self, tid: u32) {
        let thread = Pid::from_raw(tid as i32);
        // SAFETY: the caller has claimed the slot, or is the guardian of a dead claimant.
        let (usual, cpu) = unsafe { (&*self.usual.get(), *self.cpu.get()) };
        if sched_getaffinity(thread).ok() == only(cpu) {
            // A thread that has exited needs no affinity.
            let _ = sched_setaffinity(thread, usual);
        }
    }
}

/// The CPU of a thread that binds itself.
pub(crate) struct OwnCpu {
    usual: CpuSet,
    bound: Option<usize>,
}

impl OwnCpu {
    /// Of the calling thread, which is not bound yet.
    pub(crate) fn of_this_thread() -> Self {
        Self { usual: sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new()), bound: None }
    }

    /// Binds the thread to a CPU; `None`: the one that it runs on. A thread whose usual affinity
    /// excludes that CPU, or is that CPU only, stays as it is.
    pub(crate) fn bind(&mut self, cpu: Option<usize>) {
        let cpu = cpu.unwrap_or_else(sched_getcpu);
        if self.bound == Some(cpu) {
            return;
        }
        self.note_change();
        let set = only(cpu).filter(|_| self.usual.count() > 1 && self.usual.is_set(cpu));
        if set.is_some_and(|set| sched_setaffinity(None, &set).is_ok()) {
            self.bound = Some(cpu);
        }
    }

    /// Restores the usual affinity.
    pub(crate) fn release(&mut self) {
        self.note_change();
        if self.bound.take().is_some() {
            let _ = sched_setaffinity(None, &self.usual);
        }
    }

    /// An affinity that another process has set is the usual one.
    fn note_change(&mut self) {
        let Some(bound) = self.bound else { return };
        if let Ok(current) = sched_getaffinity(None)
            && only(bound) != Some(current)
        {
            (self.usual, self.bound) = (current, None);
        }
    }
}

/// Result of [`move_here`].
pub(crate) enum Move {
    /// The thread wakes up on this CPU.
    Moved(Moved),
    /// The thread's own affinity decides: it is bound to one CPU, or to others.
    Bound,
    /// It may not be moved, or has exited.
    Refused,
}

/// A thread that wakes up on this CPU. Its affinity is restored when this value is dropped.
#[derive(Debug)]
pub(crate) struct Moved {
    slot: &'static Slot,
    tid: u32,
}

impl Moved {
    /// For a thread that has exited: another one may have its number.
    pub(crate) fn forget(self) {
        self.slot.tid.store(0, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        self.slot.restore(self.tid);
        self.slot.tid.store(0, Ordering::Release);
    }
}

/// Makes a sleeping thread wake up on the current CPU.
pub(crate) fn move_here(tid: u32) -> Move {
    let thread = Pid::from_raw(tid as i32);
    let Ok(usual) = sched_getaffinity(thread) else { return Move::Refused };
    let cpu = sched_getcpu();
    let Some(here) = only(cpu).filter(|_| usual.count() > 1 && usual.is_set(cpu)) else {
        return Move::Bound;
    };
    let free = |slot: &&Slot| {
        slot.tid.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let Some(slot) = MOVED.get().and_then(|slots| slots.0.iter().find(free)) else {
        return Move::Refused;
    };
    // SAFETY: this thread has just claimed the slot.
    unsafe { (*slot.usual.get(), *slot.cpu.get()) = (usual, cpu) };
    slot.tid.store(tid, Ordering::Release);
    let moved = Moved { slot, tid };
    // Dropping `moved` after a failure changes nothing, because the affinities differ.
    if sched_setaffinity(thread, &here).is_ok() { Move::Moved(moved) } else { Move::Refused }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_tid() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    fn affinity() -> CpuSet {
        sched_getaffinity(None).unwrap()
    }

    /// Runs the test in a thread of its own, because it changes the affinity. False: there is one
    /// CPU only.
    fn in_a_thread(test: impl FnOnce(CpuSet) + Send) -> bool {
        record_moves().unwrap();
        let usual = affinity();
        if usual.count() > 1 {
            std::thread::scope(|scope| scope.spawn(|| test(usual)).join().unwrap());
        }
        usual.count() > 1
    }

    #[test]
    fn a_moved_thread_gets_its_affinity_back() {
        let several_cpus = in_a_thread(|usual| {
            let moved = move_here(own_tid());
            assert!(matches!(moved, Move::Moved(_)));
            assert_eq!(affinity().count(), 1);
            drop(moved);
            assert_eq!(affinity(), usual);
        });
        if !several_cpus {
            test_support::skip("needs two CPUs");
        }
    }

    #[test]
    fn a_thread_that_changes_its_affinity_meanwhile_keeps_it() {
        let several_cpus = in_a_thread(|usual| {
            let other = (0..CpuSet::MAX_CPU).filter(|&cpu| usual.is_set(cpu));
            let moved = move_here(own_tid());
            let own = other.filter_map(only).find(|set| *set != affinity()).unwrap();
            sched_setaffinity(None, &own).unwrap();
            drop(moved);
            assert_eq!(affinity(), own);
            assert!(matches!(move_here(own_tid()), Move::Bound), "it has an affinity of its own");
        });
        if !several_cpus {
            test_support::skip("needs two CPUs");
        }
    }

    #[test]
    fn a_thread_binds_itself_to_one_cpu_after_another() {
        let several_cpus = in_a_thread(|usual| {
            let mut own = OwnCpu::of_this_thread();
            for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| usual.is_set(cpu)) {
                own.bind(Some(cpu));
                assert_eq!((Some(affinity()), sched_getcpu()), (only(cpu), cpu));
            }
            own.release();
            assert_eq!(affinity(), usual);
            own.bind(None);
            assert_eq!(affinity().count(), 1);
            sched_setaffinity(None, &usual).unwrap();
            own.release();
            assert_eq!(affinity(), usual, "set by another process");
        });
        if !several_cpus {
            test_support::skip("needs two CPUs");
        }
    }

    #[test]
    fn the_guardian_restores_what_is_recorded() {
        let several_cpus = in_a_thread(|usual| {
            let moved = move_here(own_tid());
            restore_recorded();
            assert_eq!(affinity(), usual);
            drop(moved);
            assert_eq!(affinity(), usual);
        });
        if !several_cpus {
            test_support::skip("needs two CPUs");
        }
    }
}
