//! A file descriptor that stays open in the program that replaces this one, under its number.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use serde::{Deserialize, Serialize};

/// Descriptors up to this one are standard input, output and error.
const LAST_STANDARD: RawFd = 2;

/// A descriptor in a state.
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
}
