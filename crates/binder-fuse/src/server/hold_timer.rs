//! The timer that bounds how long reads wait with a held confirmation.
//!
//! It runs while reads hold any, instead of being armed and cancelled for each call. In a chain of
//! calls, whose next request the event loop awaits, its polls of other events are the intervals.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use binder_driver::HeldReads;
use headroom_linux::timer::Timer;

use super::Server;

/// A confirmation is held for one to two intervals: far longer than a server that is
/// being called waits for the next call, and short enough for what a client does after its reply.
const INTERVAL: Duration = Duration::from_micros(250);

/// See the module's documentation.
pub(super) struct HoldTimer {
    timer: Timer,
    is_armed: bool,
}

impl HoldTimer {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { timer: Timer::new()?, is_armed: false })
    }

    /// Signals the end of an interval to an edge-triggered epoll; it is never read.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    fn arm(&mut self) {
        if !std::mem::replace(&mut self.is_armed, true) {
            self.timer.expire_in(INTERVAL);
        }
    }
}

impl Server {
    /// Starts an interval if reads hold confirmations.
    pub(super) fn limit_held_reads(&mut self) {
        let is_limited = self.direct_read.is_on() || self.host.rings.is_watching();
        if self.driver.held_reads() == HeldReads::Some && !is_limited {
            self.hold_timer.arm();
        }
    }

    /// The timer has expired.
    pub(super) fn end_hold_timer(&mut self) {
        self.hold_timer.is_armed = false;
        self.end_hold_interval();
    }

    /// An interval has passed.
    pub(super) fn end_hold_interval(&mut self) {
        let _ = self.driver.release_held_reads();
        self.serve_wakes();
    }
}
