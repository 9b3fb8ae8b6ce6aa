//! The rings of this process's threads, and what children of `fork` do not inherit.
//!
//! A table in memory of its own, which the kernel empties in a forked child: there the rings are
//! not mapped. A thread finds its entry by its id, which the kernel tells.

use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

use binder_ring::page::{MAX_FILES, Page};
use binder_ring::turn::{Doorbell, Watch};
use binder_ring::{Attach, DOORBELL_BYTES, RING_ATTACH, RING_BYTES, VERSION};

use crate::system::{self, FileId, KnownMemory};

/// Number of entries, and how many of them are searched for a thread.
const ENTRIES: usize = 1024;
const SEARCHED: usize = 16;
/// Requests of a thread before it attaches a ring.
const REQUESTS: u32 = 8;
/// A thread that has no ring tries again after so many requests.
const RETRY: u32 = 100_000;
/// Sets the number of requests before a ring is attached.
const REQUESTS_VARIABLE: &std::ffi::CStr = c"BINDER_RING_REQUESTS";

/// A thread that calls.
pub(crate) struct Entry {
    /// 0: the entry is free.
    thread: AtomicU32,
    fd: AtomicI32,
    inode: AtomicU64,
    requests: AtomicU32,
    page: AtomicPtr<Page>,
    doorbell: AtomicPtr<Doorbell>,
    /// A call is in progress.
    busy: AtomicBool,
    pub(crate) argument: KnownMemory,
    pub(crate) commands: KnownMemory,
    pub(crate) returns: KnownMemory,
}

/// All threads.
struct Table([Entry; ENTRIES]);

static TABLE: AtomicPtr<Table> = AtomicPtr::new(null_mut());

fn table() -> Option<&'static Table> {
    let existing = TABLE.load(Acquire);
    if let Some(table) = NonNull::new(existing) {
        // SAFETY: the mapping is never removed, and consists of atomic values, all of which may be
        // zero.
        return Some(unsafe { table.as_ref() });
    }
    let bytes = size_of::<Table>();
    let new: *mut Table = map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?.cast().as_ptr();
    let is_private = advise(new.cast(), bytes, libc::MADV_WIPEONFORK);
    if !is_private || TABLE.compare_exchange(null_mut(), new, AcqRel, Acquire).is_err() {
        unmap(new.cast(), bytes);
        return is_private.then(table).flatten();
    }
    // SAFETY: as above.
    Some(unsafe { &*new })
}

/// The entry of this thread. `None`: its calls are system calls.
pub(crate) fn entry(thread: u32, fd: c_int) -> Option<&'static Entry> {
    let table = table()?;
    let first = thread as usize;
    let places = (0..SEARCHED).map(|step| &table.0[(first + step) % ENTRIES]);
    for entry in places.clone() {
        if entry.thread.load(Acquire) == thread {
            return Some(entry);
        }
    }
    // Rings of threads that have exited are removed by those that come later.
    let mut own = None;
    for entry in places {
        if !entry.enter() {
            continue;
        }
        if entry.thread.load(Acquire) == 0 || entry.is_ended() {
            let next = if own.is_none() { thread } else { 0 };
            entry.begin(fd);
            entry.thread.store(next, Release);
            own = own.or(Some(entry));
        }
        entry.leave();
    }
    own
}

impl Entry {
    /// Begins a call, or a change of the entry. False: one is in progress.
    pub(crate) fn enter(&self) -> bool {
        !self.busy.swap(true, AcqRel)
    }

    /// Ends what [`enter`](Self::enter) has begun.
    pub(crate) fn leave(&self) {
        self.busy.store(false, Release);
    }

    /// Whether the entry, which was entered, is of this thread and for calls on `fd`: a thread that
    /// came later may have taken it, and a thread without a ring, or whose ring is for a file that
    /// it has closed, may use it for another file.
    pub(crate) fn is_of(&self, thread: u32, fd: c_int) -> bool {
        if self.thread.load(Acquire) != thread {
            return false;
        }
        let own = self.fd.load(Relaxed);
        if own != fd && (self.page().is_none() || self.is_ended() || !self.is_for(own)) {
            self.begin(fd);
        }
        self.fd.load(Relaxed) == fd
    }

    /// The thread has exited, or its ring was ended.
    fn is_ended(&self) -> bool {
        self.page().is_some_and(|page| page.words.watch() == Watch::Ended)
    }

    fn begin(&self, fd: c_int) {
        self.drop_ring();
        self.requests.store(0, Relaxed);
        self.fd.store(fd, Relaxed);
    }

    /// The thread's ring.
    pub(crate) fn page(&self) -> Option<&'static Page> {
        // SAFETY: it stays mapped until the thread itself drops it, or has exited.
        NonNull::new(self.page.load(Acquire)).map(|page| unsafe { page.as_ref() })
    }

    /// The doorbell of a thread with a ring.
    pub(crate) fn doorbell(&self) -> Option<&'static Doorbell> {
        // SAFETY: as for the page.
        NonNull::new(self.doorbell.load(Acquire)).map(|doorbell| unsafe { doorbell.as_ref() })
    }

    /// Whether the descriptor still is the one that the ring is for.
    pub(crate) fn is_for(&self, fd: c_int) -> bool {
        system::file(fd).map(FileId::number) == Some(self.inode.load(Relaxed))
    }

    /// Removes the thread's ring; it begins again with requests.
    pub(crate) fn drop_ring(&self) {
        let page = self.page.swap(null_mut(), AcqRel);
        if !page.is_null() {
            unmap(page.cast(), RING_BYTES);
        }
        let doorbell = self.doorbell.swap(null_mut(), AcqRel);
        if !doorbell.is_null() {
            unmap(doorbell.cast(), DOORBELL_BYTES);
        }
        self.requests.store(0, Relaxed);
    }

    /// Forgets the ring, which the daemon may still use.
    pub(crate) fn abandon_ring(&self) {
        self.page.store(null_mut(), Release);
        self.doorbell.store(null_mut(), Release);
        self.requests.store(0, Relaxed);
    }

    /// Counts a request, and attaches a ring if the thread makes many.
    pub(crate) fn note_request(&self, fd: c_int) {
        let requests = self.requests.load(Relaxed).wrapping_add(1);
        self.requests.store(requests % RETRY, Relaxed);
        if requests == requests_before_ring() && self.page().is_none() {
            system::keep_errno(|| self.attach(fd));
        }
    }

    fn attach(&self, fd: c_int) {
        let Some(file) = system::file(fd) else { return };
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a constant.
        let memfd = unsafe { libc::memfd_create(c"binder-ring".as_ptr(), flags) };
        if memfd < 0 {
            return;
        }
        if let Some(page) = self.prepare(memfd) {
            if self.share(fd, memfd, page) {
                keep_from_children(fd);
            } else {
                unmap(page.as_ptr().cast(), RING_BYTES);
            }
        }
        system::close(memfd);
        self.inode.store(file.number(), Relaxed);
    }

    /// Sizes, seals and maps the memory.
    fn prepare(&self, memfd: c_int) -> Option<NonNull<Page>> {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain numbers.
        let is_sealed = unsafe {
            libc::ftruncate(memfd, RING_BYTES as libc::off_t) == 0
                && libc::fcntl(memfd, libc::F_ADD_SEALS, seals) == 0
        };
        if !is_sealed {
            return None;
        }
        map_shared(memfd, RING_BYTES).map(NonNull::cast)
    }

    /// Lets the daemon map the page, and maps the doorbell that it sends.
    fn share(&self, fd: c_int, memfd: c_int, page: NonNull<Page>) -> bool {
        let token = u64::from(system::thread_id()) << 32 ^ page.as_ptr() as u64 ^ 0x6269_6e64_6572;
        // SAFETY: the page is mapped.
        unsafe { page.as_ref() }.set_token(token);
        let mut numbers = [0; MAX_FILES];
        let received = system::receive_files(&mut numbers, |socket| {
            let attach =
                Attach { version: VERSION, memfd: memfd as u32, token, socket, reserved: 0 };
            // SAFETY: the argument is ours.
            unsafe { system::ioctl(fd, RING_ATTACH, &raw const attach as usize) }.is_ok()
        });
        let Some(received) = received else { return false };
        let sent = &numbers[..received];
        let doorbell = sent.first().and_then(|&memfd| map_doorbell(memfd as c_int));
        system::close_all(sent);
        let Some(doorbell) = doorbell else { return false };
        self.doorbell.store(doorbell.as_ptr(), Release);
        self.page.store(page.as_ptr(), Release);
        true
    }
}

/// Maps a doorbell. `None`: it could shrink, or cannot be mapped.
fn map_doorbell(memfd: c_int) -> Option<NonNull<Doorbell>> {
    // SAFETY: the structure consists of numbers, and the descriptor is ours.
    let is_safe = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let seals = libc::fcntl(memfd, libc::F_GET_SEALS);
        seals >= 0
            && seals & libc::F_SEAL_SHRINK != 0
            && libc::fstat(memfd, &mut stat) == 0
            && stat.st_size >= DOORBELL_BYTES as libc::off_t
    };
    if is_safe { map_shared(memfd, DOORBELL_BYTES).map(NonNull::cast) } else { None }
}

/// Maps a file that we share with the daemon, and excludes it from children.
fn map_shared(fd: c_int, bytes: usize) -> Option<NonNull<libc::c_void>> {
    let address = map(bytes, libc::MAP_SHARED, fd)?;
    if !advise(address.as_ptr(), bytes, libc::MADV_DONTFORK) {
        unmap(address.as_ptr(), bytes);
        return None;
    }
    Some(address)
}

/// See [`REQUESTS_VARIABLE`].
fn requests_before_ring() -> u32 {
    static REQUESTED: AtomicU32 = AtomicU32::new(0);
    match REQUESTED.load(Relaxed) {
        0 => {
            // SAFETY: the name is a constant, and the value is read at once.
            let value = unsafe {
                let value = libc::getenv(REQUESTS_VARIABLE.as_ptr());
                if value.is_null() { 0 } else { libc::atoi(value) }
            };
            let requests = u32::try_from(value).ok().filter(|&it| it > 0).unwrap_or(REQUESTS);
            REQUESTED.store(requests, Relaxed);
            requests
        }
        requests => requests,
    }
}

fn map(bytes: usize, flags: c_int, fd: c_int) -> Option<NonNull<libc::c_void>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address =
        system::keep_errno(|| unsafe { libc::mmap(null_mut(), bytes, protection, flags, fd, 0) });
    if address == libc::MAP_FAILED { None } else { NonNull::new(address) }
}

fn unmap(address: *mut libc::c_void, bytes: usize) {
    // SAFETY: the mapping is ours, and no reference to it is left.
    system::keep_errno(|| unsafe { libc::munmap(address, bytes) });
}

fn advise(address: *mut libc::c_void, bytes: usize, advice: c_int) -> bool {
    // SAFETY: the mapping is ours, and the advice changes nothing for this process.
    system::keep_errno(|| unsafe { libc::madvise(address, bytes, advice) == 0 })
}

/// Number of bytes of `/proc/self/maps` that are searched: some ten thousand areas.
const MAX_TEXT: usize = 1 << 20;

/// Keeps the receive buffer from children of `fork`, as the kernel's driver does (`VM_DONTCOPY`): a
/// child would read what arrives for its parent. Excludes all mappings of an open, once per open.
fn keep_from_children(fd: c_int) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let Some(file) = system::file(fd) else { return };
    if LAST.swap(file.number(), Relaxed) == file.number() {
        return;
    }
    let Some(maps) = system::open_own_maps() else { return };
    let (mut text, mut area, mut left) = ([0; 4096], Area::default(), MAX_TEXT);
    while let count @ 1.. = system::read(maps, &mut text).min(left) {
        left -= count;
        for &byte in &text[..count] {
            if area.push(byte) && area.file == file {
                let len = area.end.saturating_sub(area.start) as usize;
                advise(area.start as *mut _, len, libc::MADV_DONTFORK);
            }
        }
    }
    system::close(maps);
}

/// What ends the fields of a line of `/proc/self/maps`:
/// `START-END PERMISSIONS OFFSET MAJOR:MINOR INODE NAME`.
const SEPARATORS: [u8; 7] = *b"-   :  ";

/// A line of it, as far as it was read.
#[derive(Default)]
struct Area {
    field: usize,
    start: u64,
    end: u64,
    file: FileId,
}

impl Area {
    /// Adds a byte. True: all that is needed of the line is there.
    fn push(&mut self, byte: u8) -> bool {
        if byte == b'\n' {
            *self = Self::default();
            return false;
        }
        if SEPARATORS.get(self.field) == Some(&byte) {
            self.field += 1;
            return self.field == SEPARATORS.len();
        }
        let (number, base) = match self.field {
            0 => (&mut self.start, 16),
            1 => (&mut self.end, 16),
            4 => (&mut self.file.major, 16),
            5 => (&mut self.file.minor, 16),
            6 => (&mut self.file.inode, 10),
            _ => return false,
        };
        let digit = char::from(byte).to_digit(base).unwrap_or(0);
        *number = number.wrapping_mul(base.into()).wrapping_add(digit.into());
        false
    }
}
