//! System calls. None sets the C library's `errno` when the caller does not return an error, and
//! none is a point at which a thread can be cancelled, as `ioctl` is not.

use std::ffi::{c_int, c_long};
use std::ptr::null;
use std::sync::atomic::AtomicU32;

/// Errno (positive) of a failed system call.
pub(crate) type Errno = c_int;

/// The result of a system call that was made by the C library; its `errno` is as before.
fn checked(call: impl FnOnce() -> c_long) -> Result<c_int, Errno> {
    // SAFETY: the C library's own, always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = call();
    if result >= 0 {
        return Ok(result as c_int);
    }
    // SAFETY: as above.
    Err(unsafe { std::mem::replace(&mut *errno, before) })
}

/// # Safety
///
/// As for `ioctl(2)`.
pub(crate) unsafe fn ioctl(fd: c_int, request: u32, argument: usize) -> Result<c_int, Errno> {
    // SAFETY: the caller's.
    checked(|| unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) })
}

/// The calling thread's id, from the kernel: a thread without the C library's thread-local storage
/// has one too.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes nothing.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// A file: its device and its inode.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) major: u64,
    pub(crate) minor: u64,
    pub(crate) inode: u64,
}

impl FileId {
    /// One number. Inodes of different mounts are told apart by their devices.
    pub(crate) fn number(self) -> u64 {
        self.inode ^ (self.minor << 40)
    }
}

/// The file of a descriptor, as the kernel knows it: the file's filesystem is not asked.
pub(crate) fn file(fd: c_int) -> Option<FileId> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mut found = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let (path, into) = (c"".as_ptr(), found.as_mut_ptr());
    // SAFETY: the path and the structure are ours.
    let call = || unsafe { libc::syscall(libc::SYS_statx, fd, path, flags, libc::STATX_INO, into) };
    checked(call).ok()?;
    // SAFETY: zero is a valid value of each field, and the kernel has filled it.
    let found = unsafe { found.assume_init() };
    let (major, minor) = (found.stx_dev_major.into(), found.stx_dev_minor.into());
    Some(FileId { major, minor, inode: found.stx_ino })
}

/// Opens the list of our memory areas. It is closed by [`close`].
pub(crate) fn open_own_maps() -> Option<c_int> {
    let (path, flags) = (c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
    // SAFETY: the path is a constant.
    checked(|| unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags) }).ok()
}

/// Number of bytes that were read; 0 at the end, and if the file cannot be read.
pub(crate) fn read(fd: c_int, into: &mut [u8]) -> usize {
    // SAFETY: the buffer is ours.
    let count =
        checked(|| unsafe { libc::syscall(libc::SYS_read, fd, into.as_mut_ptr(), into.len()) });
    count.map_or(0, |count| count as usize)
}

/// Closes a descriptor that the program does not know.
pub(crate) fn close(fd: c_int) {
    // SAFETY: nobody else uses it.
    let _ = checked(|| unsafe { libc::syscall(libc::SYS_close, fd) });
}

/// A pair of sockets. They are closed by [`close`]: a sanitizer that observes the C library's calls
/// must see both, or neither.
pub(crate) fn socket_pair() -> Option<[c_int; 2]> {
    let mut sockets = [-1; 2];
    let (kind, into) = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, sockets.as_mut_ptr());
    // SAFETY: the array is ours.
    let call = || unsafe { libc::syscall(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, into) };
    checked(call).is_ok().then_some(sockets)
}

/// Receives a message; false if there is none.
///
/// # Safety
///
/// As for `recvmsg(2)`.
pub(crate) unsafe fn receive(socket: c_int, message: &mut libc::msghdr, flags: c_int) -> bool {
    let message = &raw mut *message;
    // SAFETY: the caller's.
    let call = || unsafe { libc::syscall(libc::SYS_recvmsg, socket, message, flags) };
    checked(call).is_ok_and(|bytes| bytes > 0)
}

/// Excludes memory from children of `fork`.
pub(crate) fn keep_from_children(address: u64, len: u64) {
    // SAFETY: the advice changes nothing for this process.
    keep_errno(|| unsafe { libc::madvise(address as *mut _, len as usize, libc::MADV_DONTFORK) });
}

/// Whether a byte can be read. It is given as a signal set to a call that refuses everything else.
pub(crate) fn is_readable(address: u64) -> bool {
    const NO_ACTION: c_int = -1;
    let (none, bytes) = (null::<u8>(), size_of::<u64>());
    // SAFETY: the kernel copies from the address and fails then, whatever it has read.
    let call = || unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, NO_ACTION, address as usize, none, bytes)
    };
    checked(call) != Err(libc::EFAULT)
}

/// Writes to memory that may not be writable. False: it is not.
pub(crate) fn write_own_memory(address: u64, bytes: &[u8]) -> bool {
    let from = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let to = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    // The call takes whole words; the upper half of a smaller number is undefined.
    let (one, no_flags) = (1_usize, 0_usize);
    // SAFETY: the caller of the ioctl has given this memory to be written to.
    let call = || unsafe {
        let (own, from, to) = (libc::getpid(), &raw const from, &raw const to);
        libc::syscall(libc::SYS_process_vm_writev, own, from, one, to, one, no_flags)
    };
    checked(call) == Ok(bytes.len() as c_int)
}

/// Wakes all that wait for a word.
pub(crate) fn wake(word: *const AtomicU32) {
    // SAFETY: the call uses the address as a key only.
    let _ =
        checked(|| unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, c_int::MAX) });
}

/// Waits as long as the word has this value. `EINTR`: a handler has run; `ETIMEDOUT`: the time is
/// over.
pub(crate) fn wait(word: *const AtomicU32, value: u32, nanoseconds: i64) -> Result<(), Errno> {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds as _ };
    // SAFETY: the word and the time exist during the call.
    let call = || unsafe {
        libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, &raw const time)
    };
    checked(call).map(drop)
}

/// Runs `f` with the C library's `errno` kept.
pub(crate) fn keep_errno<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the C library's own, always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = f();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}
