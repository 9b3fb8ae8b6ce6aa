//! Shared memory and a futex: the minimum for two sleeping processes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::futex;

use super::MAX_MESSAGE;
use crate::measure::Subject;
use crate::peer::{Peer, report_ready};

/// Size of the header: the words, before the messages.
const HEAD: usize = 4096;
const LEN: usize = HEAD + 2 * MAX_MESSAGE;
const OURS: u32 = 0;
const THEIRS: u32 = 1;

/// The shared memory: turn, length of the message, request, reply.
struct Shared(*mut u8);

impl Shared {
    fn map(fd: impl AsFd) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping; it stays until the process ends.
        let at = unsafe { mmap(ptr::null_mut(), LEN, protection, MapFlags::SHARED, fd, 0) }?;
        Ok(Self(at.cast()))
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        // SAFETY: aligned, inside the mapping, and only ever used as atomics on both sides.
        unsafe { &*self.0.cast::<AtomicU32>().add(index) }
    }

    fn turn(&self) -> &AtomicU32 {
        self.word(0)
    }

    fn len(&self) -> &AtomicU32 {
        self.word(1)
    }

    /// Start of the request (0) or the reply (1).
    fn message(&self, which: usize) -> *mut u8 {
        // SAFETY: inside the mapping.
        unsafe { self.0.add(HEAD + which * MAX_MESSAGE) }
    }

    fn hand_over(&self, to: u32) -> Result<()> {
        self.turn().store(to, Ordering::Release);
        futex::wake(self.turn(), futex::Flags::empty(), 1)?;
        Ok(())
    }

    fn wait_for(&self, turn: u32) -> Result<()> {
        while self.turn().load(Ordering::Acquire) != turn {
            match futex::wait(self.turn(), futex::Flags::empty(), 1 - turn, None) {
                Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// Shared memory with another process.
pub struct Futex {
    shared: Shared,
    _peer: Peer,
}

impl Futex {
    /// Starts the other end.
    pub fn start() -> Result<Self> {
        let fd: OwnedFd = memfd_create("pingpong", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, LEN as u64)?;
        let shared = Shared::map(&fd)?;
        Ok(Self { shared, _peer: Peer::start_on(&["futex"], fd)? })
    }
}

impl Subject for Futex {
    fn name(&self) -> &str {
        "futex"
    }

    fn round_trip(&mut self, message: &[u8], reply: &mut [u8]) -> Result<()> {
        anyhow::ensure!(message.len().max(reply.len()) <= MAX_MESSAGE, "too long");
        // SAFETY: the area is long enough, and the peer does not access it in this side's turn.
        unsafe {
            ptr::copy_nonoverlapping(message.as_ptr(), self.shared.message(0), message.len())
        };
        self.shared.len().store(message.len() as u32, Ordering::Relaxed);
        self.shared.hand_over(THEIRS)?;
        self.shared.wait_for(OURS)?;
        // SAFETY: as above.
        unsafe {
            ptr::copy_nonoverlapping(self.shared.message(1), reply.as_mut_ptr(), reply.len())
        };
        Ok(())
    }
}

pub(super) fn serve() -> Result<()> {
    let shared = Shared::map(io::stdin())?;
    report_ready();
    loop {
        shared.wait_for(THEIRS)?;
        let len = (shared.len().load(Ordering::Relaxed) as usize).min(MAX_MESSAGE);
        // SAFETY: inside the areas, and it is this side's turn.
        unsafe { ptr::copy_nonoverlapping(shared.message(0), shared.message(1), len) };
        shared.hand_over(OURS)?;
    }
}
