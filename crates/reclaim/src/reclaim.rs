//! Steps from the signal until the memory is back.

use std::os::fd::{AsFd, BorrowedFd};

use crate::boost::Boost;
use crate::reaper::{self, Done, Mrelease, Reaper};
use crate::victim::Victim;

/// Progress of a victim's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The victim still has its memory.
    Pending,
    /// The private memory was released by `process_mrelease`; the victim may not have exited.
    Released,
    /// The victim has exited.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not submitted to a reaper yet.
    Signalled,
    /// Submitted to a reaper; waiting for the exit.
    Waiting,
    Gone,
}

/// A victim that was sent SIGKILL, by any process or BPF program.
///
/// Call [`step`](Reclaim::step) at once: `process_mrelease` has no effect any more once the
/// victim's last thread has detached from the memory. After that, call it whenever the victim's fd
/// is readable.
#[derive(Debug)]
pub struct Reclaim {
    victim: Victim,
    state: State,
    mrelease: Option<Mrelease>,
    boost: Option<Boost>,
}

impl Reclaim {
    /// Starts with a victim that has just been signalled.
    pub fn new(victim: Victim) -> Self {
        Self { victim, state: State::Signalled, mrelease: None, boost: None }
    }

    /// The killed process.
    pub fn victim(&self) -> &Victim {
        &self.victim
    }

    /// The result of `process_mrelease`, once a reaper has called it.
    pub fn mrelease(&self) -> Option<Mrelease> {
        self.mrelease
    }

    /// Result of the boost, if the victim had not exited after `process_mrelease`.
    pub fn boost(&self) -> Option<Boost> {
        self.boost
    }

    /// Submits the victim to a reaper at the first call, with `token`; later calls check whether it
    /// has exited.
    pub fn step(&mut self, reaper: &Reaper, token: u64) -> Progress {
        let progress = self.look();
        if progress == Progress::Pending && self.state == State::Signalled {
            // Dropped if the queue is full: the victim's own exit then frees the memory.
            reaper.submit(token, &self.victim);
            self.state = State::Waiting;
        }
        progress
    }

    /// Checks whether the victim has exited.
    pub fn look(&mut self) -> Progress {
        if self.state != State::Gone && self.victim.has_exited() {
            self.state = State::Gone;
        }
        self.progress()
    }

    /// Calls `process_mrelease` from this thread instead of a reaper's. If this thread has just
    /// sent the signal, the call is never too late. Blocks for 0.1 µs per page, and as long as
    /// another kernel thread holds the lock of the victim's address space.
    pub fn reap(&mut self) -> Progress {
        let victim = self.victim.clone();
        self.state = State::Waiting;
        reaper::reap(&victim, |done| {
            self.helped(done);
        });
        self.look()
    }

    /// Records a reaper's result.
    pub fn helped(&mut self, done: Done) -> Progress {
        match done {
            Done::Released(result) => self.mrelease = Some(result),
            Done::Boosted(boost) => self.boost = Some(boost),
        }
        self.progress()
    }

    /// Progress as of the last step.
    pub fn progress(&self) -> Progress {
        match self.state {
            State::Gone => Progress::Gone,
            _ if self.mrelease == Some(Mrelease::Freed) => Progress::Released,
            _ => Progress::Pending,
        }
    }
}

/// Becomes readable when the victim has exited.
impl AsFd for Reclaim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.victim.as_fd()
    }
}
