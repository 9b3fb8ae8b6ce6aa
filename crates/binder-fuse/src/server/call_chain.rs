//! Whether the calls that are in flight form one chain, in which each thread waits for the next.
//!
//! Then one CPU is enough, and a thread that wakes up on the CPU of the event loop saves waking
//! another one. Otherwise placement is left to the scheduler: threads that work at the same time
//! need several CPUs.

use std::time::{Duration, Instant};

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
}
