//! The word by which all rings of an owner wake the daemon.
//!
//! The daemon sleeps on one word for each owner instead of one for each ring, since the kernel's
//! work of a wait grows with the number of words. Every client of the owner can write the word: a
//! hostile one can delay calls of its own owner only, until their threads make requests instead.

use super::atomics::{AtomicU32, Ordering, fence};

/// The daemon sleeps.
const ASLEEP: u32 = 1;
/// Added by a client, so that a daemon that is about to sleep does not.
const RUNG: u32 = 2;

/// See the module's documentation. It may have any value: the other side may be hostile.
#[derive(Debug)]
#[repr(transparent)]
pub struct Doorbell(AtomicU32);

impl Doorbell {
    /// Where nobody sleeps.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sets any value, as a hostile client may.
    pub(crate) fn set_raw(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The futex word, for the system call.
    pub fn word(&self) -> *const AtomicU32 {
        &raw const self.0
    }

    /// Client: after it has submitted a call. True: it has to wake all that wait for the
    /// [`word`](Self::word); another client may wait for it, too.
    pub fn ring(&self) -> bool {
        let is_asleep = self.0.load(Ordering::Relaxed) & ASLEEP != 0;
        if is_asleep {
            self.0.fetch_add(RUNG, Ordering::Release);
        }
        is_asleep
    }

    /// Daemon: says that it sleeps, before it looks at the rings once more. Returns the value with
    /// which it may sleep.
    pub fn fall_asleep(&self) -> u32 {
        let before = self.0.fetch_or(ASLEEP, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        before | ASLEEP
    }

    /// Daemon: says that it looks at the rings before it sleeps.
    pub fn wake_up(&self) {
        self.0.fetch_and(!ASLEEP, Ordering::Relaxed);
    }
}
