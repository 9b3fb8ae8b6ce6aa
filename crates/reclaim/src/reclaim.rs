//! From the signal until the memory is back, a step at a time.

use std::os::fd::{AsFd, BorrowedFd};

use crate::boost::Boost;
use crate::mrelease::Mrelease;
use crate::reaper::{self, Done, Reaper};
use crate::victim::Victim;

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
    /// No reaper has been asked yet.
    Signalled,
    /// A reaper has been asked; its exit is awaited.
    Waiting,
    Gone,
}

/// A victim that has been sent SIGKILL, by any process or BPF program.
///
/// Call [`step`](Reclaim::step) at once: once the victim's last thread has detached from the
/// memory, `process_mrelease` comes too late. After that, whenever its fd is readable.
#[derive(Debug)]
pub struct Reclaim {
    victim: Victim,
    state: State,
    mrelease: Option<Mrelease>,
    boost: Option<Boost>,
}

impl Reclaim {
    /// Begins with a victim that has just been signalled.
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

    /// What was done because it had not exited after that.
    pub fn boost(&self) -> Option<Boost> {
        self.boost
    }

    /// Hands the victim to a reaper at the first call, with `token`; later calls look whether it
    /// has exited.
    pub fn step(&mut self, reaper: &Reaper, token: u64) -> Progress {
        let progress = self.look();
        if progress == Progress::Pending && self.state == State::Signalled {
            // Refused when too many wait: its own exit then frees the memory.
            reaper.submit(token, &self.victim);
            self.state = State::Waiting;
        }
        progress
    }

    /// Looks whether it has exited.
    pub fn look(&mut self) -> Progress {
        if self.state != State::Gone && self.victim.has_exited() {
            self.state = State::Gone;
        }
        self.progress()
    }

    /// Calls `process_mrelease` from this thread instead of a reaper's, which then never comes too
    /// late when this thread has just sent the signal. Blocks for 0.1 µs a page, and as long as
    /// another thread of the kernel holds the lock of the victim's address space.
    pub fn reap(&mut self) -> Progress {
        let victim = self.victim.clone();
        self.state = State::Waiting;
        reaper::reap(&victim, |done| {
            self.helped(done);
        });
        self.look()
    }

    /// Takes a reaper's result.
    pub fn helped(&mut self, done: Done) -> Progress {
        match done {
            Done::Released(result) => self.mrelease = Some(result),
            Done::Boosted(boost) => self.boost = Some(boost),
        }
        self.progress()
    }

    /// How far it has come, as of the last step.
    pub fn progress(&self) -> Progress {
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
