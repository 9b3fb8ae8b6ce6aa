//! Detects `O_NONBLOCK` that a client set by `fcntl(F_SETFL)`, which FUSE does not report.
//!
//! A read that has waited for [`PATIENCE`] is looked up in `/proc`: `syscall` of its thread has the
//! descriptor, `fdinfo` the flags. The client can put another file in the descriptor's place, whose
//! `fdinfo` is long, so a thread of its own reads them, and its time is charged to the client's
//! owner. A wrong answer concerns only the client itself.

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

use crate::sleeping_call;

/// Reads that end earlier cost nothing but an entry of a queue.
const PATIENCE: Duration = Duration::from_millis(1);
/// Time until the next attempt, while the owner has no time left.
const RETRY: Duration = Duration::from_millis(100);
/// Time of the thread that an owner may use. One token is one nanosecond.
const BUDGET: Rate = owners::bounds::FLAG_LOOKUPS.of_an_owner();
/// Charged in advance. A lookup takes some 10 us.
const ESTIMATE: Duration = Duration::from_micros(20);
/// Number of reads that are taken from the queues in an iteration of the event loop.
const READS_PER_TURN: usize = 64;
/// Bytes of the thread's stack.
const STACK: usize = 64 << 10;
/// `pos`, `flags`, `mnt_id` and `ino` are shorter.
const FDINFO_LENGTH: usize = 256;

/// A parked read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParkedRead {
    pub(crate) unique: u64,
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

struct Worker {
    reads: Sender<ParkedRead>,
    completed: Receiver<Completed>,
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
    worker: Option<Worker>,
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
        let next = fronts.into_iter().flatten().map(|(at, _)| *at).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Submits the reads whose time has come, and that are still parked, to the thread.
    pub(crate) fn submit_due(&mut self, is_parked: impl Fn(u64) -> bool) {
        if self.due.is_empty() && self.urgent.is_empty() && self.retries.is_empty() {
            return;
        }
        let now = Instant::now();
        for _ in 0..READS_PER_TURN {
            let Some(read) = self.take_due(now) else { return };
            if is_parked(read.unique) {
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
        if !self.budgets.is_ready(read.owner, now_ns) {
            self.retries.push_back((now + RETRY, read));
            return;
        }
        self.budgets.charge(read.owner, now_ns, ESTIMATE.as_nanos() as u64);
        if self.worker.is_none() {
            match start_worker(&self.signal) {
                Ok(worker) => self.worker = Some(worker),
                Err(error) => {
                    tracing::debug!("no thread that looks up O_NONBLOCK: {error}");
                    self.retries.push_back((now + RETRY, read));
                    return;
                }
            }
        }
        if let Some(worker) = &self.worker {
            // Fails only if the thread has panicked.
            let _ = worker.reads.send(read);
        }
    }

    /// The reads that must not wait, by completed lookups.
    pub(crate) fn take_nonblocking(&mut self) -> Vec<ParkedRead> {
        let _ = rustix::io::read(&self.signal, &mut [0; 8]);
        let Some(worker) = &self.worker else { return Vec::new() };
        let now_ns = self.now_ns(Instant::now());
        let mut found = Vec::new();
        for completed in worker.completed.try_iter() {
            let excess = completed.took.saturating_sub(ESTIMATE).as_nanos() as u64;
            self.budgets.charge(completed.read.owner, now_ns, excess);
            if completed.is_nonblocking {
                found.push(completed.read);
            }
        }
        found
    }
}

fn start_worker(signal: &Arc<OwnedFd>) -> io::Result<Worker> {
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
    Ok(Worker { reads, completed })
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
    sleeping_call::first_argument(tid).map(|argument| argument as u32)
}

/// The flags of an open file.
fn flags_of(tid: u32, fd: u32) -> Option<u32> {
    let mut text = [0; FDINFO_LENGTH];
    let length = File::open(format!("/proc/{tid}/fdinfo/{fd}")).ok()?.read(&mut text).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(flags.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use owners::Uid;
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    const OWNER: Owner = Owner::User(Uid(4_000_000_000));

    fn read(unique: u64) -> ParkedRead {
        ParkedRead {
            unique,
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
}
