//! A clock that is read in a few nanoseconds, with the resolution of the kernel's timer tick.

use headroom_linux::clock;
use rustix::time::ClockId;

/// Nanoseconds since the machine has started.
pub(crate) fn now_ns() -> u64 {
    clock::now_ns(ClockId::MonotonicCoarse)
}
