//! Processes of one user that together grow over its limit, and how the limit is enforced.
//!
//! Every process records when it touched each of its pages, so that the pages touched after the
//! limit was exceeded are measured independently of the daemon.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::Uid;
use control::oomd::{KilledBy, Outcome, Why};
use headroom_linux::clock::{epoch_micros, monotonic_ns};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::child::{Child, SharedWords, unused_uid};
use crate::memory::Pages;
use crate::oomd::{Oomd, PATIENCE};

const PAGE: usize = 4096;

/// What enforces the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The daemon, which watches in the kernel.
    Bpf,
    /// The daemon, which reads /proc on a timer.
    Proc,
    /// The BPF programs of a daemon that is stopped.
    Stopped,
}

impl Guard {
    /// Name in the results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpf => "headroom",
            Self::Proc => "headroom proc",
            Self::Stopped => "headroom stopped",
        }
    }
}

/// What the processes do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Their number.
    pub processes: u16,
    /// Their user's limit, bytes.
    pub limit_bytes: u64,
    /// From the last fork to the first page.
    pub rest: Duration,
    /// Which pages they touch.
    pub pages: Pages,
}

/// Results of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Pages above the limit when the daemon (or its BPF program) decided to kill.
    pub pages_over_at_kill: i64,
    /// These, and all pages that were touched from then until the signal or the victim's last page,
    /// whichever is later.
    pub pages_over_peak: i64,
    /// Processes killed, once all others had touched all of their pages.
    pub victims: usize,
    /// From exceeding the limit to the signal, microseconds.
    pub signal_us: u64,
    /// From the signal until the victim's memory was back, microseconds.
    pub memory_back_us: Option<u64>,
    /// The signal was sent by the BPF program in the kernel.
    pub by_kernel: bool,
}

/// Memory that parent and children share: the start signal, and a time for each page of each child.
struct Board {
    words: SharedWords,
    pages_each: usize,
}

impl Board {
    fn new(children: usize, pages_each: usize) -> Result<Self> {
        Ok(Self { words: SharedWords::new(1 + children * pages_each)?, pages_each })
    }

    fn go(&self) -> &AtomicU64 {
        &self.words[0]
    }

    fn of(&self, child: usize) -> &'static [AtomicU64] {
        let from = 1 + child * self.pages_each;
        &self.words[from..from + self.pages_each]
    }
}

/// Forks a child that touches its pages after the board's start signal, and then waits to be
/// killed. The caller must have one thread.
fn start_child(board: &Board, child: usize, uid: Uid, load: &Load) -> Result<Child> {
    let times = board.of(child);
    let Load { rest, pages, .. } = *load;
    let len = times.len() * PAGE;
    // SAFETY: this program has one thread, so the child may go on as it likes; it never returns.
    if let Some(child) = unsafe { Child::fork(uid) }? {
        return Ok(child);
    }
    // SAFETY: plain system calls with integers, and writes into a new mapping of that length.
    unsafe {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let Ok(memory) = mmap_anonymous(std::ptr::null_mut(), len, prot, flags) else {
            libc::_exit(4)
        };
        if pages == Pages::Huge {
            libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0);
            libc::madvise(memory, len, libc::MADV_HUGEPAGE);
        }
        // Also charges the child to its user: the account begins with the first change.
        memory.cast::<u8>().write_volatile(1);
        times[0].store(1, Ordering::Relaxed);
        while board.go().load(Ordering::Acquire) == 0 {
            if rest.is_zero() {
                libc::sched_yield();
            } else {
                libc::usleep(1000);
            }
        }
        for (page, time) in times.iter().enumerate().skip(1) {
            memory.cast::<u8>().add(page * PAGE).write_volatile(1);
            time.store(monotonic_ns(), Ordering::Relaxed);
        }
        loop {
            libc::pause();
        }
    }
}

/// Has processes of one user exceed its limit under a fresh guard. Together they allocate a
/// sixteenth more than the limit; without one of them they would stay below it. A single process
/// allocates twice the limit.
pub fn run(guard: Guard, load: &Load) -> Result<Run> {
    let (limit_bytes, processes) = (load.limit_bytes, usize::from(load.processes));
    let uid = unused_uid();
    let limit = format!("[[limit]]\nuser = {uid}\nhard = {limit_bytes}\n");
    let oomd = Oomd::start(if guard == Guard::Proc { "proc" } else { "bpf" }, &limit)?;
    let share = limit_bytes as usize / PAGE / processes;
    let pages = if processes == 1 { share * 2 } else { share + share / 16 };
    let board = Board::new(processes, pages)?;
    let children: Vec<Child> =
        (0..processes).map(|child| start_child(&board, child, uid, load)).collect::<Result<_>>()?;
    let start = Instant::now();
    while (0..processes).any(|child| board.of(child)[0].load(Ordering::Relaxed) == 0) {
        anyhow::ensure!(start.elapsed() < PATIENCE, "the children do not start");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(load.rest);
    // Processes that are not killed continue to their last page; this must not cause another kill.
    if guard == Guard::Stopped {
        oomd.stop();
        board.go().store(1, Ordering::Release);
        let victims = count_victims(&board, &children, Some(first_to_end(&children)?));
        oomd.go_on();
        let run = evaluate(&board, &children, &oomd.first_kill_ended()?, victims)?;
        // The daemon, stopped meanwhile, noticed the release only much later.
        return Ok(Run { memory_back_us: None, ..run });
    }
    board.go().store(1, Ordering::Release);
    let why = oomd.first_kill_ended()?;
    let first = why.victim.as_ref().map(|victim| victim.pid);
    let victims = count_victims(&board, &children, first);
    evaluate(&board, &children, &why, victims)
}

/// The pid of the first child that is killed.
fn first_to_end(children: &[Child]) -> Result<u32> {
    let start = Instant::now();
    loop {
        if let Some(child) = children.iter().find(|child| child.has_ended()) {
            return Ok(child.pid());
        }
        anyhow::ensure!(start.elapsed() < PATIENCE, "no process was killed");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Counts the killed children once all others have touched all of their pages.
fn count_victims(board: &Board, children: &[Child], first: Option<u32>) -> usize {
    let start = Instant::now();
    loop {
        let done = |child: usize| {
            board.of(child).last().is_some_and(|time| time.load(Ordering::Relaxed) > 0)
        };
        let victims = children.iter().filter(|child| child.has_ended()).count();
        // The first victim's memory is back, but its exit may still be in progress.
        let all = (0..children.len()).all(|child| {
            let dying = Some(children[child].pid()) == first;
            (done(child) && !dying) || children[child].has_ended()
        });
        if all || start.elapsed() > PATIENCE {
            return victims;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn evaluate(board: &Board, children: &[Child], why: &Why, victims: usize) -> Result<Run> {
    let victim = why.victim.as_ref().with_context(|| format!("no victim: {why:?}"))?;
    let known = children.iter().any(|child| child.pid() == victim.pid);
    anyhow::ensure!(known, "another process was killed: {why:?}");
    let signal_us = why.decide_micros.unwrap_or_default();
    // The record has the time of the signal on the realtime clock, the board on the monotonic one.
    let offset_us = epoch_micros() as i64 - (monotonic_ns() / 1000) as i64;
    let broken_ns = (why.at_micros as i64 - offset_us - signal_us as i64) as u64 * 1000;
    let mut touched: Vec<u64> = (0..children.len())
        .flat_map(|child| board.of(child).iter().skip(1))
        .map(|time| time.load(Ordering::Relaxed))
        .collect();
    let of_victim = children.iter().position(|child| child.pid() == victim.pid);
    let last = of_victim.and_then(|child| {
        board.of(child).iter().skip(1).map(|time| time.load(Ordering::Relaxed)).max()
    });
    let end = last.unwrap_or(0).max(broken_ns + signal_us * 1000);
    touched.retain(|time| (broken_ns..=end).contains(time));
    let over = (why.used_bytes as i64 - why.hard_bytes as i64) / PAGE as i64;
    Ok(Run {
        pages_over_at_kill: over,
        pages_over_peak: over + touched.len() as i64,
        victims,
        signal_us,
        memory_back_us: match why.outcome {
            Outcome::Reclaimed { micros, .. } => Some(micros),
            _ => None,
        },
        by_kernel: why.killer == Some(KilledBy::Kernel),
    })
}
