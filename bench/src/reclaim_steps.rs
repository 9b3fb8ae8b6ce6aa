//! Steps that can speed up the exit of a killed process, one at a time, for `reclaim --steps`.
//!
//! `crates/reclaim` ships the effective ones; `docs/design/reclaim.md` has the figures of all.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use reclaim::{Mrelease, Victim, mrelease};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::control_group::ControlGroup;
use crate::victims::{resident, timespec};

/// Victims with more threads than this are not confined: setting affinities takes longer than it
/// saves.
const MAX_CONFINED: usize = 8;
/// Tries of `process_mrelease` while it returns `EAGAIN`, and the pause between them.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);

/// Which thread calls `process_mrelease`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reap {
    /// No thread.
    Never,
    /// The thread that sent the signal.
    Caller,
    /// A waiting thread.
    Thread,
    /// A waiting thread, which also sends the signal.
    ThreadThatSignals,
}

/// When the victim's threads become `SCHED_FIFO` and may run on any CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boost {
    /// Never.
    Never,
    /// With the signal, by a thread of its own.
    AtOnce,
    /// If `process_mrelease` came too late.
    WhenLate,
    /// After `process_mrelease`, whatever its result.
    AfterReap,
    /// After `process_mrelease`, on the CPUs that they may use already.
    AfterReapInPlace,
    /// After `process_mrelease`, on the CPUs that they may use already, with nice -20 instead of
    /// `SCHED_FIFO`.
    NiceAfterReap,
}

/// When the victim's threads are bound to the CPU of the real-time reaper, which preempts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confine {
    /// Never.
    Never,
    /// The main thread, before the signal.
    BeforeSignal,
    /// All threads, before `process_mrelease`; they are `SCHED_FIFO` as well.
    BeforeReap,
    /// Both.
    BeforeBoth,
}

/// When the victim leaves a frozen control group of version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thaw {
    /// Never.
    Never,
    /// After `process_mrelease`.
    AfterReap,
}

/// A combination of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// The thread that reaps.
    pub reap: Reap,
    /// When the victim is boosted.
    pub boost: Boost,
    /// When the victim is confined.
    pub confine: Confine,
    /// When the victim is thawed.
    pub thaw: Thaw,
}

impl Steps {
    /// The signal alone.
    pub const SIGNAL: Self =
        Self { reap: Reap::Never, boost: Boost::Never, confine: Confine::Never, thaw: Thaw::Never };
    /// The signal, then `process_mrelease` from a waiting thread.
    pub const REAP: Self = Self { reap: Reap::Thread, ..Self::SIGNAL };

    fn confines_before_signal(self) -> bool {
        matches!(self.confine, Confine::BeforeSignal | Confine::BeforeBoth)
    }

    fn confines_before_reap(self) -> bool {
        matches!(self.confine, Confine::BeforeReap | Confine::BeforeBoth)
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A reaper thread and a booster thread, with the scheduling of the thread that starts them.
pub struct Workers {
    reaper: Sender<Job>,
    booster: Sender<Job>,
    results: Receiver<(u64, Mrelease)>,
    answer: Sender<(u64, Mrelease)>,
    done: Arc<OwnedFd>,
}

impl Workers {
    /// Starts both.
    pub fn start() -> Result<Self> {
        let done = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?;
        let (answer, results) = channel();
        let [reaper, booster] = [worker()?, worker()?];
        Ok(Self { reaper, booster, results, answer, done: Arc::new(done) })
    }
}

fn worker() -> Result<Sender<Job>> {
    let (jobs, queue) = channel::<Job>();
    let run = move || queue.into_iter().for_each(|job| job());
    std::thread::Builder::new().spawn(run).context("cannot start a thread")?;
    Ok(jobs)
}

/// Result of a kill.
pub struct Reclaimed {
    /// When the memory of all victims was back.
    pub back: Option<Instant>,
    /// Memory left to them at that time by `/proc/PID/statm`, bytes.
    pub left: Option<u64>,
    /// When all victims had exited.
    pub exited: Option<Instant>,
    /// `process_mrelease` calls that came after the victim had begun to free its memory itself.
    pub late: usize,
}

/// Kills the victims, takes the steps, and waits until all have exited or until `until`.
pub fn kill(
    victims: &[Victim],
    steps: Steps,
    group: Option<&ControlGroup>,
    workers: &Workers,
    until: Instant,
) -> Result<Reclaimed> {
    let confine = steps.confines_before_signal() && victims.len() == 1;
    // Discards late results of the previous round.
    workers.results.try_iter().for_each(drop);
    let mut mreleased = Vec::new();
    for (token, victim) in victims.iter().enumerate() {
        if confine {
            confine_first(victim);
        }
        if steps.reap != Reap::ThreadThatSignals {
            victim.send_kill().context("the victim")?;
        }
        match steps.reap {
            Reap::Never => {}
            Reap::Caller => mreleased.push((token as u64, reap(victim))),
            Reap::Thread | Reap::ThreadThatSignals => {
                let (victim, answer) = (victim.clone(), workers.answer.clone());
                let (done, leave) = (workers.done.clone(), group.and_then(ControlGroup::parent));
                let job = move || {
                    if steps.reap == Reap::ThreadThatSignals {
                        let _ = victim.send_kill();
                    }
                    expedite(&victim, steps, |result| {
                        let _ = answer.send((token as u64, result));
                        let _ = rustix::io::write(&*done, &1u64.to_ne_bytes());
                    });
                    if let (Thaw::AfterReap, Some(procs)) = (steps.thaw, leave) {
                        let _ = std::fs::write(procs, victim.pid().to_string());
                    }
                };
                workers.reaper.send(Box::new(job)).ok().context("the reaper")?;
            }
        }
        if steps.boost == Boost::AtOnce {
            let victim = victim.clone();
            workers
                .booster
                .send(Box::new(move || boost(&victim, Boost::AtOnce)))
                .ok()
                .context("the booster")?;
        }
    }
    wait(victims, workers, mreleased, until)
}

fn wait(
    victims: &[Victim],
    workers: &Workers,
    mreleased: Vec<(u64, Mrelease)>,
    until: Instant,
) -> Result<Reclaimed> {
    let mut reclaimed = Reclaimed { back: None, left: None, exited: None, late: 0 };
    let mut released = vec![false; victims.len()];
    let mut found = mreleased;
    loop {
        let _ = rustix::io::read(&*workers.done, &mut [0u8; 8]);
        found.extend(workers.results.try_iter());
        for (token, result) in found.drain(..) {
            released[token as usize] |= result == Mrelease::Freed;
            reclaimed.late += usize::from(result == Mrelease::LettingGo);
        }
        let exited: Vec<bool> = victims.iter().map(Victim::has_exited).collect();
        let now = Instant::now();
        let back = exited.iter().zip(&released).all(|(exited, released)| *exited || *released);
        if back && reclaimed.back.is_none() {
            reclaimed.back = Some(now);
            reclaimed.left = Some(victims.iter().map(|victim| resident(victim.pid())).sum());
        }
        let left = until.saturating_duration_since(now);
        if exited.iter().all(|exited| *exited) {
            reclaimed.exited = Some(now);
            return Ok(reclaimed);
        }
        if left.is_zero() {
            return Ok(reclaimed);
        }
        let pending = victims.iter().zip(&exited).filter(|(_, exited)| !**exited);
        let mut fds: Vec<PollFd> =
            pending.map(|(victim, _)| PollFd::new(victim, PollFlags::IN)).collect();
        fds.push(PollFd::new(&workers.done, PollFlags::IN));
        poll(&mut fds, Some(&timespec(left))).context("poll")?;
    }
}

/// Confines the victim, reaps it, and boosts it, as the steps require.
fn expedite(victim: &Victim, steps: Steps, answer: impl FnOnce(Mrelease)) {
    let own = sched_getaffinity(None);
    let mut confined = Vec::new();
    if steps.confines_before_reap() && !victim.has_exited() {
        let cpu = only(sched_getcpu());
        let tids = threads(victim);
        if tids.len() <= MAX_CONFINED && sched_setaffinity(None, &cpu).is_ok() {
            for tid in &tids {
                let _ = sched_setaffinity(Some(*tid), &cpu);
                set_fifo(*tid);
            }
            confined = tids;
        }
    }
    let result = reap(victim);
    answer(result);
    for tid in &confined {
        let _ = sched_setaffinity(Some(*tid), &all());
    }
    if let (false, Ok(own)) = (confined.is_empty(), own) {
        let _ = sched_setaffinity(None, &own);
    }
    let due = match steps.boost {
        Boost::Never | Boost::AtOnce => false,
        Boost::WhenLate => result == Mrelease::LettingGo,
        Boost::AfterReap | Boost::AfterReapInPlace | Boost::NiceAfterReap => true,
    };
    if due && !victim.has_exited() {
        boost(victim, steps.boost);
    }
}

fn reap(victim: &Victim) -> Mrelease {
    for _ in 1..TRIES {
        match mrelease(victim.as_fd()) {
            Mrelease::Busy if !victim.has_exited() => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    mrelease(victim.as_fd())
}

fn confine_first(victim: &Victim) {
    if let Some(tid) = Pid::from_raw(victim.pid() as i32)
        && threads(victim).len() <= MAX_CONFINED
    {
        let _ = sched_setaffinity(Some(tid), &only(sched_getcpu()));
    }
}

fn boost(victim: &Victim, boost: Boost) {
    for tid in threads(victim) {
        if !matches!(boost, Boost::AfterReapInPlace | Boost::NiceAfterReap) {
            let _ = sched_setaffinity(Some(tid), &all());
        }
        if boost == Boost::NiceAfterReap {
            set_nice(tid);
        } else {
            set_fifo(tid);
        }
    }
}

/// Ignores errors: a thread that has exited needs nothing.
fn set_fifo(tid: Pid) {
    let parameter = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads the structure, which is ours.
    let _ = unsafe {
        libc::sched_setscheduler(tid.as_raw_nonzero().get(), libc::SCHED_FIFO, &parameter)
    };
}

fn set_nice(tid: Pid) {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the structure, which is ours.
    let _ = unsafe {
        libc::sched_setscheduler(tid.as_raw_nonzero().get(), libc::SCHED_OTHER, &parameter)
    };
    let _ = rustix::process::setpriority_process(Some(tid), -20);
}

fn threads(victim: &Victim) -> Vec<Pid> {
    let entries = std::fs::read_dir(format!("/proc/{}/task", victim.pid()));
    let entries = entries.into_iter().flatten().flatten();
    let tids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    tids.filter_map(Pid::from_raw).collect()
}

fn only(cpu: usize) -> CpuSet {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    cpus
}

fn all() -> CpuSet {
    let mut cpus = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| cpus.set(cpu));
    cpus
}
