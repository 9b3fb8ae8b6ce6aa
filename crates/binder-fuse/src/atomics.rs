//! The atomic types of the code that the loom tests include a second time, with loom's types.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// `std::cell::UnsafeCell` with the interface of loom's.
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
