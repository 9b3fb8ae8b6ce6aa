//! The connection to the kernel: `/dev/fuse`, its requests, replies and backing files.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::error::Error;
use crate::wire::types::{BackingMap, MIN_READ_BUFFER};

/// `_IOW(229, 1, struct fuse_backing_map)`.
const DEV_IOC_BACKING_OPEN: libc::Ioctl = 0x4010_e501;
/// `_IOW(229, 2, uint32_t)`.
const DEV_IOC_BACKING_CLOSE: libc::Ioctl = 0x4004_e502;

/// Buffer for one request, aligned for its structures. Far larger than our largest request (an
/// ioctl of at most 16 KiB); the kernel requires [`MIN_READ_BUFFER`] at least.
pub(crate) struct RequestBuffer(Box<[u64]>);

impl RequestBuffer {
    const BYTES: usize = 8 * MIN_READ_BUFFER;

    pub(crate) fn new() -> Self {
        Self(vec![0; Self::BYTES / 8].into_boxed_slice())
    }

    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        &self.0.as_bytes()[..len]
    }
}

/// A request outside of the buffer that it was read into, aligned as there.
pub(crate) struct StoredRequest {
    words: Box<[u64]>,
    len: usize,
}

impl StoredRequest {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut words = vec![0; bytes.len().div_ceil(8)].into_boxed_slice();
        words.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        Self { words, len: bytes.len() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..self.len]
    }
}

/// Result of a read from the connection.
pub(crate) enum Incoming {
    /// A request of that many bytes is in the buffer.
    Request(usize),
    /// No request is pending, or a signal has interrupted a blocking read.
    Nothing,
    /// The connection is gone: unmounted, or aborted by an administrator.
    Closed,
}

/// Whether [`Channel::read`] waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    Yes,
    No,
}

/// The connection. Closing its last descriptor aborts it: pending calls of clients then fail with
/// `ECONNABORTED`, later ones with `ENOTCONN`.
pub(crate) struct Channel {
    device: OwnedFd,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Channel {
    /// Opens `/dev/fuse`, non-blocking.
    pub(crate) fn open() -> Result<Self, Error> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
            .map_err(|errno| Error::FuseDevice { errno })?;
        Ok(Self { device })
    }

    /// Wraps a connection that another process has opened, non-blocking.
    pub(crate) fn from_device(device: OwnedFd) -> Self {
        Self { device }
    }

    /// Makes reads by all threads wait for a request, or not.
    pub(crate) fn set_blocking(&self, blocking: Blocking) -> io::Result<()> {
        use rustix::fs::OFlags;
        let flags = match blocking {
            Blocking::Yes => OFlags::RDWR,
            Blocking::No => OFlags::RDWR | OFlags::NONBLOCK,
        };
        Ok(rustix::fs::fcntl_setfl(&self.device, flags)?)
    }

    /// Reads one request if one is pending.
    pub(crate) fn read(&self, buffer: &mut RequestBuffer) -> io::Result<Incoming> {
        loop {
            match rustix::io::read(&self.device, buffer.0.as_mut_bytes()) {
                Ok(len) => return Ok(Incoming::Request(len)),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Incoming::Nothing),
                Err(Errno::NODEV) => return Ok(Incoming::Closed),
                // ENOENT: the request was withdrawn while it was being read.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Writes one reply or notification. A reply whose request is gone, or a notification about a
    /// node that is gone, is no error: the client has exited or the kernel has forgotten the node.
    pub(crate) fn send(&self, reply: &[u8]) -> io::Result<()> {
        taken(rustix::io::retry_on_intr(|| rustix::io::write(&self.device, reply)))
    }

    /// Like [`send`](Self::send), for a notification in several parts.
    pub(crate) fn send_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        taken(rustix::io::retry_on_intr(|| rustix::io::writev(&self.device, parts)))
    }

    /// Registers `file` as a backing file; the id is valid in OPEN replies until it is closed.
    pub(crate) fn backing_open(&self, file: &File) -> io::Result<i32> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the ioctl reads one `BackingMap`, which lives across the call.
        let id =
            unsafe { libc::ioctl(self.device.as_raw_fd(), DEV_IOC_BACKING_OPEN, &raw const map) };
        if id > 0 { Ok(id) } else { Err(io::Error::last_os_error()) }
    }

    /// Drops a backing id; open files keep their backing file.
    pub(crate) fn backing_close(&self, id: i32) {
        let id = id as u32;
        // SAFETY: the ioctl reads one `u32`, which lives across the call. A failure means that the
        // connection is gone, and the id with it.
        unsafe { libc::ioctl(self.device.as_raw_fd(), DEV_IOC_BACKING_CLOSE, &raw const id) };
    }
}

/// Result of a write to the connection.
fn taken(written: Result<usize, Errno>) -> io::Result<()> {
    match written {
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
