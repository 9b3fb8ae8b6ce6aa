//! File descriptors: the table of this process, those that the next program inherits, memory that
//! is shared by one, and sockets that refuse them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// Number of descriptors in a word of the table: the kernel copies whole words.
const WORD: RawFd = 64;

/// Raises the soft limit of open files to the hard limit, makes the table large enough for `count`
/// descriptors, or for those that the limit allows, and occupies what is free of its first word, as
/// [`without_descriptors`] needs it.
///
/// A table that grows while several threads use it makes the thread that opens a file wait until
/// all CPUs have passed a quiescent state (`synchronize_rcu`): 4 s on a starved machine. Therefore
/// to be called before other threads are started.
pub fn prepare(count: u32) -> Result<(), Errno> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let allowed = limit.maximum.unwrap_or(u64::MAX);
    let highest = u64::from(count).min(allowed).saturating_sub(1);
    let mut any = eventfd(0, EventfdFlags::CLOEXEC)?;
    fcntl_dupfd_cloexec(any.as_fd(), i32::try_from(highest).unwrap_or(i32::MAX))?;
    // Of a limit that is hardly larger, nothing would be left for clients.
    while any.as_raw_fd() < WORD && allowed >= 4 * WORD as u64 {
        let copy = fcntl_dupfd_cloexec(any.as_fd(), 0)?;
        // Stays open as long as this program runs.
        let _ = std::mem::replace(&mut any, copy).into_raw_fd();
    }
    Ok(())
}

/// Runs `run` in a thread of its own that has only the standard streams, and returns what it
/// returns. A process that it starts gets no copies of other descriptors: to close one can take as
/// long as the file's server likes. `run` must not use a descriptor that was opened elsewhere;
/// `/proc/self/fd` has all of them.
///
/// After [`prepare`], nobody else's files are in the first word of the table, which is copied and
/// closed here.
pub fn without_descriptors<T: Send>(run: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            let (first, last) = (LAST_STANDARD + 1, RawFd::MAX);
            // The thread that waits shares the table: the kernel copies the words of it that have
            // something to keep, and no other descriptor is closed.
            // SAFETY: plain numbers, and this thread has no descriptors of its own.
            let left = unsafe {
                libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_UNSHARE)
            };
            if left == 0 { Ok(run()) } else { Err(io::Error::last_os_error()) }
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Descriptors up to this one are standard input, output and error.
const LAST_STANDARD: RawFd = 2;

/// A descriptor in a state: it stays open, under its number, in the program that replaces this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeptFd(RawFd);

impl KeptFd {
    /// The number of an open descriptor.
    pub fn of(fd: &impl AsFd) -> Self {
        Self(fd.as_fd().as_raw_fd())
    }

    /// Keeps the descriptor open in the next executed program, or not.
    pub fn set_inherited(self, inherited: Inherited) -> io::Result<()> {
        let flags = match inherited {
            Inherited::Yes => FdFlags::empty(),
            Inherited::No => FdFlags::CLOEXEC,
        };
        // SAFETY: used for one system call, which fails if the descriptor is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(self.0) };
        Ok(fcntl_setfd(fd, flags)?)
    }

    /// Takes the descriptor that the previous program has left open.
    ///
    /// # Safety
    ///
    /// The number occurs once in a state that is used once, so that nothing else owns it.
    pub unsafe fn take(self) -> io::Result<OwnedFd> {
        if self.0 <= LAST_STANDARD {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: used for one system call, which fails if the descriptor is not open.
        fcntl_getfd(unsafe { BorrowedFd::borrow_raw(self.0) })?;
        self.set_inherited(Inherited::No)?;
        // SAFETY: it is open, and the caller guarantees that nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(self.0) })
    }
}

/// Whether the next executed program inherits a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// It stays open.
    Yes,
    /// It is closed (`FD_CLOEXEC`).
    No,
}

/// Checks that no descriptor occurs twice, and none is a standard one.
pub fn check_descriptors(descriptors: impl IntoIterator<Item = KeptFd>) -> Result<(), String> {
    let mut all: Vec<KeptFd> = descriptors.into_iter().collect();
    all.sort_unstable();
    if let Some(KeptFd(fd)) = all.first().filter(|fd| fd.0 <= LAST_STANDARD) {
        return Err(format!("descriptor {fd} has another use"));
    }
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("descriptor {} occurs twice", pair[0].0)),
        None => Ok(()),
    }
}

/// A memfd of `bytes` zeros. Its length is sealed, so that a process that obtains the file cannot
/// make our accesses fault; its contents are not.
pub fn sealed_memfd(name: &str, bytes: u64) -> Result<OwnedFd, Errno> {
    let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memfd, bytes)?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memfd)
}

/// `asm-generic/socket.h`.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Whether a Unix socket accepts messages with file descriptors (`SO_PASSRIGHTS`, since Linux
/// 6.16). Connections of a listening socket inherit it when the peer connects; then a sender of
/// descriptors gets `EPERM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassRights {
    /// The default.
    Accepted,
    /// No descriptor can arrive.
    Refused,
}

/// Sets whether a socket accepts them. Fails on a kernel that lacks the option.
pub fn set_pass_rights(socket: impl AsFd, rights: PassRights) -> io::Result<()> {
    let value = libc::c_int::from(rights == PassRights::Accepted);
    // SAFETY: the value is an int that lives during the call, and its size is given.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What applies to a socket; [`PassRights::Accepted`] on a kernel that lacks the option.
pub fn pass_rights_of(socket: impl AsFd) -> PassRights {
    let mut value: libc::c_int = 1;
    let mut size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the value and its size live during the call, and the size is that of the value.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw mut value).cast(),
            &raw mut size,
        )
    };
    if failed == 0 && value == 0 { PassRights::Refused } else { PassRights::Accepted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_taken_with_its_number_and_closed_at_the_next_execve() {
        let (end, _other) = std::io::pipe().unwrap();
        let end = OwnedFd::from(end);
        let kept = KeptFd::of(&end);
        kept.set_inherited(Inherited::Yes).unwrap();
        assert_eq!(fcntl_getfd(&end).unwrap(), FdFlags::empty());
        let number = std::os::fd::IntoRawFd::into_raw_fd(end);
        // SAFETY: the descriptor has no owner since the line above.
        let taken = unsafe { kept.take() }.unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert_eq!(fcntl_getfd(&taken).unwrap(), FdFlags::CLOEXEC);
    }

    #[test]
    fn descriptors_that_are_not_open_or_occur_twice_are_refused() {
        for number in [-1, 0, 2, 1 << 29] {
            // SAFETY: none of them is taken.
            assert!(unsafe { KeptFd(number).take() }.is_err(), "{number}");
        }
        assert_eq!(check_descriptors([KeptFd(3), KeptFd(9)]), Ok(()));
        assert!(check_descriptors([KeptFd(9), KeptFd(3), KeptFd(9)]).is_err());
        assert!(check_descriptors([KeptFd(2)]).is_err());
    }

    #[test]
    fn the_length_cannot_change() {
        let memfd = sealed_memfd("test", 4096).unwrap();
        assert_eq!(rustix::fs::fstat(&memfd).unwrap().st_size, 4096);
        for bytes in [0, 8192] {
            assert_eq!(ftruncate(&memfd, bytes), Err(Errno::PERM));
        }
        assert_eq!(fcntl_add_seals(&memfd, SealFlags::WRITE), Err(Errno::PERM));
    }
}
