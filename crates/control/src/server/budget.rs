//! Scheduling of connections, and the CPU time and connection rate of each owner.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use owners::bounds::Bound;
use owners::client_files::Closers;
use owners::{FairQueue, Owner, TokenBucket, TokenBuckets, Uid};
use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

use crate::Peer;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Class of the connections to schedule.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// Those of root, which have no limits.
    Root,
    /// Those of others.
    Others,
}

/// Maximum of the time that is charged for one packet, microseconds.
const MAX_ELAPSED_US: u64 = 1_000_000;

/// CPU time used by the thread at some point, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime(u64);

impl CpuTime {
    /// The calling thread's CPU time now.
    pub fn now() -> Self {
        Self(nanoseconds(clock_gettime(ClockId::ThreadCPUTime)))
    }

    /// CPU time used since, microseconds; at least 1.
    pub fn elapsed_us(&self) -> u64 {
        // The event loop of headroom-binderd may continue on another thread, whose clock has
        // another origin.
        (Self::now().0.saturating_sub(self.0) / 1_000).clamp(1, MAX_ELAPSED_US)
    }
}

fn nanoseconds(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * NS_PER_SECOND
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// A connection that waits to be scheduled.
struct Waiting {
    owner: Owner,
    uid: Uid,
    number: u64,
}

/// The connections that wait to be scheduled.
pub(super) struct Budget {
    timer: OwnedFd,
    /// Expiry of the timer, nanoseconds, CLOCK_MONOTONIC.
    set_to_ns: Option<u64>,
    /// Connections of root, by number; not limited.
    roots: VecDeque<u64>,
    others: FairQueue<Owner, Waiting>,
    /// Connections of owners that have used up their time.
    resting: Vec<Waiting>,
    of_owners: TokenBuckets<Owner>,
    of_all: TokenBucket,
    accepts_of_owners: TokenBuckets<Owner>,
    accepts: TokenBucket,
    /// How many connections may come at a time.
    accepts_burst: u64,
    /// The rate of new connections was exceeded: none are accepted for now.
    refuses: bool,
}

impl Budget {
    /// `time`: microseconds of CPU time.
    pub(super) fn new(time: &Bound, accepts: &Bound) -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let now_ns = now_ns();
        Ok(Self {
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            set_to_ns: None,
            roots: VecDeque::new(),
            others: FairQueue::new(1),
            resting: Vec::new(),
            of_owners: TokenBuckets::new(time.of_an_owner()),
            of_all: TokenBucket::new(time.of_all(), now_ns),
            accepts_of_owners: TokenBuckets::new(accepts.of_an_owner()),
            accepts: TokenBucket::new(accepts.of_all(), now_ns),
            accepts_burst: accepts.of_all().burst,
            refuses: false,
        })
    }

    /// Readable when a connection can be scheduled.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    pub(super) fn timer_expired(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.timer, &mut count);
        self.set_to_ns = None;
    }

    /// Sets the timer to when the next connection can be scheduled.
    pub(super) fn set_timer(&mut self) {
        let now_ns = now_ns();
        let roots = (!self.roots.is_empty()).then_some(now_ns);
        let others = (!self.others.is_empty()).then(|| self.of_all.ready_at_ns());
        let resting = self.resting.iter().filter_map(|it| self.of_owners.ready_at_ns(it.owner));
        let accepts = self.refuses.then(|| self.accepts.ready_at_ns());
        let next_ns = [roots, others, resting.min(), accepts].into_iter().flatten().min();
        // 1: expire immediately; 0 would disarm the timer.
        let next_ns = next_ns.map(|next_ns| if next_ns <= now_ns { 1 } else { next_ns });
        if next_ns == self.set_to_ns {
            return;
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = |ns: u64| Timespec {
            tv_sec: (ns / NS_PER_SECOND) as i64,
            tv_nsec: (ns % NS_PER_SECOND) as _,
        };
        let time = Itimerspec { it_interval: zero, it_value: next_ns.map_or(zero, at) };
        // Cannot fail: the timer and the time are valid.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &time);
        self.set_to_ns = next_ns;
    }

    pub(super) fn enqueue(&mut self, peer: Peer, number: u64) {
        let (owner, uid) = (peer.owner, peer.uid);
        if owner.is_root() {
            self.roots.push_back(number);
        } else {
            self.others.push(owner, uid, 1, Waiting { owner, uid, number });
        }
    }

    /// The connection to serve next.
    pub(super) fn next(&mut self, turn: Turn) -> Option<u64> {
        match turn {
            Turn::Root => self.roots.pop_front(),
            Turn::Others => self.next_of_others(now_ns()),
        }
    }

    fn next_of_others(&mut self, now_ns: u64) -> Option<u64> {
        let Self { resting, others, of_owners, .. } = self;
        for it in resting.extract_if(.., |it| of_owners.is_ready(it.owner, now_ns)) {
            others.push(it.owner, it.uid, 1, it);
        }
        if !self.of_all.is_ready(now_ns) {
            return None;
        }
        while let Some(waiting) = self.others.pop() {
            if self.of_owners.is_ready(waiting.owner, now_ns) {
                return Some(waiting.number);
            }
            self.resting.push(waiting);
        }
        None
    }

    pub(super) fn has_time(&mut self, owner: Owner) -> bool {
        let now_ns = now_ns();
        owner.is_root() || self.of_owners.is_ready(owner, now_ns) && self.of_all.is_ready(now_ns)
    }

    /// Charges the CPU time used since `begun` to the owner.
    pub(super) fn charge(&mut self, owner: Owner, begun: CpuTime) {
        if owner.is_root() {
            return;
        }
        let (now_ns, cost_us) = (now_ns(), begun.elapsed_us());
        self.of_owners.charge(owner, now_ns, cost_us);
        self.of_all.charge(now_ns, cost_us);
    }

    /// Whether a connection of a user other than root may be accepted.
    pub(super) fn may_accept(&mut self, closers: &Closers) -> bool {
        let now_ns = now_ns();
        if self.accepts.is_ready(now_ns) && closers.is_full() {
            // More of them could use up the daemon's descriptors: tried again after a while.
            self.accepts.charge(now_ns, 2 * self.accepts_burst);
        }
        self.refuses = !self.accepts.is_ready(now_ns);
        !self.refuses
    }

    /// Records that a connection was accepted.
    pub(super) fn accepted(&mut self) {
        self.accepts.charge(now_ns(), 1);
    }

    /// Whether an accepted connection of the owner is within the owner's rate.
    pub(super) fn admits(&mut self, owner: Owner) -> bool {
        owner.is_root() || self.accepts_of_owners.take(owner, now_ns())
    }

    /// Charges the CPU time used since `begun` for a connection that was refused. Others do not pay
    /// for it, and the owner's requests wait no longer than it goes on.
    pub(super) fn charge_refusal(&mut self, owner: Owner, begun: CpuTime) {
        let now_ns = now_ns();
        if self.of_owners.is_ready(owner, now_ns) {
            self.of_owners.charge(owner, now_ns, begun.elapsed_us());
        }
    }

    /// Whether connections were refused and can be accepted again.
    pub(super) fn accepts_again(&mut self, closers: &Closers) -> bool {
        self.refuses && self.may_accept(closers)
    }
}
