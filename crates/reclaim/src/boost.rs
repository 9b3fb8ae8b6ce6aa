//! Helps a victim to die: its threads run before others, on any CPU, and it leaves a control group that
//! is frozen.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::cgroup::{self, Moved};
use crate::schedule::{ANY_CPU, Cpus, Schedule, run_on};
use crate::victim::Victim;

/// More threads than this are not gathered: by the time all of them were, the memory could be back.
pub(crate) const FEW_THREADS: usize = 8;

/// Room for the names of some twenty threads.
const LISTED_BYTES: usize = 512;

/// How far a victim's threads are raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lift {
    /// Before all ordinary threads: real-time.
    AboveAll,
    /// To where most threads are: for one of a crowd, which would leave nobody else a CPU.
    Ordinary,
}

/// What was done to a victim's threads. If it survives, [`undo`](Boost::undo) it.
#[derive(Debug)]
pub struct Boost {
    victim: Victim,
    tasks: Option<OwnedFd>,
    raised: Vec<(u32, Schedule)>,
    moved: Option<Moved>,
    refused: Option<Errno>,
}

impl Boost {
    /// Nothing done yet.
    pub(crate) fn of(victim: &Victim) -> Self {
        Self { victim: victim.clone(), tasks: None, raised: Vec::new(), moved: None, refused: None }
    }

    /// Raises all threads of a process that has been sent SIGKILL. What is refused is remembered in
    /// [`refused`](Boost::refused); a process that is gone needs nothing.
    pub fn raise(victim: &Victim) -> Self {
        Self::lift(victim, Lift::AboveAll)
    }

    pub(crate) fn lift(victim: &Victim, lift: Lift) -> Self {
        let mut boost = Self::of(victim);
        boost.find_threads(usize::MAX).into_iter().flatten().for_each(|tid| {
            boost.raise_thread(tid, ANY_CPU, lift);
        });
        boost
    }

    /// The same, but on a CPU that the caller, being real-time itself, does not leave to them: they
    /// neither let go of the memory nor get in the way of its release, and take over if the caller has
    /// to wait. To be [spread](Boost::spread) at the end. `None` if they are too many, or may not run
    /// there.
    pub(crate) fn gather(victim: &Victim, cpu: Cpus) -> Option<Self> {
        let mut boost = Self::of(victim);
        let tids = boost.find_threads(FEW_THREADS)?;
        tids.into_iter().for_each(|tid| boost.raise_thread(tid, cpu, Lift::AboveAll));
        if boost.refused.is_some() {
            boost.undo();
            return None;
        }
        Some(boost)
    }

    /// What was gathered may run on any CPU.
    pub(crate) fn spread(&self) {
        for (tid, _) in &self.raised {
            if self.has_thread(*tid) {
                // A thread that is gone needs nothing.
                let _ = run_on(*tid, &ANY_CPU);
            }
        }
    }

    /// The victim's threads, if they are so few; none of one that is gone.
    fn find_threads(&mut self, most: usize) -> Option<Vec<u32>> {
        let path = format!("/proc/{}/task", self.victim.pid());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(tasks) = rustix::fs::open(path, flags, Mode::empty()) else {
            return Some(Vec::new());
        };
        // The pid was still the victim's after its folder was opened: the folder is the victim's,
        // whoever has the pid later.
        if self.victim.has_exited() || !self.victim.has_its_pid() {
            return Some(Vec::new());
        }
        // A small buffer: of very many threads the kernel then lists no more than are wanted.
        let mut buffer = [MaybeUninit::uninit(); LISTED_BYTES];
        let mut entries = RawDir::new(tasks.as_fd(), &mut buffer);
        let mut tids = Vec::new();
        while let Some(Ok(entry)) = entries.next() {
            tids.extend(entry.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok()));
            if tids.len() > most {
                break;
            }
        }
        self.tasks = Some(tasks);
        (tids.len() <= most).then_some(tids)
    }

    /// Takes the victim out of a frozen control group of version 1, where no signal reaches it. In one
    /// of version 2 it dies frozen.
    pub fn thaw(&mut self) {
        match cgroup::leave_frozen(&self.victim) {
            Ok(moved) => self.moved = moved,
            Err(errno) => self.refused = Some(errno),
        }
    }

    /// How many threads were raised.
    pub fn threads(&self) -> usize {
        self.raised.len()
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
        if let Some(moved) = self.moved.take()
            && !self.victim.has_exited()
        {
            moved.back(self.victim.pid());
            self.victim.set_thawed(false);
        }
    }

    fn raise_thread(&mut self, tid: u32, cpus: Cpus, lift: Lift) {
        let Ok(mut before) = Schedule::of(tid) else { return };
        if self.victim.pid() == tid
            && let Some(cpus) = self.victim.free_on()
        {
            before = before.on(*cpus);
        }
        // The system calls know threads by numbers only, so it is looked at before and after. For
        // anybody else to be hit, the thread would have to end between two calls and all numbers to
        // come round in the same microseconds; even then it is taken back.
        if !self.has_thread(tid) {
            return;
        }
        let raised = match lift {
            Lift::AboveAll => before.raised(cpus),
            Lift::Ordinary => before.ordinary(cpus),
        };
        let mut done = raised.apply(tid);
        if done == Err(Errno::PERM) && lift == Lift::AboveAll {
            done = before.raised_a_little(cpus).apply(tid);
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
