//! The timer that bounds how long reads wait with a held confirmation.
//!
//! It runs while reads hold any, instead of being armed and cancelled for each call. In a chain of
//! calls, whose next request the event loop awaits, its polls of other events are the intervals.

use std::time::Duration;

use binder_driver::HeldReads;

use super::Server;

/// A confirmation is held for one to two intervals: far longer than a server that is
/// being called waits for the next call, and short enough for what a client does after its reply.
pub(super) const INTERVAL: Duration = Duration::from_micros(250);

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
        self.hold_timer.ended();
        self.end_hold_interval();
    }

    /// An interval has passed.
    pub(super) fn end_hold_interval(&mut self) {
        let _ = self.driver.release_held_reads();
        self.serve_wakes();
    }
}
