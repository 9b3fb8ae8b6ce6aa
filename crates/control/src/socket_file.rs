//! The file of a listening socket.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use headroom_linux::folders;
use rustix::fs::{FileType, Mode, chmod, lstat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with,
};

use crate::ControlError;

/// The file at which a socket listens; removed on drop, unless another one has replaced it.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: Option<(u64, u64)>,
}

pub(crate) fn unix_socket() -> Result<OwnedFd, Errno> {
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
    pub(crate) fn bind(path: &Path, mode: u32, socket: &OwnedFd) -> Result<Self, ControlError> {
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
    pub(crate) fn of_bound(path: &Path) -> Self {
        Self { path: path.to_owned(), id: id(path) }
    }

    pub(crate) fn path(&self) -> &Path {
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
