//! Calls over Unix `SOCK_SEQPACKET` sockets: the baseline of calls over binder devices.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Result, ensure};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair, sockopt,
};

/// Maximum of file descriptors in a message.
const MAX_FILES: usize = 64;

/// A connected pair, for messages of this size.
pub fn pair(message: usize) -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for socket in [&ours, &theirs] {
        sockopt::set_socket_send_buffer_size(socket, 2 * message)?;
    }
    Ok((ours, theirs))
}

/// Sends a message and receives its echo.
pub fn call(socket: impl AsFd, message: &[u8], reply: &mut [u8]) -> Result<()> {
    send(&socket, message, SendFlags::NOSIGNAL)?;
    let (len, _) = recv(&socket, &mut *reply, RecvFlags::empty())?;
    ensure!(len == message.len(), "{len} bytes came back");
    Ok(())
}

/// Sends each message of at most so many bytes back once it is handled, until the peer is gone.
pub fn echo(socket: impl AsFd, longest: usize, handle: impl Fn(&[u8]) -> Result<()>) -> Result<()> {
    let mut room = vec![0; longest];
    loop {
        let (len, _) = recv(&socket, &mut room[..], RecvFlags::empty())?;
        if len == 0 {
            return Ok(());
        }
        handle(&room[..len])?;
        send(&socket, &room[..len], SendFlags::NOSIGNAL)?;
    }
}

/// Sends a message, with files if there are any.
pub fn send_files(socket: impl AsFd, data: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
    if files.is_empty() {
        send(socket, data, SendFlags::NOSIGNAL)?;
        return Ok(());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = control.push(SendAncillaryMessage::ScmRights(files));
    ensure!(fits, "more than {MAX_FILES} files");
    sendmsg(socket, &[IoSlice::new(data)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message without files. Returns the length; 0: the peer is gone.
pub fn receive(socket: impl AsFd, room: &mut [u8]) -> Result<usize> {
    Ok(recv(socket, room, RecvFlags::empty())?.0)
}

/// Receives a message and closes the files with it. Returns the length; 0: the peer is gone.
pub fn receive_files(socket: impl AsFd, room: &mut [u8]) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(room)];
    Ok(recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes)
}
