//! Detects `O_NONBLOCK` that a client set by `fcntl(F_SETFL)`, which FUSE does not report.
//!
//! A read that has waited for [`PATIENCE`] is looked up in `/proc`: `syscall` of its thread has the
//! descriptor, `fdinfo` the flags. The client can put another file in the descriptor's place, whose
//! `fdinfo` is long, or waits for something that the client holds. So a thread of its own reads
//! them, and its time is charged to the client's owner. A thread that does not return is left to
//! that owner's lookup, and another one serves the others. A wrong answer concerns only the client
//! itself.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use headroom_linux::sched::leave_realtime;
use owners::{Owner, Rate, TokenBuckets};
use rustix::event::EventfdFlags;
use serde::{Deserialize, Serialize};

use crate::open::CallKey;

/// Reads that end earlier cost nothing but an entry of a queue.
const PATIENCE: Duration = Duration::from_millis(1);
/// Time until the next attempt, while the owner has no time left.
const RETRY: Duration = Duration::from_millis(100);
/// Time of the thread that an owner may use. One token is one nanosecond.
const BUDGET: Rate = owners::bounds::FLAG_LOOKUPS.of_an_owner();
/// Charged in advance. A lookup takes some 10 us.
const ESTIMATE: Duration = Duration::from_micros(20);
/// A lookup that takes longer is left alone with its thread.
const LONGEST: Duration = Duration::from_millis(500);
/// Threads that do not return, one of an owner.
const MOST_BLOCKED: usize = owners::bounds::FLAG_THREADS.slots().slots;
/// Number of reads that are taken from the queues in an iteration of the event loop.
const READS_PER_TURN: usize = 64;
/// Bytes of the thread's stack.
const STACK: usize = 64 << 10;
/// `pos`, `flags`, `mnt_id` and `ino` are shorter.
const FDINFO_LENGTH: usize = 256;

/// A parked read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParkedRead {
    pub(crate) call: CallKey,
    pub(crate) tid: u32,
    pub(crate) owner: Owner,
}

/// Whether the client is known to change the flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FlagHistory {
    AsOpened,
    /// Its reads are looked up without delay.
    Changed,
}

/// Completed lookup.
struct Completed {
    read: ParkedRead,
    is_nonblocking: bool,
    took: Duration,
}

struct LookupThread {
    reads: Sender<ParkedRead>,
    completed: Receiver<Completed>,
    /// Reads without a result, in the order in which the thread looks them up.
    submitted: VecDeque<ParkedRead>,
    /// When the thread may have begun with the first of these.
    begun: Instant,
}

impl LookupThread {
    /// When its lookup has taken too long.
    fn deadline(&self) -> Option<Instant> {
        (!self.submitted.is_empty()).then(|| self.begun + LONGEST)
    }
}

/// Reads to be looked up.
pub(crate) struct NonblockLookups {
    begun: Instant,
    /// In the order of their times, as the delay is the same for all.
    due: VecDeque<(Instant, ParkedRead)>,
    urgent: VecDeque<ParkedRead>,
    retries: VecDeque<(Instant, ParkedRead)>,
    budgets: TokenBuckets<Owner>,
    /// Readable when a lookup has completed.
    signal: Arc<OwnedFd>,
    /// Started with the first lookup.
    worker: Option<LookupThread>,
    /// Those that do not return from the lookup of their one read.
    blocked: Vec<LookupThread>,
    /// Executed by the threads; another function in tests.
    look_up: fn(ParkedRead) -> Completed,
}

impl NonblockLookups {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            begun: Instant::now(),
            due: VecDeque::new(),
            urgent: VecDeque::new(),
            retries: VecDeque::new(),
            budgets: TokenBuckets::new(BUDGET),
            signal: Arc::new(rustix::event::eventfd(0, flags)?),
            worker: None,
            blocked: Vec::new(),
            look_up,
        })
    }

    /// The budgets that were used.
    pub(crate) fn balances(&self) -> BTreeMap<Owner, i64> {
        self.budgets.balances(self.now_ns(Instant::now()))
    }

    /// Continues with the budgets of another server.
    pub(crate) fn restore(&mut self, balances: BTreeMap<Owner, i64>) {
        self.budgets.restore(balances, self.now_ns(Instant::now()));
    }

    fn now_ns(&self, now: Instant) -> u64 {
        now.duration_since(self.begun).as_nanos() as u64
    }

    pub(crate) fn signal(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    pub(crate) fn add(&mut self, read: ParkedRead, history: FlagHistory) {
        match history {
            FlagHistory::AsOpened => self.due.push_back((Instant::now() + PATIENCE, read)),
            FlagHistory::Changed => self.urgent.push_back(read),
        }
    }

    /// Time until the next lookup; `None`: nothing to look up.
    pub(crate) fn next_in(&self) -> Option<Duration> {
        if !self.urgent.is_empty() {
            return Some(Duration::ZERO);
        }
        let fronts = [self.due.front(), self.retries.front()];
        let fronts = fronts.into_iter().flatten().map(|(at, _)| *at);
        let next = fronts.chain(self.deadline()).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// The owner of a read that is being looked up: its thread may not return.
    pub(crate) fn owner_of_lookup(&self) -> Option<Owner> {
        let workers = self.worker.iter().chain(&self.blocked);
        workers.filter_map(|worker| worker.submitted.front()).map(|read| read.owner).next()
    }

    /// When the thread is left alone. `None`: it has nothing to do, or no other may be started.
    fn deadline(&self) -> Option<Instant> {
        let worker = self.worker.as_ref().filter(|_| self.blocked.len() < MOST_BLOCKED);
        worker.and_then(LookupThread::deadline)
    }

    fn leave_blocked_worker(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now)
            && let Some(mut worker) = self.worker.take()
        {
            self.retries.extend(worker.submitted.drain(1..).map(|read| (now, read)));
            self.blocked.push(worker);
        }
    }

    fn is_blocked(&self, owner: Owner) -> bool {
        self.blocked.iter().flat_map(|worker| &worker.submitted).any(|read| read.owner == owner)
    }

    /// Submits the reads whose time has come, and that are still parked, to the thread.
    pub(crate) fn submit_due(&mut self, is_parked: impl Fn(CallKey) -> bool) {
        let nothing_waits =
            self.due.is_empty() && self.urgent.is_empty() && self.retries.is_empty();
        if nothing_waits && self.deadline().is_none() {
            return;
        }
        let now = Instant::now();
        self.leave_blocked_worker(now);
        for _ in 0..READS_PER_TURN {
            let Some(read) = self.take_due(now) else { return };
            if is_parked(read.call) {
                self.submit(read, now);
            }
        }
    }

    fn take_due(&mut self, now: Instant) -> Option<ParkedRead> {
        if let Some(read) = self.urgent.pop_front() {
            return Some(read);
        }
        let mut delayed = [&mut self.due, &mut self.retries].into_iter();
        let queue = delayed.find(|queue| queue.front().is_some_and(|(at, _)| *at <= now))?;
        queue.pop_front().map(|(_, read)| read)
    }

    fn submit(&mut self, read: ParkedRead, now: Instant) {
        let now_ns = self.now_ns(now);
        if self.is_blocked(read.owner) || !self.budgets.is_ready(read.owner, now_ns) {
            self.retries.push_back((now + RETRY, read));
            return;
        }
        self.budgets.charge(read.owner, now_ns, ESTIMATE.as_nanos() as u64);
        if self.worker.is_none() {
            match start_thread(&self.signal, self.look_up) {
                Ok(worker) => self.worker = Some(worker),
                Err(error) => {
                    tracing::debug!("no thread that looks up O_NONBLOCK: {error}");
                    self.retries.push_back((now + RETRY, read));
                    return;
                }
            }
        }
        if let Some(worker) = &mut self.worker
            && worker.reads.send(read).is_ok()
        {
            if worker.submitted.is_empty() {
                worker.begun = now;
            }
            worker.submitted.push_back(read);
        }
    }

    /// The reads that must not wait, by completed lookups.
    pub(crate) fn take_nonblocking(&mut self) -> Vec<ParkedRead> {
        let _ = rustix::io::read(&self.signal, &mut [0; 8]);
        let now = Instant::now();
        let mut completed = Vec::new();
        // A thread that has returned ends: what else was submitted to it is submitted again.
        self.blocked.retain(|worker| match worker.completed.try_recv() {
            Ok(lookup) => {
                completed.push(lookup);
                false
            }
            Err(_) => true,
        });
        if let Some(worker) = &mut self.worker {
            for lookup in worker.completed.try_iter() {
                completed.push(lookup);
                worker.submitted.pop_front();
                worker.begun = now;
            }
        }
        let now_ns = self.now_ns(now);
        for Completed { read, took, .. } in &completed {
            let excess = took.saturating_sub(ESTIMATE).as_nanos() as u64;
            self.budgets.charge(read.owner, now_ns, excess);
        }
        let nonblocking = completed.into_iter().filter(|lookup| lookup.is_nonblocking);
        nonblocking.map(|lookup| lookup.read).collect()
    }
}

fn start_thread(
    signal: &Arc<OwnedFd>,
    look_up: fn(ParkedRead) -> Completed,
) -> io::Result<LookupThread> {
    let (reads, submitted) = channel();
    let (results, completed) = channel();
    let signal = Arc::clone(signal);
    let thread = std::thread::Builder::new().name("nonblock".into()).stack_size(STACK);
    thread.spawn(move || {
        // The event loop's real-time priority is inherited.
        leave_realtime(0);
        for read in submitted {
            if results.send(look_up(read)).is_err() {
                return;
            }
            let _ = rustix::io::write(&signal, &1_u64.to_ne_bytes());
        }
    })?;
    let (submitted, begun) = (VecDeque::new(), Instant::now());
    Ok(LookupThread { reads, completed, submitted, begun })
}

fn look_up(read: ParkedRead) -> Completed {
    let begun = Instant::now();
    let flags = descriptor_of(read.tid).and_then(|fd| flags_of(read.tid, fd));
    let is_nonblocking = flags.is_some_and(|flags| flags & libc::O_NONBLOCK as u32 != 0);
    Completed { read, is_nonblocking, took: begun.elapsed() }
}

/// The first argument of the system call in which a thread sleeps.
fn descriptor_of(tid: u32) -> Option<u32> {
    // The kernel ignores the upper half of the register.
    first_argument(tid).map(|argument| argument as u32)
}

/// The flags of an open file.
fn flags_of(tid: u32, fd: u32) -> Option<u32> {
    let mut text = [0; FDINFO_LENGTH];
    let length = File::open(format!("/proc/{tid}/fdinfo/{fd}")).ok()?.read(&mut text).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(flags.trim(), 8).ok()
}

/// Contents of `/proc/TID/syscall` of a thread that does not sleep.
const RUNNING: &str = "running";
/// A thread that has just sent us its request may not sleep yet: it needs a CPU for some
/// microseconds.
const SLEEP_ATTEMPTS: u32 = 20;
const SLEEP_PAUSE: Duration = Duration::from_micros(200);

/// The first argument of the system call in which a thread sleeps. `None`: it sleeps in no call.
fn first_argument(tid: u32) -> Option<u64> {
    parse_first_argument(&syscall_file(tid))
}

/// As [`first_argument`], of a thread that is about to sleep. `None`: it does not in time, or
/// sleeps in no call.
pub(crate) fn await_first_argument(tid: u32) -> Option<u64> {
    for _ in 0..SLEEP_ATTEMPTS {
        let text = syscall_file(tid);
        if text.trim_end() != RUNNING {
            return parse_first_argument(&text);
        }
        std::thread::sleep(SLEEP_PAUSE);
    }
    None
}

fn syscall_file(tid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{tid}/syscall")).unwrap_or_default()
}

/// Reads `number 0xARGUMENT ...`; the number is -1 if the thread is in no call.
fn parse_first_argument(text: &str) -> Option<u64> {
    let mut fields = text.split_ascii_whitespace();
    fields.next()?.parse::<u64>().ok()?;
    u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    use binder_driver::slab::Key;
    use owners::Uid;
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    const OWNER: Owner = Owner::User(Uid(4_000_000_000));

    fn read(number: u64) -> ParkedRead {
        ParkedRead {
            call: CallKey::from_number(1 << 32 | number),
            tid: rustix::thread::gettid().as_raw_nonzero().get() as u32,
            owner: OWNER,
        }
    }

    #[test]
    fn the_flag_of_the_descriptor_that_a_thread_waits_on_is_found() {
        for flags in [PipeFlags::empty(), PipeFlags::NONBLOCK] {
            let (end, _other) = pipe_with(flags).unwrap();
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let fd = std::os::fd::AsRawFd::as_raw_fd(&end) as u32;
            let found = flags_of(tid, fd).unwrap() & libc::O_NONBLOCK as u32 != 0;
            assert_eq!(found, flags == PipeFlags::NONBLOCK);
        }
        let (end, other) = pipe_with(PipeFlags::empty()).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&end) as u32;
        let (sender, receiver) = channel();
        let waiter = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = rustix::io::read(&end, &mut [0; 1]);
        });
        let tid = receiver.recv().unwrap();
        while descriptor_of(tid) != Some(fd) {
            std::thread::yield_now();
        }
        File::from(other).write_all(b"1").unwrap();
        waiter.join().unwrap();
    }

    #[test]
    fn a_read_that_ended_in_time_is_not_looked_up() {
        let mut lookups = NonblockLookups::new().unwrap();
        assert_eq!(lookups.next_in(), None);
        lookups.add(read(1), FlagHistory::AsOpened);
        assert!(lookups.next_in().unwrap() <= PATIENCE);
        std::thread::sleep(PATIENCE);
        lookups.submit_due(|_| false);
        assert!(lookups.next_in().is_none() && lookups.worker.is_none());
    }

    #[test]
    fn an_owner_without_time_is_deferred_and_others_are_not() {
        let mut lookups = NonblockLookups::new().unwrap();
        lookups.budgets.charge(OWNER, 0, Duration::from_secs(3600).as_nanos() as u64);
        lookups.add(read(1), FlagHistory::Changed);
        lookups.submit_due(|_| true);
        assert!(lookups.worker.is_none() && lookups.retries.len() == 1);
        let other = Owner::User(Uid(4_000_000_001));
        lookups.add(ParkedRead { owner: other, ..read(2) }, FlagHistory::Changed);
        lookups.submit_due(|_| true);
        assert!(lookups.worker.is_some() && lookups.retries.len() == 1);
    }

    #[test]
    fn a_lookup_that_does_not_return_delays_its_owner_only() {
        static RETURNS: AtomicBool = AtomicBool::new(false);
        fn look_up(read: ParkedRead) -> Completed {
            while read.owner == OWNER && !RETURNS.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Completed { read, is_nonblocking: true, took: Duration::ZERO }
        }
        let mut lookups = NonblockLookups { look_up, ..NonblockLookups::new().unwrap() };
        let other = Owner::User(Uid(4_000_000_001));
        lookups.add(read(1), FlagHistory::Changed);
        lookups.add(read(2), FlagHistory::Changed);
        lookups.add(ParkedRead { owner: other, ..read(3) }, FlagHistory::Changed);
        let found = |lookups: &mut NonblockLookups, wanted: u64| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(60) {
                lookups.submit_due(|_| true);
                if let Some(found) = lookups.take_nonblocking().first() {
                    return assert_eq!(found.call, read(wanted).call);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            panic!("read {wanted} is not looked up");
        };
        found(&mut lookups, 3);
        assert_eq!(lookups.owner_of_lookup(), Some(OWNER));
        assert_eq!(lookups.blocked.len(), 1, "one thread for both reads of the owner");
        RETURNS.store(true, Ordering::Relaxed);
        found(&mut lookups, 1);
        found(&mut lookups, 2);
        assert!(lookups.blocked.is_empty());
    }

    #[test]
    fn the_first_argument_of_a_call_is_read_while_the_thread_sleeps_in_it() {
        let text = "29 0x11 0xc0306201 0xffffd0c8a2f8 0x0 0x0 0x0 0xffffd0c8a2a0 0xffff9b5e0d1c\n";
        assert_eq!(parse_first_argument(text), Some(0x11));
        assert_eq!(parse_first_argument("-1 0xffffd0c8a2a0 0xffff9b5e0d1c\n"), None);
        assert_eq!(parse_first_argument(RUNNING), None);
    }
}
