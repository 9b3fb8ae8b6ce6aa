//! How a listener gets from the process that lives under its filter to the one that serves it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::install;

/// Most descriptors in one message: a listener, and the memory beside it.
const MOST: usize = 2;

/// Installs the filter, and sends the listener, or else the errno of why there is none. Makes
/// system calls only: good between `fork` and `exec`. An error: nobody can be told.
pub fn offer(socket: BorrowedFd<'_>) -> io::Result<()> {
    match install() {
        Ok(listener) => send(socket, 0, &[listener.as_fd()]),
        Err(error) => send(socket, error.raw_os_error().unwrap_or(libc::ENOSYS), &[]),
    }
}

/// Sends an errno (0: none) and up to two descriptors over a Unix socket that keeps messages apart.
pub fn send(socket: BorrowedFd<'_>, errno: i32, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&errno.to_ne_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// What was sent; waits for it. `UnexpectedEof`: nobody will send any more.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<(i32, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut errno = [0; 4];
    let parts = &mut [IoSliceMut::new(&mut errno)];
    let received = recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes < 4 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fds = rights.flatten().collect();
    Ok((i32::from_ne_bytes(errno), fds))
}
