//! The page that the daemon shares with this process, and what stands in for it without one.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use control::lease::{UNLIMITED_BYTES, page};

/// A page of our own, of which only the words that are used exist.
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

/// Before the first contact: nothing may be taken.
static NONE: OwnPage = own_page(0);
/// Without a daemon: everything may.
static PLAIN: OwnPage = own_page(UNLIMITED_BYTES);
static CURRENT: AtomicPtr<u8> = AtomicPtr::new((&raw const NONE).cast::<u8>().cast_mut());

/// A page; lives for ever (another may take its place at the same address).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Page(*mut u8);

impl Page {
    /// The one that counts now.
    pub fn current() -> Self {
        Self(CURRENT.load(Ordering::Acquire))
    }

    /// Before the first contact.
    pub fn none() -> Self {
        Self((&raw const NONE).cast::<u8>().cast_mut())
    }

    /// Without a daemon.
    pub fn plain() -> Self {
        Self((&raw const PLAIN).cast::<u8>().cast_mut())
    }

    /// A page of the daemon's, mapped at `at` for good.
    pub fn mapped(at: *mut u8) -> Self {
        Self(at)
    }

    pub fn make_current(self) {
        CURRENT.store(self.0, Ordering::Release);
    }

    /// Where it is mapped; `None`: it is one of our own.
    pub fn address(self) -> Option<*mut u8> {
        (self != Self::none() && self != Self::plain()).then_some(self.0)
    }

    /// What may be taken without asking, bytes.
    pub fn balance(self) -> &'static AtomicU64 {
        // SAFETY: all pages have this word, aligned, and live for ever.
        unsafe { &*self.0.add(page::BALANCE).cast() }
    }

    /// The daemon asks for what is kept unused; said once.
    pub fn is_asked_back(self) -> bool {
        let recall = self.word(page::RECALL);
        recall.load(Ordering::Relaxed) != 0 && recall.swap(0, Ordering::Relaxed) != 0
    }

    fn word(self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: as above.
        unsafe { &*self.0.add(offset).cast() }
    }
}

/// Takes `bytes` from a balance if they are there.
#[inline]
pub(crate) fn draw(balance: &AtomicU64, bytes: u64) -> bool {
    let take = |there: u64| there.checked_sub(bytes);
    balance.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_ok()
}
