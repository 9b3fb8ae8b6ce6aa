//! Helps a victim to die: its threads run before others, on any CPU, and it leaves a control group that
//! is frozen.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::cgroup::{self, Moved};
use crate::schedule::Schedule;
use crate::victim::Victim;

/// What was done to a victim's threads. If it survives, [`undo`](Boost::undo) it.
#[derive(Debug, Default)]
pub struct Boost {
    victim: Option<Victim>,
    tasks: Option<OwnedFd>,
    raised: Vec<(u32, Schedule)>,
    moved: Option<Moved>,
    refused: Option<Errno>,
}

impl Boost {
    /// Nothing done yet.
    pub(crate) fn of(victim: &Victim) -> Self {
        Self { victim: Some(victim.clone()), ..Self::default() }
    }

    /// Raises all threads of a process that has been sent SIGKILL. What is refused is remembered in
    /// [`refused`](Boost::refused); a process that is gone needs nothing.
    pub fn raise(victim: &Victim) -> Self {
        let mut boost = Self::of(victim);
        let path = format!("/proc/{}/task", victim.pid());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(tasks) = rustix::fs::open(path, flags, Mode::empty()) else { return boost };
        // The pid was still the victim's after its folder was opened: the folder is the victim's,
        // whoever has the pid later.
        if victim.has_exited() || !victim.has_its_pid() {
            return boost;
        }
        if let Ok(entries) = Dir::read_from(&tasks) {
            boost.tasks = Some(tasks);
            for entry in entries.flatten() {
                if let Some(tid) = entry.file_name().to_str().ok().and_then(|s| s.parse().ok()) {
                    boost.raise_thread(tid);
                }
            }
        }
        boost
    }

    /// Takes the victim out of a frozen control group of version 1, where no signal reaches it. In one
    /// of version 2 it dies frozen.
    pub fn thaw(&mut self) {
        let Some(victim) = &self.victim else { return };
        match cgroup::leave_frozen(victim) {
            Ok(moved) => self.moved = moved,
            Err(errno) => self.refused = Some(errno),
        }
    }

    /// How many threads were raised.
    pub fn threads(&self) -> usize {
        self.raised.len()
    }

    /// It was taken out of a frozen control group.
    pub fn thawed(&self) -> bool {
        self.moved.is_some()
    }

    /// The system's last refusal, if any: most often that we have no right to raise anybody.
    pub fn refused(&self) -> Option<Errno> {
        self.refused
    }

    /// Gives a victim that survives what it had.
    pub fn undo(&mut self) {
        for (tid, before) in std::mem::take(&mut self.raised) {
            if self.has_thread(tid) {
                // A thread that is gone needs nothing.
                let _ = before.apply(tid);
            }
        }
        if let (Some(moved), Some(victim)) = (self.moved.take(), &self.victim)
            && !victim.has_exited()
        {
            moved.back(victim.pid());
        }
    }

    fn raise_thread(&mut self, tid: u32) {
        let Ok(before) = Schedule::of(tid) else { return };
        // The system calls know threads by numbers only, so it is looked at before and after. For
        // anybody else to be hit, the thread would have to end between two calls and all numbers to
        // come round in the same microseconds; even then it is taken back.
        if !self.has_thread(tid) {
            return;
        }
        let mut done = before.raised().apply(tid);
        if done == Err(Errno::PERM) {
            done = before.raised_a_little().apply(tid);
        }
        match done {
            Ok(()) if self.has_thread(tid) => self.raised.push((tid, before)),
            Ok(()) => drop(before.apply(tid)),
            Err(Errno::SRCH) => {}
            Err(errno) => self.refused = Some(errno),
        }
    }

    fn has_thread(&self, tid: u32) -> bool {
        let Some(tasks) = &self.tasks else { return false };
        let (tasks, name) = (tasks.as_fd(), tid.to_string());
        rustix::fs::statat(tasks, name.as_str(), AtFlags::empty()).is_ok()
    }
}
