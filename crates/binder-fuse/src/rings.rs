//! Rings of clients' threads: the daemon's mapping of each, and the calls that they have submitted.
//!
//! A ring belongs to the thread that attached it, on one open. The daemon copies a call when it
//! takes it; the driver then reads commands and parcel from that copy, and its returns are written
//! to the ring when the call is completed. No system call touches the client's memory for that. The
//! daemon sleeps on one word of each owner.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use binder_driver::slab::{Slab, key_types};
use binder_driver::{Caller, Errno, Piece};
use binder_ring::page::{CallResult, Files, Outcome, Page, Range, STREAM_BYTES, TakenCall};
use binder_ring::turn::{Doorbell, Turn, Watch};
use binder_ring::{DOORBELL_BYTES, RING_BYTES};
use binder_uapi::BinderWriteRead;
use headroom_linux::descriptors::sealed_memfd;
use owners::{Owner, QuotaSize, Uid};
use rustix::fs::{AtFlags, Mode, OFlags, SealFlags, StatxFlags};
use rustix::mm::MapFlags;

use crate::files::ClientFile;
use crate::futex::{self, Waited};
use crate::mapping::SharedMapping;
use crate::open::OpenKey;

key_types! {
    /// A ring.
    pub(crate) struct RingKey;
}

/// Rings of an owner, and of all: each occupies a descriptor and locks [`RING_BYTES`].
const RINGS: QuotaSize = owners::bounds::RINGS.slots();
/// Rings that are watched at a time.
const WATCHED: QuotaSize = owners::bounds::WATCHED_RINGS.slots();
// They may all be of different owners, each with a word, and there is one of ours.
const _: () = assert!(WATCHED.slots < futex::MAX_WORDS);
/// A ring is watched if its thread makes two requests within this time, nanoseconds.
const SOON_NS: u64 = 5_000_000;
/// A ring is not watched any more once its thread has not called for this time, nanoseconds.
const IDLE_NS: u64 = 20_000_000;

/// Why a ring is not attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it is no memfd of this size that is sealed against shrinking")]
    Memory,
    #[error("its memory has another number")]
    Token,
    #[error("too many rings")]
    TooMany,
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Refusal {
    /// The ioctl's errno.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            Self::Memory | Self::Token => Errno::EINVAL,
            Self::TooMany => Errno::EMFILE,
            Self::System(_) => Errno::ENOMEM,
        }
    }
}

/// Our mapping of a ring.
struct RingMemory(SharedMapping);

impl RingMemory {
    fn map(file: impl AsFd) -> Result<Self, Refusal> {
        /// `statfs.f_type` of memfds of ordinary pages; an access to other memory may fault.
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        let stat = rustix::fs::fstat(&file).map_err(|_| Refusal::Memory)?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| Refusal::Memory)?;
        let filesystem = rustix::fs::fstatfs(&file).map_err(|_| Refusal::Memory)?;
        let is_sealed = seals.contains(SealFlags::SHRINK) && !seals.contains(SealFlags::WRITE);
        let is_tmpfs = filesystem.f_type as u64 == TMPFS_MAGIC;
        if !is_sealed || !is_tmpfs || stat.st_size != RING_BYTES as i64 {
            return Err(Refusal::Memory);
        }
        Ok(Self(SharedMapping::new(file, size_of::<Page>(), MapFlags::POPULATE)?))
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is as large as a page of the ring and lives as long as `self`. All
        // bytes of it are atomic words, which the client may change at any time.
        unsafe { self.0.start().cast().as_ref() }
    }
}

/// A ring of a thread.
struct Ring {
    memory: RingMemory,
    /// The folder of the thread in `/proc`: of this very thread, also when it has exited.
    thread: OwnedFd,
    key: OpenKey,
    caller: Caller,
    owner: Owner,
    watch: Watch,
    call: TakenCall,
    is_in_call: bool,
    returns: Vec<u8>,
    /// Of the transaction that the thread is to fetch files of.
    files: Vec<Arc<ClientFile>>,
    /// Time of the last call or request of the thread, nanoseconds.
    last_ns: u64,
}

impl Ring {
    fn page(&self) -> &Page {
        self.memory.page()
    }

    fn set_watch(&mut self, watch: Watch) {
        self.watch = watch;
        self.page().words.set_watch(watch);
    }

    fn wake_client(&self) {
        futex::wake(self.page().words.turn_word());
    }
}

/// A call that was taken from a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingCall {
    pub(crate) key: OpenKey,
    pub(crate) caller: Caller,
    pub(crate) ring: RingKey,
    pub(crate) argument: BinderWriteRead,
    pub(crate) arrived: Files,
    /// Whether the thread still is who it was when it attached the ring.
    pub(crate) is_same: bool,
}

/// The result of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingResult<'a> {
    /// Of the ioctl: 0 or a negative errno.
    pub(crate) result: i32,
    /// `None`: it stays as it was.
    pub(crate) argument: Option<BinderWriteRead>,
    pub(crate) outcome: Outcome,
    /// Descriptors that the client has to close.
    pub(crate) closes: &'a [u32],
}

/// A ring that a thread attaches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRing {
    pub(crate) key: OpenKey,
    pub(crate) caller: Caller,
    pub(crate) owner: Owner,
    /// The number that the memory has to contain.
    pub(crate) token: u64,
    pub(crate) now_ns: u64,
}

/// The doorbell of an owner.
struct OwnDoorbell {
    memory: DoorbellMemory,
    /// Number of its rings, and of those that are watched.
    rings: usize,
    watched: usize,
}

/// All rings.
#[derive(Default)]
pub(crate) struct Rings {
    rings: Slab<RingKey, Ring>,
    by_thread: HashMap<u32, RingKey>,
    /// Of the owners of rings.
    doorbells: HashMap<Owner, OwnDoorbell>,
    watched: Vec<RingKey>,
    /// Those with rings that are watched.
    watched_owners: Vec<Owner>,
    /// Index in `watched` at which the next search for a call begins.
    next: usize,
    mix: CallMix,
}

impl Rings {
    /// Whether any ring is watched.
    pub(crate) fn is_watching(&self) -> bool {
        !self.watched.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.rings.len()
    }

    /// Attaches a ring for a thread that is in an ioctl on our device.
    pub(crate) fn attach(&mut self, new: NewRing, memory: impl AsFd) -> Result<(), Refusal> {
        let NewRing { key, caller, owner, token, now_ns } = new;
        let of_owner = self.doorbells.get(&owner).map_or(0, |doorbell| doorbell.rings);
        if !RINGS.has_room(of_owner, self.rings.len()) {
            return Err(Refusal::TooMany);
        }
        let memory = RingMemory::map(memory)?;
        if memory.page().token() != token {
            return Err(Refusal::Token);
        }
        let path = format!("/proc/{}", caller.tid);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let thread = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?;
        self.end(caller.tid);
        match self.doorbells.get_mut(&owner) {
            Some(doorbell) => doorbell.rings += 1,
            None => {
                let memory = DoorbellMemory::new()?;
                self.doorbells.insert(owner, OwnDoorbell { memory, rings: 1, watched: 0 });
            }
        }
        let ring = self.rings.insert(Ring {
            memory,
            thread,
            key,
            caller,
            owner,
            watch: Watch::Off,
            call: TakenCall::default(),
            is_in_call: false,
            returns: Vec::new(),
            files: Vec::new(),
            last_ns: now_ns,
        });
        self.by_thread.insert(caller.tid, ring);
        self.watch(ring, now_ns);
        Ok(())
    }

    /// Ends the ring of a thread, if it has one.
    pub(crate) fn end(&mut self, tid: u32) {
        let Some(key) = self.by_thread.remove(&tid) else { return };
        let Some(mut ring) = self.rings.remove(key) else { return };
        ring.set_watch(Watch::Ended);
        if let Some(at) = self.watched.iter().position(|&watched| watched == key) {
            self.watched.swap_remove(at);
            self.note_unwatched(ring.owner);
        }
        if let Some(doorbell) = self.doorbells.get_mut(&ring.owner) {
            doorbell.rings -= 1;
            if doorbell.rings == 0 {
                self.doorbells.remove(&ring.owner);
            }
        }
    }

    /// The doorbell of a thread with a ring, to be sent to it.
    pub(crate) fn doorbell_of(&self, tid: u32) -> Option<BorrowedFd<'_>> {
        let owner = self.of_thread(tid)?.owner;
        self.doorbells.get(&owner).map(|doorbell| doorbell.memory.as_fd())
    }

    /// A ring of the owner is not watched any more.
    fn note_unwatched(&mut self, owner: Owner) {
        let Some(doorbell) = self.doorbells.get_mut(&owner) else { return };
        doorbell.watched -= 1;
        if doorbell.watched == 0 {
            self.watched_owners.retain(|&watched| watched != owner);
        }
    }

    /// The threads with rings on an open.
    pub(crate) fn threads_of(&self, key: OpenKey) -> Vec<u32> {
        let rings = self.rings.values().filter(|ring| ring.key == key);
        rings.map(|ring| ring.caller.tid).collect()
    }

    /// All threads with rings.
    pub(crate) fn threads(&self) -> Vec<u32> {
        self.by_thread.keys().copied().collect()
    }

    fn of_thread(&self, tid: u32) -> Option<&Ring> {
        self.rings.get(*self.by_thread.get(&tid)?)
    }

    fn of_thread_mut(&mut self, tid: u32) -> Option<&mut Ring> {
        self.rings.get_mut(*self.by_thread.get(&tid)?)
    }

    /// The thread that has a ring.
    pub(crate) fn thread(&self, key: RingKey) -> Option<u32> {
        self.rings.get(key).map(|ring| ring.caller.tid)
    }

    /// A thread's ring, and its open, while it is in a call.
    pub(crate) fn in_call(&self, tid: u32) -> Option<(RingKey, OpenKey)> {
        let key = *self.by_thread.get(&tid)?;
        self.rings.get(key).filter(|ring| ring.is_in_call).map(|ring| (key, ring.key))
    }

    /// Records that a thread has made a request instead of using its ring.
    pub(crate) fn note_request(&mut self, key: OpenKey, tid: u32, now_ns: u64) {
        let ring_key = self.by_thread.get(&tid).copied();
        let own = ring_key.and_then(|number| Some((number, self.rings.get_mut(number)?)));
        let Some((ring_key, ring)) = own.filter(|(_, ring)| ring.key == key) else {
            if self.is_watching() && self.mix.request(now_ns) {
                self.release_all();
            }
            return;
        };
        // The thread has not fetched them: its request delivers them.
        ring.files.clear();
        let is_soon = now_ns.saturating_sub(ring.last_ns) < SOON_NS;
        ring.last_ns = now_ns;
        if is_soon && ring.watch == Watch::Off {
            self.watch(ring_key, now_ns);
        }
    }

    /// Begins to watch a ring, unless too many are watched or requests prevail.
    fn watch(&mut self, key: RingKey, now_ns: u64) {
        if !self.mix.allows_rings(now_ns) {
            return;
        }
        let Some(ring) = self.rings.get_mut(key) else { return };
        let Some(doorbell) = self.doorbells.get_mut(&ring.owner) else { return };
        if WATCHED.has_room(doorbell.watched, self.watched.len()) {
            self.watched.push(key);
            doorbell.watched += 1;
            if doorbell.watched == 1 {
                self.watched_owners.push(ring.owner);
            }
            ring.set_watch(Watch::On);
        }
    }

    /// Stops watching the rings whose threads have not called for long.
    pub(crate) fn release_idle(&mut self, now_ns: u64) {
        self.release(|ring| now_ns.saturating_sub(ring.last_ns) >= IDLE_NS);
    }

    /// Stops watching all rings. Each is watched again once its thread makes requests.
    pub(crate) fn release_all(&mut self) {
        self.release(|_| true);
    }

    fn release(&mut self, is_unwanted: impl Fn(&Ring) -> bool) {
        let mut at = 0;
        while let Some(&key) = self.watched.get(at) {
            let Some(ring) = self.rings.get_mut(key) else {
                self.watched.swap_remove(at);
                continue;
            };
            if !is_unwanted(ring) {
                at += 1;
                continue;
            }
            ring.set_watch(Watch::Off);
            if ring.page().words.turn() == Turn::Submitted {
                // It has not seen that.
                ring.set_watch(Watch::On);
                at += 1;
            } else {
                let owner = ring.owner;
                self.watched.swap_remove(at);
                self.note_unwatched(owner);
            }
        }
    }

    /// Takes the next call that was submitted; threads take turns.
    pub(crate) fn take_call(&mut self, now_ns: u64) -> Option<RingCall> {
        let count = self.watched.len();
        for step in 0..count {
            let at = (self.next + step) % count;
            let key = self.watched[at];
            let Some(ring) = self.rings.get_mut(key) else { continue };
            if ring.is_in_call || !ring.memory.page().words.take() {
                continue;
            }
            self.next = at + 1;
            ring.memory.page().read_call(&mut ring.call);
            ring.is_in_call = true;
            ring.last_ns = now_ns;
            ring.returns.clear();
            self.mix.call();
            return Some(RingCall {
                key: ring.key,
                caller: ring.caller,
                ring: key,
                argument: ring.call.argument,
                arrived: ring.call.arrived,
                is_same: uid_of(&ring.thread) == Some(ring.caller.euid),
            });
        }
        None
    }

    /// Whether a call was submitted.
    fn has_call(&self) -> bool {
        let mut rings = self.watched.iter().filter_map(|&key| self.rings.get(key));
        rings.any(|ring| !ring.is_in_call && ring.page().words.turn() == Turn::Submitted)
    }

    /// The doorbells of the rings that are watched.
    fn watched_doorbells(&self) -> impl Iterator<Item = &Doorbell> {
        let doorbells = self.watched_owners.iter().filter_map(|owner| self.doorbells.get(owner));
        doorbells.map(|doorbell| doorbell.memory.doorbell())
    }

    /// Sleeps until a call is submitted, `other` is not 0, or the time is over.
    pub(crate) fn sleep(&self, other: &AtomicU32, timeout_ns: u64) -> Waited {
        let mut words = futex::Words::new(other);
        for doorbell in self.watched_doorbells() {
            words.add(doorbell.word(), doorbell.fall_asleep());
        }
        let waited = if self.has_call() { Waited::Woken } else { words.wait(timeout_ns) };
        self.watched_doorbells().for_each(Doorbell::wake_up);
        waited
    }

    /// Completes a call.
    pub(crate) fn complete(&mut self, key: RingKey, result: RingResult<'_>) {
        let Some(ring) = self.rings.get_mut(key) else { return };
        let result = CallResult {
            argument: result.argument.unwrap_or(ring.call.argument),
            errno: result.result.unsigned_abs(),
            outcome: result.outcome,
            closes: Files::new(result.closes),
        };
        ring.is_in_call = false;
        ring.page().write_result(&result, &ring.returns);
        ring.page().words.complete();
        ring.wake_client();
    }

    /// Keeps files for their receiver.
    pub(crate) fn keep_files(&mut self, key: RingKey, files: Vec<Arc<ClientFile>>) {
        if let Some(ring) = self.rings.get_mut(key) {
            ring.files = files;
        }
    }

    /// The files that are kept for a thread.
    pub(crate) fn take_files(&mut self, tid: u32) -> Vec<Arc<ClientFile>> {
        self.of_thread_mut(tid).map(|ring| std::mem::take(&mut ring.files)).unwrap_or_default()
    }

    /// The bytes that a thread has submitted with its call, if they contain this range.
    pub(crate) fn read(&self, tid: u32, address: u64, into: &mut [u8]) -> bool {
        let Some(ring) = self.of_thread(tid).filter(|ring| ring.is_in_call) else { return false };
        let bytes = ring.call.bytes(address, into.len());
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }

    /// Like [`read`](Self::read), for the first pieces; returns how many were read.
    pub(crate) fn read_pieces(&self, tid: u32, pieces: &[Piece], into: &mut [u8]) -> usize {
        let is_read =
            |piece: &&Piece| self.read(tid, piece.address, &mut into[piece.at..][..piece.len]);
        if self.by_thread.is_empty() { 0 } else { pieces.iter().take_while(is_read).count() }
    }

    /// Keeps returns for the ring of a thread that is in a call. False: it is in none, or the range
    /// is not in its read buffer.
    pub(crate) fn write(&mut self, tid: u32, address: u64, bytes: &[u8]) -> bool {
        let ring = self.of_thread_mut(tid).filter(|ring| ring.is_in_call);
        let Some(ring) = ring else { return false };
        let BinderWriteRead { read_buffer, read_size, .. } = ring.call.argument;
        let buffer = Range { address: read_buffer, len: read_size.min(STREAM_BYTES as u64) };
        let Some(offset) = buffer.offset_of(address, bytes.len()) else { return false };
        let end = offset + bytes.len();
        if ring.returns.len() < end {
            ring.returns.resize(end, 0);
        }
        ring.returns[offset..end].copy_from_slice(bytes);
        true
    }
}

/// The effective uid of a thread. `None`: it has exited.
fn uid_of(thread: &OwnedFd) -> Option<Uid> {
    let stat = rustix::fs::statx(thread, "", AtFlags::EMPTY_PATH, StatxFlags::UID).ok()?;
    Some(Uid(stat.stx_uid))
}

/// The memory of a [`Doorbell`], which the daemon shares with the clients of an owner: a memfd and
/// our mapping of it.
struct DoorbellMemory {
    memfd: OwnedFd,
    mapping: SharedMapping,
}

impl DoorbellMemory {
    /// New memory, sealed against resizing.
    fn new() -> io::Result<Self> {
        let memfd = sealed_memfd("binder-doorbell", DOORBELL_BYTES as u64)?;
        let mapping = SharedMapping::new(&memfd, DOORBELL_BYTES, MapFlags::POPULATE)?;
        Ok(Self { memfd, mapping })
    }

    fn doorbell(&self) -> &Doorbell {
        // SAFETY: the mapping is larger and lives as long as `self`. The doorbell is an atomic
        // word, which clients may change at any time.
        unsafe { self.mapping.start().cast().as_ref() }
    }
}

impl AsFd for DoorbellMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}

/// Calls of rings that outweigh a request.
const CALLS_FOR_A_REQUEST: u32 = 8;
/// Requests more than that, after which no ring is watched for [`PAUSE_NS`]: threads make some
/// before they attach their rings.
const MAX_EXCESS: u32 = 512;
/// Then it is tried again, nanoseconds: the trial costs some ten milliseconds.
const PAUSE_NS: u64 = 1_000_000_000;

/// Whether it pays to watch rings: calls of rings prevail over requests.
///
/// While the event loop waits for rings, another thread has to wake it for a request: with a server
/// that uses a ring and a client that does not, a call takes twice the time that it takes by
/// requests alone.
#[derive(Debug, Default)]
struct CallMix {
    /// Requests that are not outweighed, in calls.
    excess: u32,
    paused_until_ns: u64,
}

impl CallMix {
    /// A thread without a ring makes a request while rings are watched. True: no ring is to be
    /// watched any more.
    fn request(&mut self, now_ns: u64) -> bool {
        self.excess += CALLS_FOR_A_REQUEST;
        if self.excess <= MAX_EXCESS * CALLS_FOR_A_REQUEST {
            return false;
        }
        self.excess = 0;
        self.paused_until_ns = now_ns.saturating_add(PAUSE_NS);
        true
    }

    /// A call was taken from a ring.
    fn call(&mut self) {
        self.excess = self.excess.saturating_sub(1);
    }

    /// Whether rings may be watched.
    fn allows_rings(&self, now_ns: u64) -> bool {
        now_ns >= self.paused_until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_paused_if_half_of_the_calls_are_requests() {
        let mut mix = CallMix::default();
        let rounds = (0..1_000).take_while(|_| {
            mix.call();
            !mix.request(7)
        });
        assert!((512..600).contains(&rounds.count()));
        assert!(!mix.allows_rings(8) && !mix.allows_rings(PAUSE_NS));
        assert!(mix.allows_rings(7 + PAUSE_NS));
    }

    #[test]
    fn a_few_requests_do_not_pause_rings() {
        let mut mix = CallMix::default();
        for _ in 0..10_000 {
            (0..10).for_each(|_| mix.call());
            assert!(!mix.request(7));
        }
        assert!(mix.allows_rings(8));
    }
}
