//! Locks between threads of the server, and what they exchange without locks. The loom tests
//! include this file a second time, with loom's atomic types.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::atomics::{AtomicBool, AtomicU32, AtomicU64, UnsafeCell};

/// Locks, also after a panic of another thread: the data behind these locks is consistent between
/// any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the helper's timer has to be armed for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelperTimer {
    /// It expires during the call, or the helper is about to check.
    Armed,
    /// The caller has to arm it.
    ToBeArmed,
}

/// Announces calls of one thread to a helper thread that a timer wakes: the call that the thread is
/// inside, if there is one.
pub(crate) struct Announcement {
    /// Tid on whose behalf the thread is inside a call; 0: not inside.
    inside: AtomicU32,
    /// Counter of calls; wraps around.
    calls: AtomicU32,
    /// The timer is armed.
    armed: AtomicBool,
}

impl Announcement {
    pub(crate) fn new() -> Self {
        let (inside, calls) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { inside, calls, armed: AtomicBool::new(false) }
    }

    /// Begins a call; returns its number. Only one thread makes calls.
    pub(crate) fn enter(&self, tid: u32) -> (u32, HelperTimer) {
        let call = self.calls.load(Relaxed).wrapping_add(1);
        self.calls.store(call, Relaxed);
        // Publishes the number of the call.
        self.inside.store(tid.max(1), Release);
        // Both threads exchange `armed`, and one of them is the second: either the helper's
        // exchange reads ours and acquires `inside`, or ours reads the helper's and the timer is
        // armed again.
        let was_armed = self.armed.swap(true, AcqRel);
        (call, if was_armed { HelperTimer::Armed } else { HelperTimer::ToBeArmed })
    }

    /// Ends the call.
    pub(crate) fn leave(&self) {
        self.inside.store(0, Release);
    }

    /// For the helper: the timer has expired. Whether there is a call.
    pub(crate) fn on_timer(&self) -> bool {
        self.armed.swap(false, AcqRel);
        self.tid() != 0
    }

    /// For the helper: on whose behalf there is a call; 0: there is none.
    pub(crate) fn tid(&self) -> u32 {
        self.inside.load(Acquire)
    }

    /// For the helper: the latest call, read after [`tid`](Self::tid).
    pub(crate) fn call(&self) -> u32 {
        self.calls.load(Relaxed)
    }
}

/// Holds a value that one thread leaves, for the one thread that takes it: one value at a time,
/// which has a number.
pub(crate) struct TransferSlot<T> {
    /// Number of the value; 0: there is none.
    number: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: `value` is accessed by the slot's thread while `number` is 0, and otherwise by the one
// thread that sets `number` to 0.
unsafe impl<T: Send> Sync for TransferSlot<T> {}

impl<T> TransferSlot<T> {
    pub(crate) fn new() -> Self {
        Self { number: AtomicU64::new(0), value: UnsafeCell::new(None) }
    }

    /// Only the slot's thread may call this, with a number that it has not used before.
    pub(crate) fn put(&self, number: u64, value: T) {
        // SAFETY: no other thread accesses the value before the store below.
        self.value.with_mut(|place| unsafe { *place = Some(value) });
        // Publishes the value to the thread that takes it.
        self.number.store(number, Release);
    }

    /// Number of the value; 0: there is none.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Acquire)
    }

    /// Takes the value with this number, if it is still there.
    pub(crate) fn take(&self, number: u64) -> Option<T> {
        // Acquires the value, and publishes that the place is free to the slot's thread, whose next
        // `take` fails or succeeds before it puts another value.
        self.number.compare_exchange(number, 0, AcqRel, Relaxed).ok()?;
        // SAFETY: this thread has set `number` to 0.
        self.value.with_mut(|place| unsafe { (*place).take() })
    }
}
