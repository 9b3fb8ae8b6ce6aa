//! Blocks in the read of the next request, instead of in epoll and then reading, while calls form a
//! chain: one system call less per request.
//!
//! Only a request or a signal ends such a read. So a timer interrupts it periodically, which ends
//! the blocking reads until the next request. While they last, other events are polled after each
//! [`MAX_READS`] requests.

use std::time::Duration;

use super::Server;
use crate::channel::{Blocking, Incoming};
use crate::error::Error;
use crate::interrupt_timer::LoopTimer;

/// Interval of the interruptions: bounds how long other events wait if no request arrives. Each one
/// costs 5 to 10 us of the chain's CPU time.
const INTERVAL: Duration = Duration::from_micros(500);
/// Requests after which other events are polled: some hundred microseconds of calls.
const MAX_READS: u32 = 16;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct DirectRead {
    timer: LoopTimer,
    state: State,
    /// A timer could not be created.
    is_unavailable: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The connection is non-blocking.
    #[default]
    Off,
    /// The connection is blocking.
    On {
        /// Since other events were polled last.
        reads: u32,
    },
}

impl DirectRead {
    pub(super) fn is_on(&self) -> bool {
        self.state != State::Off
    }

    /// The event loop has polled other events.
    pub(super) fn note_poll(&mut self) {
        if let State::On { reads } = &mut self.state {
            *reads = 0;
        }
    }

    /// The next request is read by a blocking read. False: other events are polled first.
    pub(super) fn reads_next(&self) -> bool {
        matches!(self.state, State::On { reads: ..MAX_READS })
    }

    fn note_request(&mut self) {
        if let State::On { reads } = &mut self.state {
            *reads += 1;
        }
    }
}

impl Server {
    /// Makes the connection non-blocking unless calls form a chain and there is no other work.
    pub(super) fn limit_direct_reads(&mut self) {
        let has_work = !self.queue.is_empty() || self.is_reclaiming();
        let has_rings = self.host.rings.is_watching();
        if !self.chain.is_chain() || has_work || has_rings || self.fd_deliveries.awaits_outcome() {
            self.end_direct_reads();
        }
    }

    /// Makes the connection blocking if calls form a chain. Called after a request was served.
    pub(super) fn begin_direct_reads(&mut self) {
        let has_other = !self.externals.is_empty() || self.host.rings.is_watching();
        let may_begin = !self.direct_read.is_unavailable && !has_other;
        if !may_begin || !self.chain.is_chain() || self.fd_deliveries.awaits_outcome() {
            return;
        }
        let DirectRead { timer, is_unavailable, .. } = &mut self.direct_read;
        *is_unavailable = timer.set_interval(INTERVAL).is_err()
            || self.channel.set_blocking(Blocking::Yes).is_err();
        if *is_unavailable {
            return;
        }
        self.direct_read.state = State::On { reads: 0 };
        // If the page server begins after this check, it makes the connection non-blocking.
        if self.pages.is_reading() {
            self.end_direct_reads();
        }
    }

    pub(super) fn end_direct_reads(&mut self) {
        if !self.direct_read.is_on() {
            return;
        }
        self.direct_read.state = State::Off;
        // Cannot fail: this thread has its timer.
        let _ = self.direct_read.timer.set_interval(Duration::ZERO);
        // Cannot fail: the descriptor is open.
        let _ = self.channel.set_blocking(Blocking::No);
    }

    /// Waits for one request and serves it.
    pub(super) fn read_directly(&mut self) -> Result<(), Error> {
        let Some(mut buffer) = self.buffer.take() else { return Ok(()) };
        let read = self.channel.read(&mut buffer);
        match read {
            Ok(Incoming::Request(len)) => {
                self.direct_read.note_request();
                self.serve(buffer.bytes(len));
            }
            // The timer has interrupted it, or the page server has made the connection
            // non-blocking.
            Ok(Incoming::Nothing) => {
                self.end_direct_reads();
                self.end_hold_interval();
            }
            Ok(Incoming::Closed) => self.closed = true,
            Err(_) => {}
        }
        self.buffer = Some(buffer);
        read.map(drop).map_err(Error::io("cannot read requests"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_polled_after_some_requests() {
        let state = State::On { reads: 0 };
        let mut direct = DirectRead { state, ..DirectRead::default() };
        for _ in 0..MAX_READS {
            assert!(direct.reads_next());
            direct.note_request();
        }
        assert!(!direct.reads_next());
        direct.note_poll();
        assert!(direct.reads_next());
    }
}
