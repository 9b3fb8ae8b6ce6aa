//! Clocks of `clock_gettime(2)` as numbers, and a timer whose expiry an epoll set can wait for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// `CLOCK_MONOTONIC`, the same for all processes and BPF programs, nanoseconds.
pub fn monotonic_ns() -> u64 {
    now_ns(ClockId::Monotonic)
}

/// The value of a clock, nanoseconds.
pub fn now_ns(clock: ClockId) -> u64 {
    nanoseconds(clock_gettime(clock))
}

/// Microseconds since 1970, by the wall clock.
pub fn epoch_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A time that is not negative, nanoseconds.
pub fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// The kernel takes it for the latest time that it can represent.
const NEVER: Timespec = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };

/// Its descriptor is readable from an expiry until the timer is set again or the expiry is
/// [taken](Self::take_expiry).
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Creates a timer that is not armed.
    pub fn new() -> io::Result<Self> {
        Self::with_flags(TimerfdFlags::NONBLOCK)
    }

    /// Like [`new`](Self::new), but [`take_expiry`](Self::take_expiry) waits for an expiry.
    pub fn blocking() -> io::Result<Self> {
        Self::with_flags(TimerfdFlags::empty())
    }

    fn with_flags(flags: TimerfdFlags) -> io::Result<Self> {
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags | TimerfdFlags::CLOEXEC)?))
    }

    /// Expires once, when this time has passed; at once if it is zero.
    pub fn expire_in(&self, after: Duration) {
        self.set(ZERO, nonzero(after));
    }

    /// Expires whenever this interval, which is not zero, has passed.
    pub fn expire_every(&self, interval: Duration) {
        let interval = nonzero(interval);
        self.set(interval, interval);
    }

    /// Does not expire any more.
    pub fn disarm(&self) {
        self.set(ZERO, ZERO);
    }

    /// Makes the descriptor unreadable; returns whether the timer has expired since it was set or
    /// this was called last. A blocking timer returns false only if a signal ends the wait.
    pub fn take_expiry(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    fn set(&self, it_interval: Timespec, it_value: Timespec) {
        let spec = Itimerspec { it_interval, it_value };
        // Cannot fail: the descriptor is a timer and the values are in range.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &spec);
    }
}

/// A time of zero would disarm the timer.
fn nonzero(time: Duration) -> Timespec {
    Timespec::try_from(time.max(Duration::from_nanos(1))).unwrap_or(NEVER)
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn wait(timer: &Timer) {
        poll(&mut [PollFd::new(timer, PollFlags::IN)], None).unwrap();
    }

    #[test]
    fn a_timer_expires_once_and_not_after_it_was_disarmed() {
        let timer = Timer::new().unwrap();
        assert!(!timer.take_expiry());
        timer.expire_in(Duration::ZERO);
        wait(&timer);
        assert!(timer.take_expiry() && !timer.take_expiry());
        timer.expire_in(Duration::ZERO);
        wait(&timer);
        timer.disarm();
        assert!(!timer.take_expiry());
        timer.expire_in(Duration::MAX);
        assert!(!timer.take_expiry());
    }

    #[test]
    fn a_blocking_timer_waits_for_its_expiry() {
        let timer = Timer::blocking().unwrap();
        let (begun, after) = (std::time::Instant::now(), Duration::from_millis(2));
        timer.expire_in(after);
        assert!(timer.take_expiry() && begun.elapsed() >= after);
    }

    #[test]
    fn an_interval_expires_again() {
        let timer = Timer::new().unwrap();
        timer.expire_every(Duration::from_micros(1));
        for _ in 0..3 {
            wait(&timer);
            assert!(timer.take_expiry());
        }
    }
}
