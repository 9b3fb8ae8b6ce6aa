//! A listening socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use headroom_linux::folders;
use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use crate::ControlError;

/// Maximum of connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// A listening socket; its file is removed on drop.
pub(super) struct Listener {
    path: PathBuf,
    fd: OwnedFd,
}

/// Path of the socket for root, besides the control socket itself: `oomd-root.sock` beside
/// `oomd.sock`.
pub(crate) fn root_socket(path: &Path) -> PathBuf {
    let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_os_string();
    let mut name = part(path.file_stem());
    name.push("-root.");
    name.push(part(path.extension()));
    path.with_file_name(name)
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl Listener {
    pub(super) fn bind(path: &Path, mode: u32) -> Result<Self, ControlError> {
        let fail = |doing| move |errno| ControlError::Io { path: path.to_owned(), doing, errno };
        if let Some(dir) = path.parent() {
            folders::create_public(dir)
                .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
                .map_err(fail("cannot create its folder"))?;
        }
        let address = SocketAddrUnix::new(path)
            .map_err(fail("not a valid socket address, which has at most 107 bytes"))?;
        let fd = unix_socket().map_err(fail("cannot make a socket"))?;
        match bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                let probe = unix_socket().map_err(fail("cannot probe"))?;
                if connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                    return Err(ControlError::InUse(path.to_owned()));
                }
                rustix::fs::unlink(path).map_err(fail("cannot remove a dead daemon's socket"))?;
                bind(&fd, &address).map_err(fail("cannot bind"))?;
            }
            other => other.map_err(fail("cannot bind"))?,
        }
        chmod(path, Mode::from_raw_mode(mode)).map_err(fail("cannot set its permissions"))?;
        listen(&fd, BACKLOG).map_err(fail("cannot listen"))?;
        Ok(Self { path: path.to_owned(), fd })
    }

    /// A socket that listens on `path` already.
    pub(super) fn from_fd(path: PathBuf, fd: OwnedFd) -> Self {
        Self { path, fd }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts a connection, if one is waiting.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
