//! Processes of one user that ask for far more memory, in small pieces, than its limit allows.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::oomd::Outcome;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::child::{Child, become_user, nobodys_uid};
use crate::machine;
use crate::oomd::{Oomd, PATIENCE};

const PAGE: usize = 4096;
/// A process asks for so many bytes at a time.
pub const PIECE: usize = 4096;

/// What the processes ask for, and under what.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many there are.
    pub processes: usize,
    /// What each of them wants, bytes.
    pub wanted: u64,
    /// The limit of their user, bytes.
    pub limit: u64,
    /// Below so much available memory it is all stopped, MiB.
    pub keep_free_mib: u64,
}

/// What one run showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Processes killed.
    pub kills: usize,
    /// The most pages above the limit when a kill was decided; 0 when none was.
    pub pages_over: i64,
    /// Share of the limit that was in use when somebody was first refused or killed; at most 1.
    pub usable_share: f64,
    /// Bytes that all of them got in their lives.
    pub granted: u64,
}

/// A page that parent and children share: the start signal, then the pieces that each child got.
struct Counts(&'static [AtomicU64]);

impl Counts {
    fn new() -> Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new page of zeros, unmapped on drop only; atomics may be shared with the children.
        let words = unsafe {
            let at = mmap_anonymous(std::ptr::null_mut(), PAGE, prot, flags).context("a page")?;
            std::slice::from_raw_parts(at.cast::<AtomicU64>(), PAGE / 8)
        };
        Ok(Self(words))
    }

    fn go(&self) -> &AtomicU64 {
        &self.0[0]
    }

    fn of(&self, child: usize) -> &'static AtomicU64 {
        &self.0[1 + child]
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        // SAFETY: the page mapped in `new`; nothing refers to it after this.
        let _ = unsafe { munmap(self.0.as_ptr().cast_mut().cast(), PAGE) };
    }
}

/// The most processes that a [`Plan`] may have: as many as have room for their counts.
pub const MAX_PROCESSES: u16 = 256;

/// A child that, once told to go, asks `malloc` for piece after piece, writes to each and keeps it, until
/// it has what it wanted or gets `NULL`. To be called while there is one thread.
fn start_child(counts: &Counts, child: usize, uid: u32, wanted: u64) -> Result<Child> {
    let count = counts.of(child);
    let parent = std::process::id();
    // SAFETY: this program has one thread, so the child may go on as it likes; it never returns.
    let pid = unsafe { libc::fork() };
    anyhow::ensure!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid > 0 {
        return Ok(Child::of(pid));
    }
    // SAFETY: a fresh fork; each piece is written to within its length, and checked for NULL before.
    unsafe {
        become_user(uid, parent);
        while counts.go().load(Ordering::Acquire) == 0 {
            libc::sched_yield();
        }
        for _ in 0..wanted / PIECE as u64 {
            let piece = libc::malloc(PIECE);
            if piece.is_null() {
                break;
            }
            libc::memset(piece, 1, PIECE);
            // Or the compiler might leave out a piece that nobody reads.
            std::hint::black_box(piece);
            count.fetch_add(1, Ordering::Relaxed);
        }
        libc::_exit(0);
    }
}

/// Has the processes ask, all at once, under a fresh daemon that watches with `notifier`. They go on
/// until each has been killed or has ended.
pub fn run(program: &PathBuf, notifier: &str, plan: &Plan) -> Result<Run> {
    let oomd = Oomd::start(program, notifier)?;
    let uid = nobodys_uid();
    oomd.limit(uid, plan.limit)?;
    let counts = Counts::new()?;
    let children: Vec<Child> = (0..plan.processes)
        .map(|child| start_child(&counts, child, uid, plan.wanted))
        .collect::<Result<_>>()?;
    counts.go().store(1, Ordering::Release);
    let start = Instant::now();
    while !children.iter().all(Child::has_ended) {
        anyhow::ensure!(start.elapsed() < PATIENCE, "the processes do not end");
        let available = machine::available_mib()?;
        anyhow::ensure!(
            available > plan.keep_free_mib,
            "stopped: {available} MiB of memory are left, and {} are to be kept free",
            plan.keep_free_mib
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    let kills = children.iter().filter(|child| child.was_killed()).count();
    let records = loop {
        let records = oomd.records()?;
        let settled = records.iter().all(|why| why.outcome != Outcome::Dying);
        if settled && records.iter().filter(|why| why.victim.is_some()).count() >= kills {
            break records;
        }
        anyhow::ensure!(start.elapsed() < PATIENCE, "{kills} died, but not by the daemon");
        std::thread::sleep(Duration::from_millis(5));
    };
    let granted = (0..plan.processes).map(|child| counts.of(child).load(Ordering::Relaxed));
    let granted = granted.sum::<u64>() * PIECE as u64;
    // Without a kill everybody still had all of it when the first one was refused or ended.
    let in_use = records.last().map_or(granted, |first| first.used_bytes);
    let over = records.iter().map(|why| why.used_bytes as i64 - why.hard_bytes as i64).max();
    Ok(Run {
        kills,
        pages_over: over.unwrap_or(0) / PAGE as i64,
        usable_share: (in_use as f64 / plan.limit as f64).min(1.0),
        granted,
    })
}
