//! From the signal until the memory is back, a step at a time.

use std::os::fd::{AsFd, BorrowedFd};

use crate::mrelease::Mrelease;
use crate::reaper::Reaper;
use crate::victim::Victim;

/// The least time a victim gets to free its memory itself, nanoseconds.
const MIN_HEALTHY_EXIT_NS: u64 = 2_000_000;
/// How fast a healthy victim frees its memory, bytes a second: 41 GB/s was measured for 4 KiB pages
/// on one core.
const HEALTHY_EXIT_BYTES_PER_SECOND: u64 = 40_000_000_000;

/// How far a victim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It still has memory.
    Pending,
    /// Its private memory was released from outside; it may still be there.
    Released,
    /// It is gone.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Exiting on its own, until then.
    Exiting {
        until_ns: u64,
    },
    /// A reaper is at it.
    Releasing,
    /// Released, or the reaper could do nothing: only its exit is awaited.
    Waiting,
    Gone,
}

/// A victim that has been sent SIGKILL, by whomever.
///
/// Watch its fd and call [`step`](Reclaim::step) when it is readable or
/// [`next_deadline_ns`](Reclaim::next_deadline_ns) has passed.
#[derive(Debug)]
pub struct Reclaim {
    victim: Victim,
    state: State,
    mrelease: Option<Mrelease>,
}

impl Reclaim {
    /// Begins with a victim that had `bytes` and was signalled at `signalled_ns`.
    ///
    /// Before this is where the victim's threads are raised in priority, once that is done at all.
    pub fn new(victim: Victim, bytes: u64, signalled_ns: u64) -> Self {
        let share = u128::from(bytes) * 1_000_000_000 / u128::from(HEALTHY_EXIT_BYTES_PER_SECOND);
        let exit_ns = u64::try_from(share).unwrap_or(u64::MAX).max(MIN_HEALTHY_EXIT_NS);
        let until_ns = signalled_ns.saturating_add(exit_ns);
        Self { victim, state: State::Exiting { until_ns }, mrelease: None }
    }

    /// Who it is about.
    pub fn victim(&self) -> &Victim {
        &self.victim
    }

    /// What `process_mrelease` said, if it was called.
    pub fn mrelease(&self) -> Option<Mrelease> {
        self.mrelease
    }

    /// When to call [`step`](Reclaim::step) though the fd is not readable, nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        match self.state {
            State::Exiting { until_ns } => Some(until_ns),
            State::Releasing | State::Waiting | State::Gone => None,
        }
    }

    /// Looks at the victim and does what is due. A reaper that is needed is given `token`.
    pub fn step(&mut self, now_ns: u64, reaper: &Reaper, token: u64) -> Progress {
        if self.state != State::Gone && self.victim.has_exited() {
            self.state = State::Gone;
        }
        if let State::Exiting { until_ns } = self.state
            && now_ns >= until_ns
        {
            let taken = reaper.submit(token, self.victim.share());
            self.state = if taken { State::Releasing } else { State::Waiting };
        }
        self.progress()
    }

    /// Takes the reaper's result.
    pub fn released(&mut self, result: Mrelease) -> Progress {
        self.mrelease = Some(result);
        if self.state == State::Releasing {
            self.state = State::Waiting;
        }
        self.progress()
    }

    fn progress(&self) -> Progress {
        match self.state {
            State::Gone => Progress::Gone,
            _ if self.mrelease == Some(Mrelease::Freed) => Progress::Released,
            _ => Progress::Pending,
        }
    }
}

/// Becomes readable when the victim is gone.
impl AsFd for Reclaim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.victim.as_fd()
    }
}
