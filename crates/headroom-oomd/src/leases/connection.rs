//! The lease socket: accepts connections, receives and sends packets. Never blocks.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::Context;
use control::Peer;
use control::lease::{Reply, Request};
use memory_ledger::ClientId;
use owners::reader;
use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recvmsg,
    sendmsg, socket_with,
};

/// A client's connection.
pub struct Connection {
    pub(super) fd: OwnedFd,
    pub(super) peer: Peer,
    /// Set by the hello request.
    pub(super) client: Option<ClientId>,
    /// The owner has used up its CPU time; the connection is not read until the next window.
    pub(super) muted: bool,
}

/// The result of a receive.
pub enum Received {
    /// A request.
    Request(Request),
    /// A packet that is not a valid request.
    Garbage,
    /// No packet at present.
    Nothing,
    /// The peer has closed the connection.
    Closed,
}

impl Connection {
    /// Receives a packet if there is one.
    pub fn receive(&self) -> Received {
        // One byte more than a request, so that a longer packet is not taken for a request.
        let mut packet = [0; control::lease::REQUEST_BYTES + 1];
        // No room for files: the kernel closes the fds that a client passes.
        let mut no_files = RecvAncillaryBuffer::default();
        let mut slices = [IoSliceMut::new(&mut packet)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&self.fd, &mut slices, &mut no_files, flags) {
            Ok(message) if message.bytes == 0 => Received::Closed,
            Ok(message) => packet
                .get(..message.bytes)
                .and_then(Request::decode)
                .map_or(Received::Garbage, Received::Request),
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => Received::Closed,
        }
    }

    /// Sends a reply, with the client's page if given. `false`: the send buffer is full or the
    /// connection is closed.
    pub fn reply(&self, reply: &Reply, page: Option<&OwnedFd>) -> bool {
        let packet = reply.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut files = SendAncillaryBuffer::new(&mut space);
        let page = page.map(|page| [page.as_fd()]);
        if let Some(page) = &page {
            files.push(SendAncillaryMessage::ScmRights(page));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.fd, &[IoSlice::new(&packet)], &mut files, flags).is_ok()
    }

    /// A pidfd of the process that connected: it refers to this process even if the pid is reused.
    pub fn pidfd(&self) -> std::io::Result<OwnedFd> {
        reader::peer_pidfd(self.fd.as_fd(), self.peer.pid.unsigned_abs())
    }
}

/// The listening socket; its file is removed on drop.
pub struct Listener {
    path: PathBuf,
    pub(super) fd: OwnedFd,
}

impl Listener {
    /// Listens on `path`, with mode 0666. Replaces the socket of a daemon that was killed: the
    /// caller holds the control socket beside it, so no other daemon listens.
    pub fn bind(path: &Path) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(name);
            }
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .context("cannot make a socket")?;
        let address = SocketAddrUnix::new(path).with_context(name)?;
        bind(&fd, &address).with_context(name)?;
        chmod(path, Mode::from_raw_mode(0o666)).with_context(name)?;
        listen(&fd, 128).with_context(name)?;
        Ok(Self { path: path.to_owned(), fd })
    }

    /// A socket that listens on `path` already.
    pub fn from_fd(path: &Path, fd: OwnedFd) -> Self {
        Self { path: path.to_owned(), fd }
    }

    /// Accepts the next connection. `None`: there is none, or `accept` failed.
    pub fn accept(&self) -> Option<Connection> {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = match accept_with(&self.fd, flags) {
                Ok(fd) => fd,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => return None,
            };
            // The peer has exited already.
            let Some(peer) = Peer::of(fd.as_fd()) else { continue };
            return Some(Connection { fd, peer, client: None, muted: false });
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
