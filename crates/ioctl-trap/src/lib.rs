//! A seccomp filter that traps `ioctl(.., BINDER_WRITE_READ)`, and the operations of its listener
//! on a trapped call.
//!
//! Only one system call installs a descriptor in another process: the listener of a seccomp filter
//! may add one to a thread that is trapped by the filter (`SECCOMP_IOCTL_NOTIF_ADDFD`). A launcher
//! [`install`]s the filter in a child before it executes a command, and passes the [`Listener`] to
//! the server of the bus. The arguments of a call are never inspected: each call proceeds to the
//! kernel ([`Listener::proceed`]).
//!
//! A filter cannot be removed. If its listener is closed, the kernel fails the trapped calls with
//! `ENOSYS`; so the [`Launcher`] keeps a duplicate, and lets all calls proceed once the server has
//! exited ([`stand_in`]). The server records the calls that it holds in memory that it shares with
//! the launcher ([`HeldCalls`]), so that no call is blocked for ever.

mod launcher;

pub use launcher::{Launcher, check_wait_killable, install, offer, receive, send, stand_in};

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: the woken thread runs on the CPU of the one that waits.
const SYNC_WAKE_UP: u64 = 1;

/// A trapped call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trapped {
    /// Id of the notification; the call that is trapped next has an id that is larger by one.
    pub id: u64,
    /// Thread id in the listener's pid namespace; 0 if the thread is not visible there.
    pub tid: u32,
}

/// Receives every trapped call of a filter. Several threads may use one listener at the same time.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Takes the descriptor that [`install`] returned.
    pub fn new(fd: OwnedFd) -> Self {
        let listener = Self(fd);
        // Since Linux 6.6. Without the flag the listener works as well, with slower wake-ups.
        let _ = listener.ioctl(libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNC_WAKE_UP as usize);
        listener
    }

    /// Waits for the next call. `None`: no process runs under the filter any more. (Before Linux
    /// 6.11 the kernel does not report that, and this never returns.)
    pub fn next(&self) -> io::Result<Option<Trapped>> {
        loop {
            // SAFETY: all-zero is a valid `seccomp_notif`, and what the kernel wants to see.
            let mut found: libc::seccomp_notif = unsafe { zeroed() };
            match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut found as usize) {
                Ok(_) => return Ok(Some(Trapped { id: found.id, tid: found.pid })),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The thread was killed or interrupted meanwhile, or the last one has exited.
                    Some(libc::ENOENT) if !self.is_deserted() => {}
                    Some(libc::ENOENT) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Returns whether no process runs under the filter any more.
    fn is_deserted(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }

    /// Lets a call proceed to the kernel. `NotFound`: the call is no longer held, because its
    /// thread was killed or received a signal.
    pub fn proceed(&self, id: u64) -> io::Result<()> {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer as usize).map(drop)
    }

    /// Adds a file to the descriptor table of the trapped thread, close-on-exec, and returns its
    /// number. Waits until the thread has installed the file. `EMFILE`: its table is full;
    /// `NotFound`: as for [`proceed`](Self::proceed), and the file was not installed.
    pub fn add_file(&self, id: u64, file: BorrowedFd<'_>) -> io::Result<u32> {
        let newfd_flags = libc::O_CLOEXEC as u32;
        let srcfd = file.as_raw_fd() as u32;
        let wanted = libc::seccomp_notif_addfd { id, flags: 0, srcfd, newfd: 0, newfd_flags };
        let added = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const wanted as usize);
        match added {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            }
            added => added,
        }
    }

    fn ioctl(&self, request: libc::Ioctl, argument: usize) -> io::Result<u32> {
        // SAFETY: the caller passes a number, or the address of a live structure of the type that
        // the request reads or fills.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as u32) }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Maximum number of listener threads.
pub const PLACES: usize = 32;

/// How far the id of a held call can be below the latest one. The kernel delivers the newest call
/// first, so a call that has waited has an id that is lower by the number of all calls made
/// meanwhile. This covers the calls of some seconds; iterating over them takes a fraction of one.
const MOST_BEHIND: u64 = 1 << 17;

const BYTES: usize = PLACES * size_of::<AtomicU64>();

/// Records which calls the listener's threads hold, in memory that outlives the process: one id per
/// listener thread, of the call that it received last.
#[derive(Debug)]
pub struct HeldCalls {
    memory: OwnedFd,
    places: NonNull<[AtomicU64; PLACES]>,
}

// SAFETY: the memory holds only atomic integers, and stays mapped for the life of this value.
unsafe impl Send for HeldCalls {}
// SAFETY: as above.
unsafe impl Sync for HeldCalls {}

impl HeldCalls {
    /// Creates a record without any call.
    pub fn new() -> io::Result<Self> {
        let memory =
            memfd_create("trapped-calls", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, BYTES as u64)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(memory)
    }

    /// Maps a record that another process has created and passed.
    pub fn map(memory: OwnedFd) -> io::Result<Self> {
        if rustix::fs::fstat(&memory)?.st_size < BYTES as i64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a new shared mapping, of a file that is long enough.
        let at = unsafe {
            mmap(
                null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &memory,
                0,
            )?
        };
        let places = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, places })
    }

    fn places(&self) -> &[AtomicU64; PLACES] {
        // SAFETY: mapped and page-aligned for the life of this value; any bytes are valid integers.
        unsafe { self.places.as_ref() }
    }

    /// Records that the thread with this place has received a call.
    pub fn note(&self, place: usize, id: u64) {
        if let Some(number) = self.places().get(place) {
            number.store(id, Ordering::Relaxed);
        }
    }

    /// Ids of all calls that exited threads may have held, whether they recorded them or not; most
    /// of the ids were never held. Empty if no call was ever recorded.
    fn suspects(&self) -> impl Iterator<Item = u64> {
        let latest = self.places().iter().map(|number| number.load(Ordering::Relaxed)).max();
        let latest = latest.filter(|&id| id != 0);
        let around = |id: u64| id.saturating_sub(MOST_BEHIND)..=id.saturating_add(PLACES as u64);
        latest.into_iter().flat_map(around)
    }
}

impl AsFd for HeldCalls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for HeldCalls {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        let _ = unsafe { munmap(self.places.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_around_the_latest_are_suspected_from_any_thread() {
        let held_calls = HeldCalls::new().unwrap();
        assert_eq!(held_calls.suspects().count(), 0);
        let latest = 1 << 60;
        held_calls.note(3, latest);
        held_calls.note(0, latest - 40_000);
        let suspected = |id| held_calls.suspects().any(|suspect| suspect == id);
        assert!(suspected(latest) && suspected(latest + 2), "the next ones");
        assert!(suspected(latest - 90_000), "and one that waited");
        held_calls.note(1, u64::MAX);
        assert!(suspected(u64::MAX));
    }
}
