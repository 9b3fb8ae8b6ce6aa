//! Passes a listener from the process that runs under its filter to the process that serves it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::install;

/// Maximum number of descriptors in one message: a listener, and the memory of its `HeldCalls`.
const MOST: usize = 2;

/// Installs the filter, and sends the listener, or the errno of the failure. Makes system calls
/// only: may be called between `fork` and `exec`. Fails if the message cannot be sent.
pub fn offer(socket: BorrowedFd<'_>) -> io::Result<()> {
    match install() {
        Ok(listener) => send(socket, 0, &[listener.as_fd()]),
        Err(error) => send(socket, error.raw_os_error().unwrap_or(libc::ENOSYS), &[]),
    }
}

/// Sends an errno (0: none) and up to two descriptors over a `SOCK_SEQPACKET` socket.
pub fn send(socket: BorrowedFd<'_>, errno: i32, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&errno.to_ne_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Waits for a message and returns it. `UnexpectedEof`: the other end is closed.
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
