//! The connection to the kernel: `/dev/fuse`, its negotiation, requests, replies and backing files.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

use crate::Error;
use crate::mapping::{CacheBypass, MappingChoice, MappingKind, Passthrough, machine_page_size};
use crate::wire::types::{
    BackingMap, INIT_DIRECT_IO_ALLOW_MMAP, INIT_EXT, INIT_PARALLEL_DIROPS, INIT_PASSTHROUGH,
    InitIn, InitOut, KERNEL_MINOR_VERSION, KERNEL_VERSION, MIN_READ_BUFFER, OLDEST_MINOR_VERSION,
};
use crate::wire::{Operation, ReplyBuffer, Request};

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
        let device = headroom_linux::mountinfo::open_fuse().map_err(Error::FuseDevice)?;
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

/// The kernel sends INIT by itself right after mount(2); if it is missing after this time, the
/// mount has failed.
const INIT_SECONDS: i64 = 10;

/// Result of the INIT negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Agreement {
    pub(crate) mapping: MappingKind,
    pub(crate) cache_bypass: CacheBypass,
}

/// Replies to INIT and decides how mappings are backed.
pub(crate) fn start_session(
    channel: &Arc<Channel>,
    choice: MappingChoice,
    degraded: &mut Vec<String>,
) -> Result<Agreement, Error> {
    let mut buffer = RequestBuffer::new();
    let len = wait_for_init(channel, &mut buffer)?;
    let request = Request::parse(buffer.bytes(len)).map_err(|e| Error::Handshake(e.to_string()))?;
    let Operation::Init(init, flags2) = request.operation else {
        return Err(Error::Handshake(format!("expected INIT, got {:?}", request.operation)));
    };
    let wanted = match choice {
        MappingChoice::Only(kind) => kind,
        MappingChoice::Auto => MappingKind::Passthrough,
    };
    let (out, offered) = negotiate(&init, flags2, wanted)?;
    let notify_store = Agreement { mapping: MappingKind::NotifyStore, ..offered };
    channel
        .send(ReplyBuffer::default().body(request.header.unique, &out))
        .map_err(Error::io("cannot answer INIT"))?;
    let lacking = if offered.mapping == MappingKind::Passthrough {
        Passthrough::new(channel).err().map(|error| format!("a backing file is refused: {error}"))
    } else {
        Some("the kernel does not offer it (Linux 6.9 does)".to_owned())
    };
    match (choice, lacking) {
        (MappingChoice::Only(MappingKind::NotifyStore), _) => Ok(notify_store),
        (_, None) => Ok(offered),
        (MappingChoice::Only(MappingKind::Passthrough), Some(why)) => {
            Err(Error::NoPassthrough(why))
        }
        (MappingChoice::Auto, Some(why)) => {
            degraded.push(format!(
                "no FUSE passthrough ({why}): receive buffers go through the page cache by \
                 notify-store, one more copy each"
            ));
            Ok(notify_store)
        }
    }
}

fn wait_for_init(channel: &Channel, buffer: &mut RequestBuffer) -> Result<usize, Error> {
    let wait = Timespec { tv_sec: INIT_SECONDS, tv_nsec: 0 };
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&wait)))
        .map_err(Error::io("cannot wait for INIT"))?;
    match channel.read(buffer).map_err(Error::io("cannot read INIT"))? {
        Incoming::Request(len) => Ok(len),
        Incoming::Nothing => Err(Error::Handshake(format!("no INIT within {INIT_SECONDS} s"))),
        Incoming::Closed => Err(Error::Handshake("unmounted before INIT".into())),
    }
}

/// The reply to INIT, and what the kernel supports: the `wanted` mapping or the lesser one.
fn negotiate(
    init: &InitIn,
    flags2: u32,
    wanted: MappingKind,
) -> Result<(InitOut, Agreement), Error> {
    if init.major != KERNEL_VERSION || init.minor < OLDEST_MINOR_VERSION {
        return Err(Error::TooOld { major: init.major, minor: init.minor });
    }
    let offered = u64::from(init.flags) | u64::from(flags2) << 32;
    let mut flags = INIT_PARALLEL_DIROPS | INIT_EXT | INIT_DIRECT_IO_ALLOW_MMAP;
    if wanted == MappingKind::Passthrough {
        flags |= INIT_PASSTHROUGH;
    }
    let agreed = offered & flags;
    let mapping = if agreed & INIT_PASSTHROUGH == 0 {
        MappingKind::NotifyStore
    } else {
        MappingKind::Passthrough
    };
    let cache_bypass = if agreed & INIT_DIRECT_IO_ALLOW_MMAP == 0 {
        CacheBypass::Never
    } else {
        CacheBypass::ReadAndWrite
    };
    let out = InitOut {
        major: KERNEL_VERSION,
        minor: KERNEL_MINOR_VERSION.min(init.minor),
        // Reading ahead would only lock more pages of a receive buffer for longer.
        max_readahead: 0,
        flags: agreed as u32,
        flags2: (agreed >> 32) as u32,
        max_background: 64,
        congestion_threshold: 48,
        // Writes are refused: a page that a client has modified must fit, so that its write-back
        // is.
        max_write: machine_page_size().bytes(),
        time_gran: 1,
        // The backing files are on tmpfs, which is not stacked on another filesystem.
        max_stack_depth: u32::from(mapping == MappingKind::Passthrough),
        ..InitOut::default()
    };
    Ok((out, Agreement { mapping, cache_bypass }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn init(minor: u32, flags: u64) -> (InitIn, u32) {
        let init =
            InitIn { major: 7, minor, max_readahead: 131_072, flags: (flags & 0xffff_ffff) as u32 };
        (init, (flags >> 32) as u32)
    }

    #[test]
    fn passthrough_is_agreed_on_where_it_is_offered_and_wanted() {
        let (new, flags2) = init(45, INIT_EXT | INIT_PASSTHROUGH | INIT_PARALLEL_DIROPS | 1);
        let (out, agreed) = negotiate(&new, flags2, MappingKind::Passthrough).unwrap();
        assert_eq!(agreed.mapping, MappingKind::Passthrough);
        assert_eq!((out.minor, out.max_stack_depth, out.flags2), (40, 1, 1 << 5));
        assert_eq!(u64::from(out.flags), INIT_EXT | INIT_PARALLEL_DIROPS, "nothing else");
        let (out, agreed) = negotiate(&new, flags2, MappingKind::NotifyStore).unwrap();
        assert_eq!(agreed.mapping, MappingKind::NotifyStore);
        assert_eq!((out.max_stack_depth, out.flags2), (0, 0));
    }

    #[test]
    fn an_older_kernel_gets_its_own_version_and_no_passthrough() {
        let (old, flags2) = init(31, INIT_PARALLEL_DIROPS);
        let (out, agreed) = negotiate(&old, flags2, MappingKind::Passthrough).unwrap();
        assert_eq!((out.minor, agreed.mapping), (31, MappingKind::NotifyStore));
    }

    #[test]
    fn reads_bypass_the_cache_only_where_shared_mappings_are_possible_all_the_same() {
        let offers = [
            (INIT_EXT, CacheBypass::Never),
            (INIT_EXT | INIT_DIRECT_IO_ALLOW_MMAP, CacheBypass::ReadAndWrite),
        ];
        for (flags, expected) in offers {
            let (init, flags2) = init(39, flags);
            let (_, agreed) = negotiate(&init, flags2, MappingKind::NotifyStore).unwrap();
            assert_eq!(agreed.cache_bypass, expected);
        }
    }

    #[test]
    fn an_outdated_kernel_is_named() {
        let (old, flags2) = init(30, 0);
        let error = negotiate(&old, flags2, MappingKind::Passthrough).unwrap_err();
        assert!(error.to_string().contains("7.30"), "{error}");
    }
}
