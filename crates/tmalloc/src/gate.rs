//! The gate between the allocator and the system: only granted memory is taken.
//!
//! The fast path is one compare-and-swap in the page that the daemon shares with this process, or
//! in its replacement without a daemon; if the balance is too small, a request is sent to the
//! daemon ([`Link`](crate::link)). The gate does not allocate.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use control::lease::{Status, UNLIMITED_BYTES, page};

use crate::link;

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

/// Takes memory for the allocator, reserved memory first, or returns the reason for refusing. May
/// send a request to the daemon. Memory that was taken may be touched at any time.
pub fn take(bytes: u64) -> Result<(), Refused> {
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

/// Returns memory that was taken and is not resident any more.
pub fn release(bytes: u64) {
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

/// A private page; it has only the words that are used.
#[repr(C, align(64))]
struct OwnPage {
    balance: AtomicU64,
    unused: [u64; 7],
    limited: AtomicU32,
    recall: AtomicU32,
}

const _: () = assert!(std::mem::offset_of!(OwnPage, balance) == page::BALANCE);
const _: () = assert!(std::mem::offset_of!(OwnPage, limited) == page::LIMITED);
const _: () = assert!(std::mem::offset_of!(OwnPage, recall) == page::RECALL);

const fn own_page(balance: u64) -> OwnPage {
    OwnPage {
        balance: AtomicU64::new(balance),
        unused: [0; 7],
        limited: AtomicU32::new(0),
        recall: AtomicU32::new(0),
    }
}

/// Before the first connection: no memory may be taken.
static NONE: OwnPage = own_page(0);
/// Without a daemon: any amount may be taken.
static PLAIN: OwnPage = own_page(UNLIMITED_BYTES);
static CURRENT: AtomicPtr<u8> = AtomicPtr::new((&raw const NONE).cast::<u8>().cast_mut());

/// A page; never unmapped while in use (another one may replace it at the same address).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page(*mut u8);

impl Page {
    /// The page in use.
    pub fn current() -> Self {
        Self(CURRENT.load(Ordering::Acquire))
    }

    /// The page before the first connection.
    pub fn none() -> Self {
        Self((&raw const NONE).cast::<u8>().cast_mut())
    }

    /// The page without a daemon.
    pub fn plain() -> Self {
        Self((&raw const PLAIN).cast::<u8>().cast_mut())
    }

    /// A shared page of the daemon, mapped at `at` permanently.
    pub fn mapped(at: *mut u8) -> Self {
        Self(at)
    }

    pub fn make_current(self) {
        CURRENT.store(self.0, Ordering::Release);
    }

    /// The address of the mapping; `None`: it is a private page.
    pub fn address(self) -> Option<*mut u8> {
        (self != Self::none() && self != Self::plain()).then_some(self.0)
    }

    /// Memory that may be taken without a request, bytes.
    pub fn balance(self) -> &'static AtomicU64 {
        // SAFETY: all pages have this word, aligned, and live for ever.
        unsafe { &*self.0.add(page::BALANCE).cast() }
    }

    /// The daemon requests the return of unused memory; `true` once per request.
    pub fn take_recall(self) -> bool {
        let recall = self.word(page::RECALL);
        recall.load(Ordering::Relaxed) != 0 && recall.swap(0, Ordering::Relaxed) != 0
    }

    fn word(self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.0.add(offset).cast() }
    }
}

/// Takes `bytes` from a balance if it is sufficient.
#[inline]
fn draw(balance: &AtomicU64, bytes: u64) -> bool {
    let take = |there: u64| there.checked_sub(bytes);
    balance.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_ok()
}
