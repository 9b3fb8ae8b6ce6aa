//! Announces calls of one thread to a helper thread that a timer wakes.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::atomics::{AtomicBool, AtomicU32};

/// Whether the helper's timer has to be armed for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelperTimer {
    /// It expires during the call, or the helper is about to check.
    Armed,
    /// The caller has to arm it.
    ToBeArmed,
}

/// The call that a thread is inside, if there is one.
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
