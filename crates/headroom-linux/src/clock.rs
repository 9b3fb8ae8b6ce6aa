//! Clocks of `clock_gettime(2)` as numbers.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// `CLOCK_MONOTONIC`, the same for all processes and BPF programs, nanoseconds.
pub fn monotonic_ns() -> u64 {
    now_ns(ClockId::Monotonic)
}

/// The value of a clock, nanoseconds.
pub fn now_ns(clock: ClockId) -> u64 {
    nanoseconds(clock_gettime(clock))
}

/// A time that is not negative, nanoseconds.
pub fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
