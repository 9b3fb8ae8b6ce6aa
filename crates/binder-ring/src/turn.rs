//! Whose turn it is in a ring, whether the daemon watches it, and whether the daemon sleeps.
//!
//! The client submits, the daemon takes and completes. A client whose call was not taken yet can
//! withdraw it. To submit is not enough: the daemon looks at the rings that it watches only, and it
//! sleeps if none of them has a call. It says the first in a second word and the other at the
//! [doorbell](Doorbell), and each side writes its own word before it reads the other's: either the
//! client sees that the daemon sleeps, or the daemon sees the call.

use super::atomics::{AtomicU32, Ordering, fence};

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Turn {
    /// The client's: nothing is submitted.
    Idle = 0,
    /// The client has submitted a call.
    Submitted = 1,
    /// The daemon has taken the call.
    Taken = 2,
    /// The client's: the result of its call is there.
    Done = 3,
}

/// What the daemon does about a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Watch {
    /// It does not look at the ring.
    Off = 0,
    /// It looks at the ring before it sleeps.
    On = 1,
    /// It has ended the ring for ever.
    Ended = 2,
}

/// What the client has to do after it has submitted a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// Wait for the result.
    Seen,
    /// Wake the daemon, then wait.
    WakeDaemon,
    /// The daemon does not watch: the call was withdrawn.
    Withdrawn(Watch),
}

/// The two words. Any value may be in either: the other side may be hostile.
#[derive(Debug)]
#[repr(C)]
pub struct Words {
    turn: AtomicU32,
    watch: AtomicU32,
}

impl Turn {
    fn of(word: u32) -> Self {
        match word {
            1 => Self::Submitted,
            2 => Self::Taken,
            3 => Self::Done,
            _ => Self::Idle,
        }
    }
}

impl Watch {
    fn of(word: u32) -> Self {
        match word {
            1 => Self::On,
            2 => Self::Ended,
            _ => Self::Off,
        }
    }
}

impl Words {
    /// The words of a new ring.
    pub(crate) fn new() -> Self {
        Self { turn: AtomicU32::new(0), watch: AtomicU32::new(0) }
    }

    /// Sets both words to anything, as a hostile side may.
    pub(crate) fn set_raw(&self, turn: u32, watch: u32) {
        self.turn.store(turn, Ordering::Relaxed);
        self.watch.store(watch, Ordering::Relaxed);
    }

    /// The futex word of the turn, for the system call.
    pub fn turn_word(&self) -> *const AtomicU32 {
        &raw const self.turn
    }

    /// Whose turn it is. What the other side has written before is visible then.
    pub fn turn(&self) -> Turn {
        Turn::of(self.turn.load(Ordering::Acquire))
    }

    /// What the daemon does.
    pub fn watch(&self) -> Watch {
        Watch::of(self.watch.load(Ordering::Relaxed))
    }

    /// Client: submits the call that it has written. The doorbell is its owner's.
    pub fn submit(&self, doorbell: &Doorbell) -> Submitted {
        self.turn.store(Turn::Submitted as u32, Ordering::Release);
        fence(Ordering::SeqCst);
        match self.watch() {
            Watch::On if doorbell.ring() => Submitted::WakeDaemon,
            Watch::On => Submitted::Seen,
            // A daemon that stops watching looks once more, so it may have taken the call.
            watch if self.withdraw() => Submitted::Withdrawn(watch),
            _ => Submitted::Seen,
        }
    }

    /// Client: withdraws its call. False: the daemon has taken it.
    pub fn withdraw(&self) -> bool {
        self.exchange(Turn::Submitted, Turn::Idle)
    }

    /// Daemon: takes the call that the client has submitted. False: there is none.
    pub fn take(&self) -> bool {
        self.turn() == Turn::Submitted && self.exchange(Turn::Submitted, Turn::Taken)
    }

    /// Daemon: completes the call whose result it has written.
    pub fn complete(&self) {
        self.turn.store(Turn::Done as u32, Ordering::Release);
    }

    /// Daemon: says what it does from now on, before it looks at the ring once more.
    pub fn set_watch(&self, watch: Watch) {
        self.watch.store(watch as u32, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    fn exchange(&self, from: Turn, to: Turn) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.turn.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// The daemon sleeps.
const ASLEEP: u32 = 1;
/// Added by a client, so that a daemon that is about to sleep does not.
const RUNG: u32 = 2;

/// The word by which all rings of an owner wake the daemon. It may have any value: the other side
/// may be hostile.
///
/// The daemon sleeps on one word for each owner instead of one for each ring, since the kernel's
/// work of a wait grows with the number of words. Every client of the owner can write the word: a
/// hostile one can delay calls of its own owner only, until their threads make requests instead.
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
