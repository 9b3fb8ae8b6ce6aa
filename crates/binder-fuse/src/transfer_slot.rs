//! Holds a value that one thread leaves, for the one thread that takes it.

use std::sync::atomic::Ordering;

use super::atomics::{AtomicU64, UnsafeCell};

/// One value at a time, of one thread; it has a number.
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
        self.number.store(number, Ordering::Release);
    }

    /// Number of the value; 0: there is none.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Takes the value with this number, if it is still there.
    pub(crate) fn take(&self, number: u64) -> Option<T> {
        // Acquires the value, and publishes that the place is free to the slot's thread, whose next
        // `take` fails or succeeds before it puts another value.
        self.number.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // SAFETY: this thread has set `number` to 0.
        self.value.with_mut(|place| unsafe { (*place).take() })
    }
}
