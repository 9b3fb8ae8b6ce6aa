//! How receive buffers reach their client's mapping: two ways behind one trait.
//!
//! Both are write-only for the driver: a client can make its mapping writable, so bytes that are
//! read back from it are never trusted.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex};

use binder_driver::PageSize;
use headroom_linux::descriptors::{KeptFd, sealed_memfd};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::channel::Channel;
use crate::page_server::PageServer;
use crate::sync::lock;
use crate::tree::DEVICE_SIZE;
use crate::wire::ReplyBuffer;
use crate::wire::types::{FOPEN_DIRECT_IO, FOPEN_PASSTHROUGH};

/// Size of this machine's pages, the unit of [`Backing::punch`].
pub(crate) fn machine_page_size() -> PageSize {
    // No architecture of Linux has other sizes in use.
    PageSize::new(rustix::param::page_size()).unwrap_or_default()
}

/// Backing store of one open's mapping. Offsets and lengths outside of [`DEVICE_SIZE`] are errors.
pub(crate) trait Backing {
    /// Writes `bytes` at `offset`.
    fn store(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes a range read as zeros.
    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// Releases whole pages.
    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()>;
    /// `FOPEN_*` flags and backing id of the OPEN reply.
    fn open_reply(&self) -> (u32, i32);
    /// The backing store for a state.
    fn save(&self) -> SavedBacking;
}

/// A [`Backing`] in a state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum SavedBacking {
    Passthrough { memfd: KeptFd, backing_id: i32 },
    NotifyStore(SavedTruth),
}

impl SavedBacking {
    pub(crate) fn descriptor(&self) -> Option<KeptFd> {
        match self {
            Self::Passthrough { memfd, .. } => Some(*memfd),
            Self::NotifyStore(_) => None,
        }
    }
}

/// How mappings are backed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MappingKind {
    /// The client maps a memfd of ours: a store is a plain copy.
    Passthrough,
    /// We push bytes into the page cache of the device file, and keep a copy for when the cache
    /// drops them.
    NotifyStore,
}

impl MappingKind {
    /// Name of the option on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::NotifyStore => "notify-store",
        }
    }
}

/// Which mapping to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MappingChoice {
    /// Passthrough if it works, else notify-store with one warning.
    #[default]
    Auto,
    /// Only this kind; fails if it is not available.
    Only(MappingKind),
}

impl std::str::FromStr for MappingChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "passthrough" => Ok(Self::Only(MappingKind::Passthrough)),
            "notify-store" => Ok(Self::Only(MappingKind::NotifyStore)),
            _ => Err(format!("{text:?} is none of auto, passthrough, notify-store")),
        }
    }
}

/// The range as `usize`, if it lies within the device file.
fn checked_range(offset: u64, len: u64) -> io::Result<Range<usize>> {
    let end = offset.checked_add(len).filter(|&end| end <= DEVICE_SIZE);
    let end = end.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    Ok(offset as usize..end as usize)
}

/// Our mapping of a file that we share with clients, readable and writable.
pub(crate) struct SharedMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the value alone, and is reached through it only.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    /// Maps the first bytes of a file. An access faults unless the file has that length and is
    /// sealed against shrinking.
    pub(crate) fn new(file: impl AsFd, len: usize, flags: MapFlags) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | flags);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap(null_mut(), len, protection, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// The first byte, which is at the start of a page.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and no reference to it is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// One open's mapping by FUSE passthrough: it is the mapping of a memfd that we write. The memfd is
/// sparse: only pages with stored data exist.
pub(crate) struct Passthrough {
    channel: Arc<Channel>,
    memfd: File,
    backing_id: i32,
    /// Created at the first store: an open that never receives uses no address space.
    view: Option<SharedMapping>,
}

impl Passthrough {
    /// A memfd registered as backing file. Fails without `CAP_SYS_ADMIN` in the first user
    /// namespace, and before Linux 6.9.
    pub(crate) fn new(channel: &Arc<Channel>) -> io::Result<Self> {
        // Writing cannot be sealed: we write, and punch holes.
        let memfd = File::from(sealed_memfd("binder-buffers", DEVICE_SIZE)?);
        let backing_id = channel.backing_open(&memfd)?;
        Ok(Self { channel: Arc::clone(channel), memfd, backing_id, view: None })
    }

    /// The memfd of a state, which the kernel knows by this id.
    pub(crate) fn restore(channel: &Arc<Channel>, memfd: OwnedFd, backing_id: i32) -> Self {
        Self { channel: Arc::clone(channel), memfd: memfd.into(), backing_id, view: None }
    }

    fn view(&mut self) -> io::Result<*mut u8> {
        let view = match self.view.take() {
            Some(view) => view,
            None => SharedMapping::new(&self.memfd, DEVICE_SIZE as usize, MapFlags::empty())?,
        };
        Ok(self.view.insert(view).start().as_ptr())
    }
}

impl Backing for Passthrough {
    fn store(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = checked_range(offset, bytes.len() as u64)?;
        let view = self.view()?;
        // SAFETY: the range lies in the view. The client may read or write the same memory at the
        // same time; we form no reference to it and never read it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), view.add(range.start), bytes.len())
        };
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let range = checked_range(offset, len)?;
        let view = self.view()?;
        // SAFETY: as in `store`.
        unsafe { std::ptr::write_bytes(view.add(range.start), 0, range.len()) };
        Ok(())
    }

    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()> {
        checked_range(offset, len)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.memfd, flags, offset, len)?)
    }

    fn open_reply(&self) -> (u32, i32) {
        // DIRECT_IO: read(2) and write(2) still come to us, and are refused.
        (FOPEN_PASSTHROUGH | FOPEN_DIRECT_IO, self.backing_id)
    }

    fn save(&self) -> SavedBacking {
        let memfd = KeptFd::of(&self.memfd);
        SavedBacking::Passthrough { memfd, backing_id: self.backing_id }
    }
}

impl Drop for Passthrough {
    fn drop(&mut self) {
        self.channel.backing_close(self.backing_id);
    }
}

/// Maximum number of bytes in one notification: a store of 64 KiB needs one, whatever its offset.
const MAX_NOTIFICATION: usize = 128 << 10;

/// Bytes of the parts in which [`Truth`] keeps contents: of the smallest pages that a machine has.
const PART: u64 = 4096;

/// Whether `read(2)` and `write(2)` of a device bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CacheBypass {
    /// Both reach the server, which refuses them.
    ReadAndWrite,
    /// The kernel refuses shared mappings of a file that bypasses the cache (before Linux 6.6).
    Never,
}

/// Contents of the mapping: parts that were stored; all others are zeros.
#[derive(Default)]
pub(crate) struct Truth {
    parts: BTreeMap<u64, Box<[u8; PART as usize]>>,
    /// The client has a writable shared mapping: the kernel has written a page back.
    is_written_by_client: bool,
}

impl Truth {
    /// Copies out of the mapping's contents.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        each_part(offset, into.len(), |part, within, range| match self.parts.get(&part) {
            Some(bytes) => into[range].copy_from_slice(&bytes[within]),
            None => into[range].fill(0),
        });
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        each_part(offset, bytes.len(), |part, within, range| {
            let target = self.parts.entry(part).or_insert_with(|| Box::new([0; PART as usize]));
            target[within].copy_from_slice(&bytes[range]);
        });
    }

    fn zero(&mut self, offset: u64, len: usize) {
        each_part(offset, len, |part, within, _| {
            if let Some(target) = self.parts.get_mut(&part) {
                target[within].fill(0);
            }
        });
    }

    /// Records that the kernel has written back a page that the client modified.
    pub(crate) fn note_client_write(&mut self) {
        self.is_written_by_client = true;
    }

    /// Drops whole parts.
    fn punch(&mut self, offset: u64, len: u64) {
        let range = offset.div_ceil(PART)..(offset + len) / PART;
        if range.is_empty() {
            return;
        }
        let mut behind = self.parts.split_off(&range.start);
        self.parts.append(&mut behind.split_off(&range.end));
    }
}

/// A [`Truth`] in a state. It is not copied to be written.
#[derive(Clone)]
pub(crate) struct SavedTruth(Arc<Mutex<Truth>>);

impl SavedTruth {
    /// Checks that all parts are within the device file.
    pub(crate) fn check(&self) -> Result<(), String> {
        match lock(&self.0).parts.last_key_value() {
            Some((part, _)) if *part >= DEVICE_SIZE / PART => Err(format!("part {part} of a file")),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for SavedTruth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} parts", lock(&self.0).parts.len())
    }
}

impl Serialize for SavedTruth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Bytes<'a>(&'a [u8]);
        impl Serialize for Bytes<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(self.0)
            }
        }
        let truth = lock(&self.0);
        let parts = truth.parts.iter().map(|(number, part)| (number, Bytes(&**part)));
        (parts.collect::<Vec<_>>(), truth.is_written_by_client).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SavedTruth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (parts, is_written_by_client) =
            <(Vec<(u64, &'de [u8])>, bool)>::deserialize(deserializer)?;
        let part = |(number, bytes): (u64, &[u8])| {
            let part = <[u8; PART as usize]>::try_from(bytes).map_err(D::Error::custom)?;
            Ok((number, Box::new(part)))
        };
        let parts = parts.into_iter().map(part).collect::<Result<_, D::Error>>()?;
        Ok(Self(Arc::new(Mutex::new(Truth { parts, is_written_by_client }))))
    }
}

/// Calls `f(number, range within the part, range within the whole)` for each part of a range.
fn each_part(offset: u64, len: usize, mut f: impl FnMut(u64, Range<usize>, Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let start = (at % PART) as usize;
        let step = (PART as usize - start).min(len - done);
        f(at / PART, start..start + step, done..done + step);
        done += step;
    }
}

/// One open's mapping by NOTIFY_STORE: we push bytes into the page cache of the device file.
///
/// The page cache may drop pages; the kernel then requests them by READ, which [`Truth`] serves.
/// Stores are widened to whole pages: a page that was stored whole counts as read, so that a
/// client's first access to a fresh buffer needs no READ.
pub(crate) struct NotifyStore {
    channel: Arc<Channel>,
    pages: Arc<PageServer>,
    node: u64,
    truth: Arc<Mutex<Truth>>,
    cache_bypass: CacheBypass,
    reply: ReplyBuffer,
}

impl NotifyStore {
    /// Creates the mapping for the open of `node`.
    pub(crate) fn new(
        channel: &Arc<Channel>,
        pages: &Arc<PageServer>,
        node: u64,
        cache_bypass: CacheBypass,
    ) -> Self {
        let truth = SavedTruth(Arc::new(Mutex::new(Truth::default())));
        Self::restore(channel, pages, node, cache_bypass, truth)
    }

    /// The mapping for the open of `node`, with the contents of a state.
    pub(crate) fn restore(
        channel: &Arc<Channel>,
        pages: &Arc<PageServer>,
        node: u64,
        cache_bypass: CacheBypass,
        SavedTruth(truth): SavedTruth,
    ) -> Self {
        pages.add(node, Arc::clone(&truth));
        let (channel, pages) = (Arc::clone(channel), Arc::clone(pages));
        Self { channel, pages, node, truth, cache_bypass, reply: ReplyBuffer::default() }
    }

    /// Stores `bytes`, which [`Truth`] contains already, in the page cache: whole pages, with the
    /// rest of the first and the last one from [`Truth`].
    fn push(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let page = u64::from(machine_page_size().bytes());
        let end = offset + bytes.len() as u64;
        let start = offset / page * page;
        let mut head = vec![0; (offset - start) as usize];
        let mut tail = vec![0; (end.next_multiple_of(page) - end) as usize];
        {
            let truth = lock(&self.truth);
            truth.read(start, &mut head);
            truth.read(end, &mut tail);
        }
        let pages = Pages([&head, bytes, &tail]);
        for at in (0..pages.len()).step_by(MAX_NOTIFICATION) {
            let range = at..pages.len().min(at + MAX_NOTIFICATION);
            let (node, offset) = (self.node, start + at as u64);
            let header = self.reply.notify_store_header(node, offset, range.len() as u32);
            let [head, bytes, tail] = pages.slices(range);
            // The kernel takes the page's lock, which a reader of the page may hold until its
            // request has a reply.
            let _inside = self.pages.enter();
            self.channel.send_parts(&[header, head, bytes, tail].map(IoSlice::new))?;
        }
        Ok(())
    }
}

/// Whole pages, in three parts.
struct Pages<'a>([&'a [u8]; 3]);

impl<'a> Pages<'a> {
    fn len(&self) -> usize {
        self.0.iter().map(|part| part.len()).sum()
    }

    /// The parts of a range.
    fn slices(&self, range: Range<usize>) -> [&'a [u8]; 3] {
        let mut start = 0;
        self.0.map(|part| {
            let within = |at: usize| at.saturating_sub(start).min(part.len());
            let slice = &part[within(range.start)..within(range.end)];
            start += part.len();
            slice
        })
    }
}

impl Backing for NotifyStore {
    fn store(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        checked_range(offset, bytes.len() as u64)?;
        lock(&self.truth).write(offset, bytes);
        self.push(offset, bytes)
    }

    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let range = checked_range(offset, len)?;
        lock(&self.truth).zero(offset, range.len());
        let zeros = vec![0; range.len().min(MAX_NOTIFICATION)];
        range
            .clone()
            .step_by(MAX_NOTIFICATION)
            .try_for_each(|at| self.push(at as u64, &zeros[..zeros.len().min(range.end - at)]))
    }

    fn punch(&mut self, offset: u64, len: u64) -> io::Result<()> {
        checked_range(offset, len)?;
        let is_written_by_client = {
            let mut truth = lock(&self.truth);
            truth.punch(offset, len);
            truth.is_written_by_client
        };
        if is_written_by_client {
            // The kernel would write each modified page back before it drops it, and the event loop
            // would wait until the page server takes over. The pages are freed with the open.
            return Ok(());
        }
        let _inside = self.pages.enter();
        self.channel.send(self.reply.notify_inval_inode(self.node, offset, len))
    }

    fn open_reply(&self) -> (u32, i32) {
        match self.cache_bypass {
            CacheBypass::ReadAndWrite => (FOPEN_DIRECT_IO, 0),
            CacheBypass::Never => (0, 0),
        }
    }

    fn save(&self) -> SavedBacking {
        SavedBacking::NotifyStore(SavedTruth(Arc::clone(&self.truth)))
    }
}

impl Drop for NotifyStore {
    fn drop(&mut self) {
        self.pages.remove(self.node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_back_and_the_rest_is_zero() {
        let mut truth = Truth::default();
        truth.write(PART - 2, b"abcd");
        let mut bytes = [9; 8];
        truth.read(PART - 4, &mut bytes);
        assert_eq!(&bytes, b"\0\0abcd\0\0");
        truth.zero(PART - 1, 2);
        truth.read(PART - 4, &mut bytes);
        assert_eq!(&bytes, b"\0\0a\0\0d\0\0");
        assert_eq!(truth.parts.len(), 2);
    }

    #[test]
    fn punching_drops_whole_parts_only() {
        let mut truth = Truth::default();
        truth.write(0, &[1; 5 * PART as usize]);
        truth.punch(PART, 3 * PART);
        assert_eq!(truth.parts.keys().copied().collect::<Vec<_>>(), [0, 4]);
        truth.punch(10, 20);
        assert_eq!(truth.parts.len(), 2, "a part stays unless all of it is dropped");
    }

    #[test]
    fn a_range_of_pages_consists_of_slices_of_their_parts() {
        let pages = Pages([b"ab", b"cdef", b"gh"]);
        let joined = |range| pages.slices(range).concat();
        for (start, end) in (0..=8).flat_map(|start| (start..=8).map(move |end| (start, end))) {
            assert_eq!(joined(start..end), b"abcdefgh"[start..end]);
        }
    }
}
