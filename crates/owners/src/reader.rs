//! Reads user namespaces from the kernel.
//!
//! "Initial" is the reader's own user namespace: namespaces above it are not visible.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use headroom_linux::pidfd;

use crate::{NamespaceId, NamespaceLevel, Owner, Uid};

/// ioctls of a namespace's file (`linux/nsfs.h`).
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
/// `asm-generic/socket.h`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;
/// Maximum nesting depth of user namespaces; the kernel refuses to create deeper ones.
const MAX_LEVELS: usize = 33;

/// The user namespaces of one process ([`NamespaceReader::namespaces`]).
pub fn namespaces(proc: &Path, pid: u32) -> io::Result<Vec<NamespaceLevel>> {
    NamespaceReader::new(proc)?.namespaces(pid)
}

/// Threads of a process that are asked for its namespace: the first one is its main thread.
const THREADS_TRIED: usize = 16;

/// Reads the user namespaces of processes.
pub struct NamespaceReader {
    proc: PathBuf,
    /// Inode number of the reader's own namespace.
    own: u64,
}

impl NamespaceReader {
    /// `proc` is where the proc filesystem is mounted.
    pub fn new(proc: &Path) -> io::Result<Self> {
        let own = std::fs::metadata(proc.join("self/ns/user"))?.ino();
        Ok(Self { proc: proc.to_owned(), own })
    }

    /// The user namespaces that a process (or a thread) is in, innermost first, below the reader's
    /// own. Empty if the process is in the reader's own namespace, or in one that the reader may
    /// not inspect (above its own, or beside it).
    pub fn namespaces(&self, pid: u32) -> io::Result<Vec<NamespaceLevel>> {
        match pidfd::open_thread(pid) {
            Ok(pidfd) => self.namespaces_of(pidfd.as_fd(), pid),
            Err(e) if is_unsupported(&e) => self.levels(self.open(pid)?),
            Err(e) => Err(e),
        }
    }

    /// As [`namespaces`](Self::namespaces), for the process of a pidfd. Does not wait for its
    /// `execve` since Linux 6.11.
    pub fn namespaces_of(
        &self,
        pidfd: BorrowedFd<'_>,
        pid: u32,
    ) -> io::Result<Vec<NamespaceLevel>> {
        match pidfd::user_namespace(pidfd) {
            Ok(namespace) => self.levels(File::from(namespace)),
            Err(e) if is_unsupported(&e) => self.levels(self.open(pid)?),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => match self.of_a_thread(pid) {
                Some(namespace) => self.levels(File::from(namespace)),
                None => Err(e),
            },
            Err(e) => Err(e),
        }
    }

    /// The namespace of a process whose main thread has ended: all threads are in the same one.
    fn of_a_thread(&self, pid: u32) -> Option<OwnedFd> {
        let tasks = std::fs::read_dir(self.proc.join(pid.to_string()).join("task")).ok()?;
        let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
        tids.take(THREADS_TRIED)
            .find_map(|tid| pidfd::user_namespace(pidfd::open_thread(tid).ok()?).ok())
    }

    fn open(&self, pid: u32) -> io::Result<File> {
        File::open(self.proc.join(pid.to_string()).join("ns/user"))
    }

    /// A namespace and those above it, below the reader's own.
    fn levels(&self, mut namespace: File) -> io::Result<Vec<NamespaceLevel>> {
        let mut levels = Vec::new();
        if namespace.metadata()?.ino() == self.own {
            return Ok(levels);
        }
        for _ in 0..MAX_LEVELS {
            let parent = match parent(&namespace) {
                Ok(parent) => parent,
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => return Ok(Vec::new()),
                Err(e) => return Err(e),
            };
            let id = NamespaceId(namespace.metadata()?.ino());
            levels.push(NamespaceLevel { id, creator: creator(&namespace)? });
            if self.own == parent.metadata()?.ino() {
                return Ok(levels);
            }
            namespace = parent;
        }
        Ok(Vec::new())
    }
}

/// The owner of the process at the other end of a socket, which had this pid and uid when it
/// connected (`SO_PEERCRED`). An error if the process has exited, as its namespace is unknown then.
pub fn peer_owner(socket: BorrowedFd<'_>, pid: u32, uid: Uid) -> io::Result<Owner> {
    // Pins the process: otherwise the namespace could be that of a later process with its pid.
    let pidfd = peer_pidfd(socket, pid)?;
    let reader = NamespaceReader::new(Path::new("/proc"))?;
    let levels = match reader.namespaces_of(pidfd.as_fd(), pid) {
        // A reader without privileges serves only processes in its own namespace, or in namespaces
        // below that of its own user.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Vec::new(),
        levels => levels?,
    };
    if has_exited(pidfd.as_fd()) {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    } else {
        Ok(Owner::of(uid, &levels))
    }
}

/// The process at the other end of a socket, which had this pid when it connected. Before Linux 6.5
/// the process is looked up by that pid, which another process may have by now.
pub fn peer_pidfd(socket: BorrowedFd<'_>, pid: u32) -> io::Result<OwnedFd> {
    connected_pidfd(socket).or_else(|_| pidfd::open(pid))
}

/// The process at the other end of a socket, as the kernel knows it since it connected. Fails with
/// `ENOPROTOOPT` before Linux 6.5.
pub fn connected_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `fd`, which is that long.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &mut len,
        )
    };
    if done != 0 || fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns whether the process of a pidfd has exited.
pub fn has_exited(pidfd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// The kernel is too old for a request.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL))
}

fn parent(namespace: &File) -> io::Result<File> {
    // SAFETY: the request takes no argument, and it returns a new descriptor without another owner.
    unsafe {
        match libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

fn creator(namespace: &File) -> io::Result<Uid> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: the request writes a uid there.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Uid(uid)),
    }
}
