//! Facts about a process that its pidfd shows. None of these waits for the process, while its files
//! `stat`, `exe` and `ns/*` in `/proc` wait for its `execve`, which it can delay without end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Magic number of the filesystem of pidfds (`linux/magic.h`, Linux 6.9).
const PID_FS_MAGIC: rustix::fs::FsWord = 0x5049_4446;
/// `PIDFD_GET_USER_NAMESPACE` (`linux/pidfd.h`, Linux 6.11).
const PIDFD_GET_USER_NAMESPACE: libc::Ioctl = 0xff09;

/// Opens the process that has this pid now. Fails with `EINVAL` or `ENOENT` for a thread that does
/// not lead its process.
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    open_with(pid, 0)
}

/// Opens the thread that has this id now. Fails with `EINVAL` before Linux 6.9.
pub fn open_thread(tid: u32) -> io::Result<OwnedFd> {
    open_with(tid, libc::O_EXCL)
}

fn open_with(pid: u32, flags: libc::c_int) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: the call takes integers; its result is a new descriptor without another owner, or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) } as libc::c_int;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The number of the process: no other process has had it since boot, and a process that was
/// started later has a larger one. `None`: the kernel is older than 6.9.
pub fn number(pidfd: impl AsFd) -> Option<u64> {
    let filesystem = rustix::fs::fstatfs(&pidfd).ok()?;
    if filesystem.f_type != PID_FS_MAGIC {
        return None;
    }
    rustix::fs::fstat(pidfd).ok().map(|stat| stat.st_ino)
}

/// The user namespace of the process. Fails with `ENOTTY` or `EINVAL` before Linux 6.11.
pub fn user_namespace(pidfd: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument, and its result is a new descriptor without another
    // owner, or -1.
    unsafe {
        match libc::ioctl(pidfd.as_fd().as_raw_fd(), PIDFD_GET_USER_NAMESPACE, 0) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_later_process_has_a_larger_number() {
        let own = open(std::process::id()).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let of_child = open(child.id()).unwrap();
        let numbers = (number(&own), number(&of_child));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(numbers.0.is_some(), numbers.1.is_some());
        assert!(numbers.0.is_none() || numbers.0 < numbers.1, "{numbers:?}");
        assert_eq!(open(child.id()).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        assert_eq!(number(&own), number(open(std::process::id()).unwrap()));
        assert_eq!(number(std::fs::File::open("/").unwrap()), None);
    }

    #[test]
    fn threads_are_opened_as_such() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
                assert!(open(tid).is_err());
                assert!(open_thread(tid).is_ok() || number(open(1).unwrap()).is_none());
            });
        });
    }

    #[test]
    fn the_user_namespace_is_that_of_proc() {
        let inode = match user_namespace(open(std::process::id()).unwrap()) {
            Ok(namespace) => std::fs::File::from(namespace).metadata().unwrap().ino(),
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)));
                return;
            }
        };
        assert_eq!(inode, std::fs::metadata("/proc/self/ns/user").unwrap().ino());
    }
}
