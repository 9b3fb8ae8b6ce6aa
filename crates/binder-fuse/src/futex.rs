//! Waiting for several words that are shared with other processes.

use std::sync::atomic::AtomicU32;

use headroom_linux::clock::monotonic_ns;

/// Maximum number of words of one wait (`FUTEX_WAITV_MAX`).
pub(crate) const MAX_WORDS: usize = 128;
/// `FUTEX2_SIZE_U32`; without `FUTEX2_PRIVATE`, the word may be shared with other processes.
const SHARED_WORD: u32 = 2;

/// `struct futex_waitv`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// A word was woken, or has another value.
    Woken,
    /// A signal has interrupted it.
    Interrupted,
    /// The time is over.
    TimedOut,
}

/// Words to wait for.
pub(crate) struct Words {
    waiters: [Waiter; MAX_WORDS],
    count: usize,
}

impl Words {
    /// Waits as long as `first` is 0.
    pub(crate) fn new(first: &AtomicU32) -> Self {
        let mut words = Self { waiters: [Waiter::default(); MAX_WORDS], count: 0 };
        words.add(first, 0);
        words
    }

    /// Waits as long as this word has this value. More words than fit are ignored.
    pub(crate) fn add(&mut self, word: *const AtomicU32, value: u32) {
        if let Some(waiter) = self.waiters.get_mut(self.count) {
            let address = word as u64;
            *waiter = Waiter { value: value.into(), address, flags: SHARED_WORD, reserved: 0 };
            self.count += 1;
        }
    }

    /// Waits until a word is woken or has another value.
    pub(crate) fn wait(&self, timeout_ns: u64) -> Waited {
        let end_ns = monotonic_ns() + timeout_ns;
        let end = libc::timespec {
            tv_sec: (end_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (end_ns % 1_000_000_000) as _,
        };
        // SAFETY: the time is ours; the call reads the words only, and faults for those that do not
        // exist any more.
        let waited = unsafe {
            let (waiters, end) = (self.waiters.as_ptr(), &raw const end);
            libc::syscall(libc::SYS_futex_waitv, waiters, self.count, 0, end, libc::CLOCK_MONOTONIC)
        };
        match std::io::Error::last_os_error().raw_os_error() {
            _ if waited >= 0 => Waited::Woken,
            Some(libc::EINTR) => Waited::Interrupted,
            Some(libc::ETIMEDOUT) => Waited::TimedOut,
            _ => Waited::Woken,
        }
    }
}

/// Wakes one waiter of a word that may be shared with another process.
pub(crate) fn wake(word: *const AtomicU32) {
    // SAFETY: the call uses the address as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
}

/// Waits as long as the word has this value.
pub(crate) fn wait(word: &AtomicU32, value: u32) {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the word exists during the call.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, none) };
}
