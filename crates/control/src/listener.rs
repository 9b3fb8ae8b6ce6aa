//! A listening socket, whose connections refuse file descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use client_files::Closers;
use headroom_linux::pass_rights::{self, PassRights};
use rustix::net::{SocketFlags, accept_with, listen};

use crate::peer_socket::PeerSocket;
use crate::socket_file::{SocketFile, unix_socket};
use crate::{ControlError, Peer};

/// A listening socket; its file is removed on drop.
pub struct Listener {
    file: SocketFile,
    fd: OwnedFd,
    closers: Closers,
}

/// A connection that was accepted.
pub enum Accepted {
    /// No connection waits.
    Nothing,
    /// The peer has exited, so it has no owner. The connection is closed.
    Gone,
    /// A connection, and the process at its other end.
    Connection(PeerSocket, Peer),
}

impl Listener {
    /// Listens on `path`, which gets the permission bits `mode`; at most `backlog` connections wait
    /// to be accepted. A socket that a dead daemon left is replaced. Connections that may carry
    /// files are closed by `closers`.
    pub fn bind(
        path: &Path,
        mode: u32,
        backlog: i32,
        closers: Closers,
    ) -> Result<Self, ControlError> {
        let fail = |doing| move |errno| ControlError::Io { path: path.to_owned(), doing, errno };
        let fd = unix_socket().map_err(fail("cannot make a socket"))?;
        let file = SocketFile::bind(path, mode, &fd)?;
        let listener = Self::of(file, fd, closers);
        listen(&listener.fd, backlog).map_err(fail("cannot listen"))?;
        Ok(listener)
    }

    /// A socket that listens on `path` already.
    pub fn from_fd(path: &Path, fd: OwnedFd, closers: Closers) -> Self {
        Self::of(SocketFile::of_bound(path), fd, closers)
    }

    fn of(file: SocketFile, fd: OwnedFd, closers: Closers) -> Self {
        // Fails before Linux 6.16: `PeerSocket` looks at each connection.
        let _ = pass_rights::set(&fd, PassRights::Refused);
        Self { file, fd, closers }
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Whether as many connections wait for their close as may. Accepting more of them could use
    /// up the daemon's descriptors.
    pub fn is_full(&self) -> bool {
        self.closers.is_full()
    }

    /// Accepts a connection, if one is waiting.
    pub fn accept(&self) -> Accepted {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(fd) = accept_with(&self.fd, flags) else { return Accepted::Nothing };
        self.take_over(fd)
    }

    /// Takes over a connection that was accepted by an earlier program.
    pub fn take_over(&self, fd: OwnedFd) -> Accepted {
        let peer = Peer::of(fd.as_fd());
        let socket = PeerSocket::new(fd, peer, &self.closers);
        peer.map_or(Accepted::Gone, |peer| Accepted::Connection(socket, peer))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
