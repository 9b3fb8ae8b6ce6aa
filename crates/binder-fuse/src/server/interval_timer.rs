//! Timers that end one interval after the other while there is something to wait for. They are
//! armed once per interval, not once per call.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use binder_driver::{AwaitsTick, HeldReads};
use headroom_linux::clock::Timer;

use super::Server;

/// A timer of one interval.
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

/// A read holds a confirmation for one to two intervals: far longer than a server that is being
/// called waits for the next call, and short enough for what a client does after its reply.
pub(super) const HOLD_INTERVAL: Duration = Duration::from_micros(250);

/// A call is late after one to two of these: far longer than a short call takes, and shorter than
/// a slice of the kernel's scheduler.
pub(super) const TICK: Duration = Duration::from_micros(500);

impl Server {
    /// Starts an interval if reads hold confirmations. In a chain of calls, whose next request the
    /// event loop awaits, its polls of other events are the intervals.
    pub(super) fn limit_held_reads(&mut self) {
        let is_limited = self.direct_read.is_on() || self.host.rings.is_watching();
        if self.driver.held_reads() == HeldReads::Some && !is_limited {
            self.hold_timer.arm();
        }
    }

    /// The timer of held reads has expired.
    pub(super) fn end_hold_timer(&mut self) {
        self.hold_timer.ended();
        self.end_hold_interval();
    }

    /// An interval has passed.
    pub(super) fn end_hold_interval(&mut self) {
        let _ = self.driver.release_held_reads();
        self.serve_wakes();
    }

    /// Starts a tick if calls wait for its end.
    pub(super) fn await_tick(&mut self) {
        if self.driver.awaits_tick() == AwaitsTick::Yes {
            self.tick_timer.arm();
        }
    }

    /// The timer has expired: nice values of callers reach the servers of calls that have lasted a
    /// tick.
    pub(super) fn end_tick(&mut self) {
        self.tick_timer.ended();
        self.driver.end_tick(&mut self.host);
    }
}
