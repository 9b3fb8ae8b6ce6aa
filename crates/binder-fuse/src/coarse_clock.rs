//! A clock that is read in a few nanoseconds, with the resolution of the kernel's timer tick.

use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

/// Nanoseconds since the machine has started.
pub(crate) fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::MonotonicCoarse))
}

/// Resolution of the clock, nanoseconds.
pub(crate) fn tick_ns() -> u64 {
    nanoseconds(clock_getres(ClockId::MonotonicCoarse))
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
