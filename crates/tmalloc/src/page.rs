//! The page that the daemon shares with this process, and its replacements without a daemon.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use control::lease::{UNLIMITED_BYTES, page};

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
pub(crate) fn draw(balance: &AtomicU64, bytes: u64) -> bool {
    let take = |there: u64| there.checked_sub(bytes);
    balance.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_ok()
}
