//! Secret memory (`memfd_secret`) that a process holds by a descriptor. No statistic of the process
//! and no attribute of the file shows how many pages it has.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use headroom_linux::pidfd;

use super::FileId;

/// `f_type` of secret memory (`linux/magic.h`).
pub(super) const SECRET_MEMORY_MAGIC: rustix::fs::FsWord = 0x5345_434d;

/// `cachestat(2)` (Linux 6.5), the same number on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`: all of the file.
#[repr(C)]
#[derive(Default)]
struct Range {
    offset: u64,
    len: u64,
}

/// `struct cachestat`, pages.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    written_back: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The memory of the file `id` behind descriptor `fd` of a thread, bytes, mapped or not. `None`:
/// the thread has another file there by now, or the kernel does not tell (Linux 6.5; for a table
/// of descriptors that the main thread does not have, 6.9).
///
/// Takes the file for a moment: the close may wait for the file's server if the thread has replaced
/// it.
pub(super) fn bytes_of(pid: u32, tid: u32, fd: i32, id: FileId) -> Option<u64> {
    let task = if tid == pid { pidfd::open(pid) } else { pidfd::open_thread(tid) }.ok()?;
    // SAFETY: takes numbers; the result is a new descriptor without another owner, or -1.
    let file = unsafe {
        match libc::syscall(libc::SYS_pidfd_getfd, task.as_raw_fd(), fd, 0) {
            -1 => return None,
            fd => OwnedFd::from_raw_fd(fd as i32),
        }
    };
    let stat = rustix::fs::fstat(&file).ok()?;
    if (FileId { device: stat.st_dev, inode: stat.st_ino }) != id {
        return None;
    }
    let (range, mut found) = (Range::default(), CacheStat::default());
    // SAFETY: both structures are as the kernel defines them, and live through the call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut found, 0) };
    (result == 0).then(|| found.cached * rustix::param::page_size() as u64)
}
