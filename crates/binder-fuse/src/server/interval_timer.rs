//! A timer that ends one interval after the other while there is something to wait for. It is armed
//! once per interval, not once per call.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use headroom_linux::timer::Timer;

/// See the module's documentation.
pub(super) struct IntervalTimer {
    timer: Timer,
    interval: Duration,
    is_armed: bool,
}

impl IntervalTimer {
    pub(super) fn new(interval: Duration) -> io::Result<Self> {
        Ok(Self { timer: Timer::new()?, interval, is_armed: false })
    }

    /// Signals the end of an interval to an edge-triggered epoll; it is never read.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Starts an interval unless one has begun.
    pub(super) fn arm(&mut self) {
        if !std::mem::replace(&mut self.is_armed, true) {
            self.timer.expire_in(self.interval);
        }
    }

    /// The interval has ended.
    pub(super) fn ended(&mut self) {
        self.is_armed = false;
    }
}
