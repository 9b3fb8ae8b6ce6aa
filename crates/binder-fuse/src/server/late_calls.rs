//! Nice values of callers reach their servers when a call has lasted a tick.

use std::time::Duration;

use binder_driver::AwaitsTick;

use super::Server;

/// A call is late after one to two of these: far longer than a short call takes, and shorter than
/// a slice of the kernel's scheduler.
pub(super) const TICK: Duration = Duration::from_micros(500);

impl Server {
    /// Starts a tick if calls wait for its end.
    pub(super) fn await_tick(&mut self) {
        if self.driver.awaits_tick() == AwaitsTick::Yes {
            self.tick_timer.arm();
        }
    }

    /// The timer has expired.
    pub(super) fn end_tick(&mut self) {
        self.tick_timer.ended();
        self.driver.end_tick(&mut self.host);
    }
}
