//! A listening socket, whose connections refuse file descriptors, and its file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use headroom_linux::descriptors::{PassRights, set_pass_rights};
use headroom_linux::folders;
use owners::client_files::Closers;
use rustix::fs::{FileType, Mode, chmod, lstat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use crate::peer_socket::PeerSocket;
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
        let fd = unix_socket().map_err(fail(path, "cannot make a socket"))?;
        let file = SocketFile::bind(path, mode, &fd)?;
        let listener = Self::of(file, fd, closers);
        listen(&listener.fd, backlog).map_err(fail(path, "cannot listen"))?;
        Ok(listener)
    }

    /// A socket that listens on `path` already.
    pub fn from_fd(path: &Path, fd: OwnedFd, closers: Closers) -> Self {
        Self::of(SocketFile::of_bound(path), fd, closers)
    }

    fn of(file: SocketFile, fd: OwnedFd, closers: Closers) -> Self {
        // Fails before Linux 6.16: `PeerSocket` looks at each connection.
        let _ = set_pass_rights(&fd, PassRights::Refused);
        Self { file, fd, closers }
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        self.file.path()
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

/// The file at which a socket listens; removed on drop, unless another one has replaced it.
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: Option<(u64, u64)>,
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn fail(path: &Path, doing: &'static str) -> impl FnOnce(Errno) -> ControlError {
    move |errno| ControlError::Io { path: path.to_owned(), doing, errno }
}

fn address(path: &Path) -> Result<SocketAddrUnix, ControlError> {
    let doing = "not a valid socket address, which has at most 107 bytes";
    SocketAddrUnix::new(path).map_err(fail(path, doing))
}

/// Checks that a daemon may listen on `path`: nothing is there, or the socket of a daemon that has
/// ended.
pub fn check_free(path: &Path) -> Result<(), ControlError> {
    let kind = match lstat(path) {
        Err(Errno::NOENT) => return Ok(()),
        stat => FileType::from_raw_mode(stat.map_err(fail(path, "cannot look at it"))?.st_mode),
    };
    let not_a_socket = |what| Err(ControlError::NotASocket { path: path.to_owned(), what });
    match kind {
        FileType::Socket => {}
        FileType::RegularFile => return not_a_socket("a regular file"),
        FileType::Directory => return not_a_socket("a folder"),
        // It could lead to the socket of another program.
        FileType::Symlink => return not_a_socket("a symbolic link"),
        _ => return not_a_socket("a special file"),
    }
    let probe = unix_socket().map_err(fail(path, "cannot make a socket"))?;
    match connect(&probe, &address(path)?) {
        Err(Errno::CONNREFUSED) => Ok(()),
        _ => Err(ControlError::InUse(path.to_owned())),
    }
}

impl SocketFile {
    /// Binds `socket` to `path` with the permission bits `mode`. The folder is created if it is
    /// missing; the socket of a daemon that has ended is replaced.
    fn bind(path: &Path, mode: u32, socket: &OwnedFd) -> Result<Self, ControlError> {
        if let Some(folder) = path.parent() {
            folders::create_public(folder)
                .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
                .map_err(fail(path, "cannot create its folder"))?;
        }
        let address = address(path)?;
        match bind(socket, &address) {
            Err(Errno::ADDRINUSE) => {
                check_free(path)?;
                rustix::fs::unlink(path)
                    .map_err(fail(path, "cannot remove a dead daemon's socket"))?;
                bind(socket, &address).map_err(fail(path, "cannot bind"))?;
            }
            other => other.map_err(fail(path, "cannot bind"))?,
        }
        let file = Self::of_bound(path);
        chmod(path, Mode::from_raw_mode(mode)).map_err(fail(path, "cannot set its permissions"))?;
        Ok(file)
    }

    /// The file of a socket that is bound to `path` already.
    fn of_bound(path: &Path) -> Self {
        Self { path: path.to_owned(), id: id(path) }
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

#[allow(clippy::useless_conversion)] // u32 on some machines
fn id(path: &Path) -> Option<(u64, u64)> {
    let stat = lstat(path).ok()?;
    Some((u64::try_from(stat.st_dev).ok()?, u64::try_from(stat.st_ino).ok()?))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.id.is_some() && self.id == id(&self.path) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}
