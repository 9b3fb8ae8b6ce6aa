//! Unix sockets that refuse file descriptors (`SO_PASSRIGHTS`, since Linux 6.16).

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `asm-generic/socket.h`.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Whether a socket accepts messages with file descriptors. Connections of a listening socket
/// inherit it when the peer connects; then a sender of descriptors gets `EPERM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassRights {
    /// The default.
    Accepted,
    /// No descriptor can arrive.
    Refused,
}

/// Sets it. Fails on a kernel that lacks the option.
pub fn set(socket: impl AsFd, rights: PassRights) -> io::Result<()> {
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
pub fn of(socket: impl AsFd) -> PassRights {
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
