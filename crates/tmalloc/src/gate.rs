//! The gate between the allocator and the system: only granted memory is taken.
//!
//! The fast path is one compare-and-swap in the page shared with the daemon; if the balance is too
//! small, a request is sent to the daemon ([`Link`](crate::link)). The gate does not allocate.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use control::lease::Status;

use crate::link;
use crate::page::{Page, draw};

/// Memory that this process has taken and not returned, bytes. Never below the actual value: it is
/// incremented before a balance is decremented, and decremented after a balance is incremented.
static SPENT: AtomicU64 = AtomicU64::new(0);
/// Reserved for this process's next allocations, and unavailable to other processes, bytes.
static POOL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Reserved for this thread's next allocations, bytes.
    static TRANSACTION: Cell<u64> = const { Cell::new(0) };
}

/// Reason why memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Refused by the daemon.
    By(Status),
    /// The user is limited, and the daemon cannot be reached.
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

/// Memory that was taken and not returned, bytes.
pub(crate) fn spent() -> u64 {
    SPENT.load(Ordering::Acquire)
}

/// Takes memory for the allocator, reserved memory first. May send a request to the daemon.
pub(crate) fn take(bytes: u64) -> Result<(), Refused> {
    // Reserved memory is included in `SPENT` already.
    if draw_from_transaction(bytes) {
        return Ok(());
    }
    if POOL.load(Ordering::Relaxed) != 0 && draw(&POOL, bytes) {
        return Ok(());
    }
    take_waiting(bytes, 0)
}

/// Takes memory; waits up to `wait_ms` for other processes to return some.
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

/// Returns memory that was already released to the system.
pub(crate) fn release(bytes: u64) {
    let page = Page::current();
    // Before the first connection nothing was granted, so no balance grows (a forked child frees
    // memory that its parent had taken).
    if page != Page::none() {
        page.balance().fetch_add(bytes, Ordering::AcqRel);
    }
    SPENT.fetch_sub(bytes, Ordering::AcqRel);
}

/// Adds reserved memory to the pool for the next allocations of any thread.
pub(crate) fn fill_pool(bytes: u64) {
    POOL.fetch_add(bytes, Ordering::AcqRel);
}

/// Adds reserved memory for the next allocations of this thread only.
pub(crate) fn begin_transaction(bytes: u64) {
    TRANSACTION.with(|left| left.set(left.get() + bytes));
}

/// Removes at most `bytes` of the memory that is left of this thread's transactions.
pub(crate) fn end_transaction(bytes: u64) -> u64 {
    TRANSACTION.with(|left| {
        let rest = left.get().min(bytes);
        left.set(left.get() - rest);
        rest
    })
}

fn draw_from_transaction(bytes: u64) -> bool {
    // In a thread that is exiting the variable may be destroyed already.
    let drawn = TRANSACTION.try_with(|left| {
        let rest = left.get().checked_sub(bytes).filter(|_| bytes > 0);
        rest.map(|rest| left.set(rest)).is_some()
    });
    drawn.unwrap_or(false)
}

/// Resets the reservations: a forked child has no lease.
pub(crate) fn forget_after_fork() {
    POOL.store(0, Ordering::Relaxed);
    TRANSACTION.with(|left| left.set(0));
}
