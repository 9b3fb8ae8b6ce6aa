//! The gate between the allocator and the system: nothing is taken that was not granted.
//!
//! The fast path is one compare-and-swap in the page shared with the daemon; where the balance does
//! not suffice, the daemon is asked ([`Link`](crate::link)). Nothing here allocates.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use control::lease::Status;

use crate::link;
use crate::page::{Page, draw};

/// What this process has taken and not given back, bytes. At any time at least the truth: it goes
/// up before a balance goes down, and down after a balance went up.
static SPENT: AtomicU64 = AtomicU64::new(0);
/// Reserved for this process' next allocations, out of everybody else's reach, bytes.
static POOL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Reserved for this thread's next allocations, bytes.
    static TRANSACTION: Cell<u64> = const { Cell::new(0) };
}

/// Why memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// By the daemon.
    By(Status),
    /// The user is limited, and the daemon cannot be asked.
    Unreachable,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::By(status) => f.write_str(status.as_str()),
            Self::Unreachable => f.write_str("the user is limited, and headroom-oomd is gone"),
        }
    }
}

impl std::error::Error for Refused {}

/// What was taken and not given back, bytes.
pub(crate) fn spent() -> u64 {
    SPENT.load(Ordering::Acquire)
}

/// Takes memory for the allocator, reserved memory first. May ask the daemon.
pub(crate) fn take(bytes: u64) -> Result<(), Refused> {
    // Reserved memory is spent already.
    if draw_from_transaction(bytes) {
        return Ok(());
    }
    if POOL.load(Ordering::Relaxed) != 0 && draw(&POOL, bytes) {
        return Ok(());
    }
    take_waiting(bytes, 0)
}

/// Takes memory, waiting so long for others to give theirs back.
pub(crate) fn take_waiting(bytes: u64, wait_ms: u32) -> Result<(), Refused> {
    SPENT.fetch_add(bytes, Ordering::AcqRel);
    let mut deadline = None;
    while !draw(Page::current().balance(), bytes) {
        if let Err(refused) = link::refill(bytes, wait_ms, &mut deadline) {
            SPENT.fetch_sub(bytes, Ordering::AcqRel);
            return Err(refused);
        }
    }
    Ok(())
}

/// Gives memory back that the system has already.
pub(crate) fn give(bytes: u64) {
    let page = Page::current();
    // Before the first contact nothing was granted, so nothing can come back (a forked child frees
    // what its parent had).
    if page != Page::none() {
        page.balance().fetch_add(bytes, Ordering::AcqRel);
    }
    SPENT.fetch_sub(bytes, Ordering::AcqRel);
}

/// Puts reserved memory where the next allocations find it.
pub(crate) fn fill_pool(bytes: u64) {
    POOL.fetch_add(bytes, Ordering::AcqRel);
}

/// Puts reserved memory where only this thread's next allocations find it.
pub(crate) fn begin_transaction(bytes: u64) {
    TRANSACTION.with(|left| left.set(left.get() + bytes));
}

/// Takes at most so much of what this thread's transactions have left.
pub(crate) fn end_transaction(bytes: u64) -> u64 {
    TRANSACTION.with(|left| {
        let rest = left.get().min(bytes);
        left.set(left.get() - rest);
        rest
    })
}

fn draw_from_transaction(bytes: u64) -> bool {
    // A thread on its way out may have no such variable any more.
    let drawn = TRANSACTION.try_with(|left| {
        let rest = left.get().checked_sub(bytes).filter(|_| bytes > 0);
        rest.map(|rest| left.set(rest)).is_some()
    });
    drawn.unwrap_or(false)
}

/// A forked child has no lease.
pub(crate) fn forget_after_fork() {
    POOL.store(0, Ordering::Relaxed);
    TRANSACTION.with(|left| left.set(0));
}
