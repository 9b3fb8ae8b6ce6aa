//! Processes of one user that ask for far more memory, in small pieces, than its limit allows.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::Uid;
use control::oomd::Outcome;
use machine_memory::text::bytes_of;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::child::{Child, become_user, nobodys_uid};
use crate::machine;
use crate::oomd::{Oomd, PATIENCE};

const PAGE: usize = 4096;
/// A process asks for so many bytes at a time.
pub const PIECE: usize = 4096;

/// The allocator under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The C library's `malloc`, which does not know of limits.
    Malloc,
    /// tmalloc, which asks the daemon.
    Tmalloc,
}

impl Subject {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Tmalloc => "tmalloc",
        }
    }

    /// # Safety
    /// As `malloc`.
    unsafe fn allocate(self, bytes: usize) -> *mut libc::c_void {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::Malloc => libc::malloc(bytes),
                Self::Tmalloc => tmalloc::heap::malloc(bytes),
            }
        }
    }
}

/// What the processes ask for, and under what.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The allocator under test.
    pub subject: Subject,
    /// How many there are.
    pub processes: usize,
    /// What each of them wants, bytes.
    pub wanted: u64,
    /// The limit of their user, bytes.
    pub limit: u64,
    /// Below so much available memory it is all stopped, MiB.
    pub keep_free_mib: u64,
    /// Who is refused keeps what it has until all the others were refused, too, instead of ending.
    pub hold: bool,
    /// The daemon is killed in the middle, and another one started in its place.
    pub replace_daemon: bool,
}

/// What one run showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Processes killed.
    pub kills: usize,
    /// Processes that ended otherwise than by themselves, killed ones included.
    pub failed: usize,
    /// The most pages above the limit at any time, or when a kill was decided.
    pub pages_over: i64,
    /// Share of the limit that was in use at the most before anybody was killed; at most 1.
    pub usable_share: f64,
    /// Bytes that all of them got in their lives.
    pub granted: u64,
}

/// A page that parent and children share: the start signal, then the pieces that each child got.
struct Counts(&'static [AtomicU64]);

impl Counts {
    fn new() -> Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new page of zeros, unmapped on drop only; atomics may be shared with the
        // children.
        let words = unsafe {
            let at = mmap_anonymous(std::ptr::null_mut(), PAGE, prot, flags).context("a page")?;
            std::slice::from_raw_parts(at.cast::<AtomicU64>(), PAGE / 8)
        };
        Ok(Self(words))
    }

    fn go(&self) -> &'static AtomicU64 {
        &self.0[0]
    }

    /// How many were refused.
    fn refused(&self) -> &'static AtomicU64 {
        &self.0[1]
    }

    /// How many have started, and have their first piece.
    fn ready(&self) -> &'static AtomicU64 {
        &self.0[2]
    }

    fn of(&self, child: usize) -> &'static AtomicU64 {
        &self.0[3 + child]
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

/// A child that, once told to go, asks for piece after piece, writes to each and keeps it, until it
/// has what it wanted or gets `NULL`. To be called while there is one thread.
fn start_child(counts: &Counts, child: usize, uid: Uid, plan: &Plan) -> Result<Child> {
    let (go, refused, count) = (counts.go(), counts.refused(), counts.of(child));
    let ready = counts.ready();
    let parent = std::process::id();
    // SAFETY: this program has one thread, so the child may go on as it likes; it never returns.
    let pid = unsafe { libc::fork() };
    anyhow::ensure!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid > 0 {
        return Ok(Child::of(pid));
    }
    // SAFETY: a fresh fork; each piece is written to within its length, and checked for NULL
    // before.
    unsafe {
        become_user(uid, parent);
        // A program has some memory before it comes to ask for more; what it takes to start is not
        // asked for, and has its place before the others fill the limit.
        let first = plan.subject.allocate(PIECE);
        if first.is_null() {
            libc::_exit(4);
        }
        libc::memset(first, 1, PIECE);
        std::hint::black_box(first);
        ready.fetch_add(1, Ordering::AcqRel);
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
            // Or the compiler might leave out a piece that nobody reads.
            std::hint::black_box(piece);
            count.fetch_add(1, Ordering::Relaxed);
        }
        while plan.hold && refused.load(Ordering::Acquire) < plan.processes as u64 {
            libc::usleep(500);
        }
        libc::_exit(0);
    }
}

/// What the children have by `/proc`'s word, pages; those who exit meanwhile count as far as they
/// are still there.
fn resident_pages(children: &[Child]) -> i64 {
    let of = |child: &Child| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.pid())).ok()?;
        let bytes = ["RssAnon", "RssShmem", "VmSwap"].map(|key| bytes_of(&status, key));
        let sum = bytes.into_iter().sum::<Option<u64>>()?;
        Some(sum as i64 / PAGE as i64)
    };
    children.iter().filter_map(of).sum()
}

/// Has the processes ask, all at once, under a fresh daemon that watches with `notifier`. They go
/// on until each has been killed or has ended.
pub fn run(program: &Path, notifier: &str, plan: &Plan) -> Result<Run> {
    let uid = nobodys_uid();
    let limit = format!("[[limit]]\nuser = {uid}\nhard = {}\n", plan.limit);
    let mut oomd = Oomd::start_with(program, notifier, &limit)?;
    // SAFETY: this program has one thread.
    unsafe { std::env::set_var("HEADROOM_LEASE_SOCKET", oomd.lease_socket()) };
    let counts = Counts::new()?;
    let children: Vec<Child> = (0..plan.processes)
        .map(|child| start_child(&counts, child, uid, plan))
        .collect::<Result<_>>()?;
    let start = Instant::now();
    while counts.ready().load(Ordering::Acquire) < plan.processes as u64 {
        anyhow::ensure!(start.elapsed() < PATIENCE, "the processes do not start");
        anyhow::ensure!(!children.iter().any(Child::has_ended), "a process ended as it started");
        std::thread::sleep(Duration::from_millis(1));
    }
    counts.go().store(1, Ordering::Release);
    let granted = || -> u64 {
        let pieces = (0..plan.processes).map(|child| counts.of(child).load(Ordering::Relaxed));
        pieces.sum::<u64>() * PIECE as u64
    };
    let (mut most_pages, mut peak, mut replaced) = (0, 0, false);
    while !children.iter().all(Child::has_ended) {
        anyhow::ensure!(start.elapsed() < PATIENCE, "the processes do not end");
        let available = machine::available_mib()?;
        anyhow::ensure!(
            available > plan.keep_free_mib,
            "stopped: {available} MiB of memory are left, and {} are to be kept free",
            plan.keep_free_mib
        );
        if plan.replace_daemon && !replaced && granted() > plan.limit / 4 {
            replaced = true;
            peak = oomd.account(uid)?.peak_bytes;
            oomd.replace(Duration::from_millis(20))?;
        }
        if children.iter().any(|child| child.has_ended() && !child.ended_well()) {
            // One that was killed will not be refused any more: nobody waits for it.
            counts.refused().store(u64::MAX / 2, Ordering::Release);
        }
        if plan.subject == Subject::Tmalloc {
            most_pages = most_pages.max(resident_pages(&children));
        }
        std::thread::sleep(Duration::from_millis(1));
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
    peak = peak.max(oomd.account(uid)?.peak_bytes);
    let limit_pages = plan.limit as i64 / PAGE as i64;
    let over = records.iter().map(|why| why.used_bytes as i64 - why.hard_bytes as i64).max();
    let mut pages_over = (over.unwrap_or(0) / PAGE as i64).max(0);
    if plan.subject == Subject::Tmalloc {
        pages_over = pages_over.max(most_pages.max(peak as i64 / PAGE as i64) - limit_pages);
    }
    // Who is killed has broken the limit, so what was usable is what was in use then.
    let in_use = records.last().map_or(peak, |first| first.used_bytes);
    Ok(Run {
        kills,
        failed: children.iter().filter(|child| !child.ended_well()).count(),
        pages_over: pages_over.max(0),
        usable_share: (in_use as f64 / plan.limit as f64).min(1.0),
        granted: granted(),
    })
}
