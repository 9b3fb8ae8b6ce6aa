//! Processes of one user that request far more memory, in small pieces, than its limit allows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use control::Uid;
use control::oomd::{Outcome, Why};
use headroom_linux::machine_memory::bytes_of;

use crate::child::{Child, SharedWords, unused_uid};
use crate::machine;
use crate::oomd::{Oomd, PATIENCE};

const PAGE: usize = 4096;
/// Size of a request, bytes.
pub const PIECE: usize = 4096;

/// The allocator under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The C library's `malloc`, which does not check limits.
    Malloc,
    /// tmalloc, which requests leases from the daemon.
    Tmalloc,
}

impl Subject {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Tmalloc => "tmalloc",
        }
    }

    /// # Safety
    /// As `malloc`.
    unsafe fn allocate(self, bytes: usize) -> *mut libc::c_void {
        // SAFETY: the same contract as this function's.
        unsafe {
            match self {
                Self::Malloc => libc::malloc(bytes),
                Self::Tmalloc => tmalloc::heap::malloc(bytes),
            }
        }
    }
}

/// The processes' requests, and the conditions of the run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The allocator under test.
    pub subject: Subject,
    /// Number of processes.
    pub processes: usize,
    /// Bytes that each process requests in all.
    pub wanted: u64,
    /// Limit of the processes' user, bytes.
    pub limit: u64,
    /// The run is aborted when less memory than this is available, MiB.
    pub keep_free_mib: u64,
    /// A refused process keeps its memory until all others were refused, too, instead of exiting.
    pub hold: bool,
}

/// Results of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Processes killed.
    pub kills: usize,
    /// Processes that did not exit with success, including the killed ones.
    pub failed: usize,
    /// Maximum of pages above the limit, at any time or at the decision to kill.
    pub pages_over: i64,
    /// Maximum share of the limit in use before the first kill; at most 1.
    pub usable_share: f64,
    /// Bytes allocated by all processes in total.
    pub granted: u64,
}

/// Of the words that parent and children share, the start signal.
const GO: usize = 0;
/// The number of refused processes.
const REFUSED: usize = 1;
/// The number of processes that have started and allocated their first piece.
const READY: usize = 2;
/// The first of those with the number of pieces that each child got.
const PIECES: usize = 3;

/// Forks a child that, after the start signal, allocates piece after piece, writes to each and
/// keeps it, until it has all that it wants or gets `NULL`. The caller must have one thread.
fn start_child(counts: &[AtomicU64], child: usize, uid: Uid, plan: &Plan) -> Result<Child> {
    let (go, refused, count) = (&counts[GO], &counts[REFUSED], &counts[PIECES + child]);
    // SAFETY: this program has one thread, so the child may go on as it likes; it never returns.
    if let Some(child) = unsafe { Child::fork(uid) }? {
        return Ok(child);
    }
    // SAFETY: each piece is written to within its length, and checked for NULL before.
    unsafe {
        // Memory that a process needs to start is not requested from the daemon. One piece is
        // allocated before the start signal, so that this memory is in place before the others fill
        // the limit.
        let first = plan.subject.allocate(PIECE);
        if first.is_null() {
            libc::_exit(4);
        }
        libc::memset(first, 1, PIECE);
        std::hint::black_box(first);
        counts[READY].fetch_add(1, Ordering::AcqRel);
        while go.load(Ordering::Acquire) == 0 {
            libc::sched_yield();
        }
        for _ in 0..plan.wanted / PIECE as u64 {
            let piece = plan.subject.allocate(PIECE);
            if piece.is_null() {
                refused.fetch_add(1, Ordering::AcqRel);
                break;
            }
            libc::memset(piece, 1, PIECE);
            // Prevents the compiler from removing a piece that is never read.
            std::hint::black_box(piece);
            count.fetch_add(1, Ordering::Relaxed);
        }
        while plan.hold && refused.load(Ordering::Acquire) < plan.processes as u64 {
            libc::usleep(500);
        }
        libc::_exit(0);
    }
}

/// Resident and swapped pages of all children, from `/proc/PID/status`; children that have exited
/// do not count.
fn resident_pages(children: &[Child]) -> i64 {
    let of = |child: &Child| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid())).ok()?;
        let bytes = ["RssAnon", "RssShmem", "VmSwap"].map(|key| bytes_of(&status, key));
        let sum = bytes.into_iter().sum::<Option<u64>>()?;
        Some(sum as i64 / PAGE as i64)
    };
    children.iter().filter_map(of).sum()
}

/// Starts the processes, which allocate concurrently, under a fresh daemon, and waits until
/// each has exited or was killed.
pub fn run(plan: &Plan) -> Result<Run> {
    let uid = unused_uid();
    let limit = format!("[[limit]]\nuser = {uid}\nhard = {}\n", plan.limit);
    let oomd = Oomd::start("auto", &limit)?;
    // SAFETY: this program has one thread.
    unsafe { std::env::set_var("HEADROOM_LEASE_SOCKET", oomd.lease_socket()) };
    let counts = SharedWords::new(PIECES + plan.processes)?;
    let children: Vec<Child> = (0..plan.processes)
        .map(|child| start_child(&counts, child, uid, plan))
        .collect::<Result<_>>()?;
    let start = Instant::now();
    while counts[READY].load(Ordering::Acquire) < plan.processes as u64 {
        anyhow::ensure!(start.elapsed() < PATIENCE, "the processes do not start");
        anyhow::ensure!(!children.iter().any(Child::has_ended), "a process ended as it started");
        std::thread::sleep(Duration::from_millis(1));
    }
    counts[GO].store(1, Ordering::Release);
    let granted = || -> u64 {
        let pieces = counts[PIECES..].iter().map(|pieces| pieces.load(Ordering::Relaxed));
        pieces.sum::<u64>() * PIECE as u64
    };
    let mut most_pages = 0;
    while !children.iter().all(Child::has_ended) {
        anyhow::ensure!(start.elapsed() < PATIENCE, "the processes do not end");
        let available = machine::available_mib()?;
        anyhow::ensure!(
            available > plan.keep_free_mib,
            "stopped: {available} MiB of memory are left, and {} are to be kept free",
            plan.keep_free_mib
        );
        if children.iter().any(|child| child.has_ended() && !child.ended_well()) {
            // A killed process is never refused: the others must not wait for it.
            counts[REFUSED].store(u64::MAX / 2, Ordering::Release);
        }
        if plan.subject == Subject::Tmalloc {
            most_pages = most_pages.max(resident_pages(&children));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let kills = children.iter().filter(|child| child.was_killed()).count();
    let records = records_of(&oomd, kills, start + PATIENCE)?;
    let peak = oomd.account(uid)?.peak_bytes;
    let limit_pages = plan.limit as i64 / PAGE as i64;
    let over = records.iter().map(|why| why.used_bytes as i64 - why.hard_bytes as i64).max();
    let mut pages_over = (over.unwrap_or(0) / PAGE as i64).max(0);
    if plan.subject == Subject::Tmalloc {
        pages_over = pages_over.max(most_pages.max(peak as i64 / PAGE as i64) - limit_pages);
    }
    // A kill means that the limit was exceeded: the usable memory is what was in use at that time.
    let in_use = records.last().map_or(peak, |first| first.used_bytes);
    Ok(Run {
        kills,
        failed: children.iter().filter(|child| !child.ended_well()).count(),
        pages_over: pages_over.max(0),
        usable_share: (in_use as f64 / plan.limit as f64).min(1.0),
        granted: granted(),
    })
}

/// The daemon's records, once they have as many kills as this and none is in progress.
fn records_of(oomd: &Oomd, kills: usize, until: Instant) -> Result<Vec<Why>> {
    loop {
        let records = oomd.records()?;
        let settled = records.iter().all(|why| why.outcome != Outcome::Dying);
        if settled && records.iter().flat_map(Why::killed).count() >= kills {
            return Ok(records);
        }
        anyhow::ensure!(Instant::now() < until, "{kills} died, but not by the daemon");
        std::thread::sleep(Duration::from_millis(5));
    }
}
