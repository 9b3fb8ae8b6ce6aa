//! Whether the calls that are in flight form one chain, in which each thread waits for the next.
//!
//! Then one CPU is enough, and a thread that wakes up on the CPU of the event loop saves waking
//! another one. Otherwise placement is left to the scheduler: threads that work at the same time
//! need several CPUs.

use std::time::{Duration, Instant};

use super::Server;
use crate::Error;
use crate::channel::{Blocking, Incoming};
use crate::interrupt_timer::LoopTimer;

/// Longest time from a wake-up to the woken thread's next request in a chain. A thread that works
/// for longer gains little from a fast wake-up, and may need a CPU of its own.
const MAX_STEP: Duration = Duration::from_micros(200);
/// The same for threads that are not moved yet: the wake-up of another CPU alone may take longer
/// than [`MAX_STEP`], most of all on a virtual machine.
const MAX_SCHEDULED_STEP: Duration = Duration::from_millis(1);
/// A chain that begins with such steps and ends within so many requests was none.
const TRIAL: u8 = 16;
/// Number of requests in a row by woken threads that make a chain.
const CHAIN: u8 = 8;
/// Steps that are counted at most: a chain continues four requests after one outside of it.
const MAX_STEPS: u8 = 12;
/// Steps that a request outside of the chain cancels.
const PENALTY: u8 = 8;
/// Wake-ups for which no thread is moved after one that is bound to its CPU, and requests without
/// another trial after one that failed.
const PAUSE: u16 = 256;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct CallChain {
    /// Threads that were woken by the last request that has woken any, and made no request since.
    woken: Vec<u32>,
    since: Instant,
    /// The current request has woken no thread yet.
    is_first_wake: bool,
    steps: u8,
    /// Requests since the chain began, up to [`TRIAL`].
    length: u8,
    /// Requests until the next trial.
    trial_pause: u16,
    pause: u16,
}

impl CallChain {
    pub(super) fn new() -> Self {
        Self {
            woken: Vec::new(),
            since: Instant::now(),
            is_first_wake: true,
            steps: 0,
            length: 0,
            trial_pause: 0,
            pause: 0,
        }
    }

    /// A thread makes a request.
    pub(super) fn request(&mut self, tid: u32, now: Instant) {
        let at = self.woken.iter().position(|&woken| woken == tid);
        let limit = self.step_limit();
        let is_step = at.is_some_and(|at| {
            self.woken.swap_remove(at);
            now.duration_since(self.since) < limit
        });
        self.steps = if is_step {
            (self.steps + 1).min(MAX_STEPS)
        } else {
            self.steps.saturating_sub(PENALTY)
        };
        self.count_request();
        self.is_first_wake = true;
        if self.woken.is_empty() {
            self.since = now;
        }
    }

    fn step_limit(&self) -> Duration {
        if self.is_chain() || self.trial_pause > 0 { MAX_STEP } else { MAX_SCHEDULED_STEP }
    }

    /// Counts the requests of the chain. One that ends early was none.
    fn count_request(&mut self) {
        let before = self.length;
        self.length = if self.is_chain() { (before + 1).min(TRIAL) } else { 0 };
        let has_failed = self.length == 0 && (1..TRIAL).contains(&before);
        self.trial_pause = if has_failed { PAUSE } else { self.trial_pause.saturating_sub(1) };
    }

    /// A thread's request gets its reply, or the thread is woken in its `poll`.
    pub(super) fn wake(&mut self, tid: u32) {
        if std::mem::take(&mut self.is_first_wake) {
            self.woken.clear();
        }
        self.woken.push(tid);
    }

    /// Whether the calls that are in flight form a chain.
    pub(super) fn is_chain(&self) -> bool {
        self.steps >= CHAIN
    }

    /// Whether woken threads should be moved to the CPU of the event loop.
    pub(super) fn wants_one_cpu(&mut self) -> bool {
        self.pause = self.pause.saturating_sub(1);
        self.is_chain() && self.pause == 0
    }

    /// A woken thread is bound to its CPU, as its next wake-ups will probably be.
    pub(super) fn is_bound(&mut self) {
        self.pause = PAUSE;
    }
}

/// Interval of the interruptions: bounds how long other events wait if no request arrives. Each one
/// costs 5 to 10 us of the chain's CPU time.
const INTERRUPT_INTERVAL: Duration = Duration::from_micros(500);
/// Requests after which other events are polled: some hundred microseconds of calls.
const MAX_READS: u32 = 16;

/// Blocks in the read of the next request, instead of in epoll and then reading, while calls form a
/// chain: one system call less per request.
///
/// Only a request or a signal ends such a read. So a timer interrupts it periodically, which ends
/// the blocking reads until the next request. While they last, other events are polled after each
/// [`MAX_READS`] requests.
#[derive(Default)]
pub(super) struct DirectRead {
    timer: LoopTimer,
    state: ReadMode,
    /// A timer could not be created.
    is_unavailable: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReadMode {
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
        self.state != ReadMode::Off
    }

    /// The event loop has polled other events.
    pub(super) fn note_poll(&mut self) {
        if let ReadMode::On { reads } = &mut self.state {
            *reads = 0;
        }
    }

    /// The next request is read by a blocking read. False: other events are polled first.
    pub(super) fn reads_next(&self) -> bool {
        matches!(self.state, ReadMode::On { reads: ..MAX_READS })
    }

    fn note_request(&mut self) {
        if let ReadMode::On { reads } = &mut self.state {
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
        *is_unavailable = timer.set_interval(INTERRUPT_INTERVAL).is_err()
            || self.channel.set_blocking(Blocking::Yes).is_err();
        if *is_unavailable {
            return;
        }
        self.direct_read.state = ReadMode::On { reads: 0 };
        // If the page server begins after this check, it makes the connection non-blocking.
        if self.pages.is_reading() {
            self.end_direct_reads();
        }
    }

    pub(super) fn end_direct_reads(&mut self) {
        if !self.direct_read.is_on() {
            return;
        }
        self.direct_read.state = ReadMode::Off;
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

    const CLIENT: u32 = 1;
    const SERVER: u32 = 2;

    /// Calls of the client; the server replies after `work`.
    fn chain_of_calls(work: Duration) -> (CallChain, Instant) {
        let (mut chain, mut now) = (CallChain::new(), Instant::now());
        for _ in 0..10 {
            chain.request(CLIENT, now);
            chain.wake(SERVER);
            now += work;
            chain.request(SERVER, now);
            chain.wake(CLIENT);
            now += Duration::from_micros(1);
        }
        (chain, now)
    }

    #[test]
    fn two_threads_that_call_in_turn_are_a_chain() {
        let (mut chain, _) = chain_of_calls(Duration::from_micros(5));
        assert!(chain.wants_one_cpu());
    }

    #[test]
    fn a_busy_handler_does_not_share_a_cpu() {
        let (mut chain, _) = chain_of_calls(Duration::from_micros(500));
        assert!(!chain.wants_one_cpu());
    }

    #[test]
    fn slow_wake_ups_do_not_prevent_a_chain_that_makes_them_fast() {
        let (mut chain, mut now) = (CallChain::new(), Instant::now());
        for _ in 0..100 {
            for (thread, next) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
                chain.request(thread, now);
                chain.wake(next);
                now += Duration::from_micros(if chain.is_chain() { 5 } else { 500 });
            }
        }
        assert!(chain.wants_one_cpu());
    }

    #[test]
    fn busy_handlers_are_tried_rarely() {
        let (mut chain, mut now) = (CallChain::new(), Instant::now());
        let mut moves = 0;
        for _ in 0..1_000 {
            for (thread, next, work) in [(CLIENT, SERVER, 500), (SERVER, CLIENT, 5)] {
                chain.request(thread, now);
                chain.wake(next);
                moves += u32::from(chain.is_chain());
                now += Duration::from_micros(work);
            }
        }
        assert!((1..=20).contains(&moves), "{moves} of 2,000");
    }

    #[test]
    fn calls_at_the_same_time_are_no_chain() {
        let (mut chain, mut now) = chain_of_calls(Duration::from_micros(5));
        for _ in 0..4 {
            for (client, server) in [(CLIENT, SERVER), (3, 4)] {
                chain.request(client, now);
                chain.wake(server);
            }
            now += Duration::from_micros(5);
            for (client, server) in [(CLIENT, SERVER), (3, 4)] {
                chain.request(server, now);
                chain.wake(client);
            }
        }
        assert!(!chain.wants_one_cpu());
    }

    #[test]
    fn a_server_that_reads_again_after_its_reply_stays_in_the_chain() {
        let (mut chain, mut now) = (CallChain::new(), Instant::now());
        for _ in 0..10 {
            chain.request(CLIENT, now);
            chain.wake(SERVER);
            chain.request(SERVER, now);
            chain.wake(SERVER);
            chain.wake(CLIENT);
            // Its next read has no work yet.
            chain.request(SERVER, now);
            now += Duration::from_micros(5);
        }
        assert!(chain.wants_one_cpu());
    }

    #[test]
    fn threads_that_are_bound_pause_the_moves() {
        let (mut chain, _) = chain_of_calls(Duration::from_micros(5));
        chain.is_bound();
        let wanted = (0..2 * PAUSE).filter(|_| chain.wants_one_cpu()).count();
        assert_eq!(wanted, usize::from(PAUSE) + 1);
    }

    #[test]
    fn events_are_polled_after_some_requests() {
        let state = ReadMode::On { reads: 0 };
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
