//! From the signal until the memory is back, a step at a time.

use std::os::fd::{AsFd, BorrowedFd};

use crate::boost::{Boost, Lift};
use crate::mrelease::Mrelease;
use crate::reaper::{Done, Reaper, Task};
use crate::victim::Victim;

/// How soon memory that was busy is tried again, nanoseconds.
const AGAIN_NS: u64 = 10_000_000;

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

/// With what a victim is helped; by default with everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Help {
    /// Its memory is released from outside, by `process_mrelease`.
    pub release: bool,
    /// Its threads are raised, and it is let out of a freezer.
    pub boost: bool,
}

impl Default for Help {
    fn default() -> Self {
        Self { release: true, boost: true }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing has been done for it yet.
    Struck,
    /// A reaper is at it.
    Releasing,
    /// Its memory was busy: again then.
    Busy {
        until_ns: u64,
    },
    /// Released, or the reaper could do nothing: only its exit is awaited.
    Waiting,
    Gone,
}

/// A victim that has been sent SIGKILL, by whomever.
///
/// Call [`step`](Reclaim::step) at once: the sooner a reaper gets hold of the memory, the less the
/// victim's own speed counts. After that, whenever its fd is readable or
/// [`next_deadline_ns`](Reclaim::next_deadline_ns) has passed.
#[derive(Debug)]
pub struct Reclaim {
    victim: Victim,
    help: Help,
    state: State,
    mrelease: Option<Mrelease>,
    boosts: Vec<Boost>,
}

impl Reclaim {
    /// Begins with a victim that has just been signalled.
    pub fn new(victim: Victim, help: Help) -> Self {
        Self { victim, help, state: State::Struck, mrelease: None, boosts: Vec::new() }
    }

    /// Who it is about.
    pub fn victim(&self) -> &Victim {
        &self.victim
    }

    /// What `process_mrelease` said, if it was called.
    pub fn mrelease(&self) -> Option<Mrelease> {
        self.mrelease
    }

    /// What was raised: the threads, and where there was one, the way out of a freezer.
    pub fn boosts(&self) -> &[Boost] {
        &self.boosts
    }

    /// When to call [`step`](Reclaim::step) though the fd is not readable, nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        match self.state {
            State::Struck => Some(0),
            State::Busy { until_ns } => Some(until_ns),
            State::Releasing | State::Waiting | State::Gone => None,
        }
    }

    /// Looks at the victim and does what is due. A reaper that is needed is given `token`.
    pub fn step(&mut self, now_ns: u64, reaper: &Reaper, token: u64) -> Progress {
        let begin = self.state == State::Struck;
        if self.state != State::Gone && self.victim.has_exited() {
            self.state = State::Gone;
        }
        match self.state {
            State::Struck if self.help.release => self.release(reaper, token),
            State::Busy { until_ns } if now_ns >= until_ns => self.release(reaper, token),
            State::Struck => self.state = State::Waiting,
            _ => {}
        }
        if begin && self.help.boost && !self.help.release && self.state != State::Gone {
            reaper.submit(token, &self.victim, Task::Boost(Lift::AboveAll));
            reaper.submit(token, &self.victim, Task::Thaw);
        }
        self.progress()
    }

    fn release(&mut self, reaper: &Reaper, token: u64) {
        let again = self.state != State::Struck;
        let task = if self.help.boost && !again { Task::Expedite } else { Task::Release };
        let taken = reaper.submit(token, &self.victim, task);
        self.state = if taken { State::Releasing } else { State::Waiting };
    }

    /// Takes a reaper's result.
    pub fn helped(&mut self, now_ns: u64, done: Done) -> Progress {
        match done {
            Done::Boosted(boost) => self.boosts.push(boost),
            Done::Released(result) => {
                self.mrelease = Some(result);
                if self.state == State::Releasing {
                    self.state = match result {
                        Mrelease::Busy => State::Busy { until_ns: now_ns.saturating_add(AGAIN_NS) },
                        _ => State::Waiting,
                    };
                }
            }
        }
        self.progress()
    }

    /// The victim survives, as far as we wait: its threads get back what they had.
    pub fn give_up(&mut self) {
        for boost in &mut self.boosts {
            boost.undo();
        }
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
