//! System calls, and what they take: descriptors that the daemon sends, memory that may be missing.
//! None sets the C library's `errno` when the caller does not return an error, and none is a point
//! at which a thread can be cancelled, as `ioctl` is not.

use std::ffi::{c_int, c_long};
use std::ptr::null;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use binder_ring::page::MAX_FILES;

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
fn socket_pair() -> Option<[c_int; 2]> {
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
unsafe fn receive_message(socket: c_int, message: &mut libc::msghdr, flags: c_int) -> bool {
    let message = &raw mut *message;
    // SAFETY: the caller's.
    let call = || unsafe { libc::syscall(libc::SYS_recvmsg, socket, message, flags) };
    checked(call).is_ok_and(|bytes| bytes > 0)
}

/// Whether a byte can be read. It is given as a signal set to a call that refuses everything else.
fn is_readable(address: u64) -> bool {
    const NO_ACTION: c_int = -1;
    let (none, bytes) = (null::<u8>(), size_of::<u64>());
    // SAFETY: the kernel copies from the address and fails then, whatever it has read.
    let call = || unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, NO_ACTION, address as usize, none, bytes)
    };
    checked(call) != Err(libc::EFAULT)
}

/// Writes to memory that may not be writable. False: it is not.
fn write_own_memory(address: u64, bytes: &[u8]) -> bool {
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

/// Makes a pair of sockets, lets `request` name the second one to the daemon, and receives what it
/// has sent over it. Returns how many descriptors were received. `None`: not all of them, or
/// `request` has failed.
pub(crate) fn receive_files(
    numbers: &mut [u32; MAX_FILES],
    request: impl FnOnce(u32) -> bool,
) -> Option<usize> {
    keep_errno(|| {
        let sockets = socket_pair()?;
        let is_sent = request(sockets[1] as u32);
        let received = if is_sent { receive_from(sockets[0], numbers) } else { None };
        sockets.into_iter().for_each(close);
        received
    })
}

/// Closes descriptors that the daemon has passed to us: the program does not know them, or has
/// freed the buffer that contains them.
pub(crate) fn close_all(numbers: &[u32]) {
    numbers.iter().for_each(|&number| close(number as c_int));
}

fn receive_from(socket: c_int, numbers: &mut [u32; MAX_FILES]) -> Option<usize> {
    const CONTROL: usize = 24 + 4 * MAX_FILES;
    #[repr(align(8))]
    struct Control([u8; CONTROL]);
    let (mut control, mut byte) = (Control([0; CONTROL]), 0_u8);
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the structure consists of numbers and pointers that may be null.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    // Binder installs descriptors with O_CLOEXEC.
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: all parts of the message are ours.
    unsafe {
        if !receive_message(socket, &mut message, flags) {
            return None;
        }
        let head = libc::CMSG_FIRSTHDR(&message);
        if head.is_null() || (*head).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        let bytes = (*head).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
        let count = (bytes / size_of::<u32>()).min(MAX_FILES);
        std::ptr::copy_nonoverlapping(
            libc::CMSG_DATA(head),
            numbers.as_mut_ptr().cast(),
            count * size_of::<u32>(),
        );
        if message.msg_flags & libc::MSG_CTRUNC == 0 {
            return Some(count);
        }
        // The table of descriptors is full.
        close_all(&numbers[..count]);
        None
    }
}

/// Size of a page: of every architecture, the smallest.
const PAGE: u64 = 4096;

/// Memory of the program that a thread's last call has used, in whole pages: most threads use the
/// same again. Such memory may be missing: then the system call fails, and so must we, instead of
/// the program.
#[derive(Default)]
pub(crate) struct KnownMemory {
    start: AtomicU64,
    end: AtomicU64,
}

impl KnownMemory {
    fn note(&self, address: u64, len: usize) {
        self.start.store(address & !(PAGE - 1), Relaxed);
        let end = address.saturating_add(len as u64);
        self.end.store(end.checked_next_multiple_of(PAGE).unwrap_or(end), Relaxed);
    }

    fn contains(&self, address: u64, len: usize) -> bool {
        let end = address.checked_add(len as u64);
        self.start.load(Relaxed) <= address && end.is_some_and(|end| end <= self.end.load(Relaxed))
    }

    /// The bytes at an address. `None`: a part of them cannot be read.
    pub(crate) fn readable(&self, address: u64, len: usize) -> Option<&'static [u8]> {
        if !self.contains(address, len) {
            readable(address, len)?;
            self.note(address, len);
        }
        // SAFETY: it can be read. A program that removes or changes the memory of its own call
        // during the call harms itself.
        Some(unsafe { slice(address, len) })
    }

    /// Whether the bytes at an address can be read and written.
    pub(crate) fn is_writable(&self, address: u64, len: usize) -> bool {
        if len == 0 || self.contains(address, len) {
            return true;
        }
        let bytes = readable(address, len);
        let is_writable = bytes.is_some_and(|bytes| write_own_memory(address, bytes));
        if is_writable {
            self.note(address, len);
        }
        is_writable
    }

    /// Writes to an address. False: a part of it cannot be written.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        if self.contains(address, bytes.len()) {
            // SAFETY: it can be written.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
            }
            return true;
        }
        let is_written = write_own_memory(address, bytes);
        if is_written {
            self.note(address, bytes.len());
        }
        is_written
    }
}

/// The bytes at an address. `None`: a part of them cannot be read.
pub(crate) fn readable(address: u64, len: usize) -> Option<&'static [u8]> {
    if len == 0 {
        return Some(&[]);
    }
    // The first page is never mapped, and a null pointer is no signal set.
    if address < PAGE {
        return None;
    }
    let last = address.checked_add(len as u64 - 1)?;
    for page in address / PAGE..=last / PAGE {
        // Eight bytes are read at once, from within the page.
        if !is_readable((page * PAGE).max(address) & !7) {
            return None;
        }
    }
    // SAFETY: all its pages can be read.
    Some(unsafe { slice(address, len) })
}

/// # Safety
///
/// The memory can be read.
unsafe fn slice(address: u64, len: usize) -> &'static [u8] {
    match len {
        0 => &[],
        // SAFETY: the caller's.
        _ => unsafe { std::slice::from_raw_parts(address as *const u8, len) },
    }
}
