//! Access to clients' memory and lists of areas, outside of the event loop's stack.
//!
//! No system call reads or writes another process's memory without waiting for it, and a client can
//! make an access to its memory block for ever: by a mapping of its own filesystem, or a range of
//! `userfaultfd`. So the event loop runs as a coroutine on a stack of its own ([`serve`]). For each
//! access to a client it suspends; its thread makes the system call, with the buffers of an
//! [`AccessRequest`], and resumes the loop. When the call lasts too long
//! ([`LoopThreads::take_over`]), another thread resumes the loop in its place, the access fails as
//! late, and the blocked thread exits once its call returns.
//! [`AccessLimits`](crate::access_limits::AccessLimits) bounds their number.
//!
//! Suspend and resume cost some nanoseconds and one copy of the bytes; parcels are not copied.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use binder_driver::{Fault, Piece};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use headroom_linux::mountinfo::Device;
use headroom_linux::sched::SchedAttr;
use rustix::event::EventfdFlags;
use rustix::process::Pid;

use crate::client_memory;
use crate::maps::{self, Lookup};
use crate::sync::{TransferSlot, lock};

/// A buffer of an access that is larger than this is freed after it. Bytes.
const KEPT_BYTES: usize = 256 << 10;

/// A system call on a client, with buffers of its own: a blocked thread keeps them.
#[derive(Default)]
struct AccessRequest {
    access: Access,
    /// Ranges in the client, and their positions in `bytes`.
    pieces: Vec<Piece>,
    /// Bytes that were read or are to be written.
    bytes: Vec<u8>,
    result: Option<AccessResult>,
    progress: Arc<Progress>,
}

/// Whether an access has returned.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU8);

impl Progress {
    const UNDER_WAY: u8 = 0;
    const SUCCEEDED: u8 = 1;
    const FAILED: u8 = 2;

    pub(crate) fn complete(&self, result: Result<(), Fault>) {
        let state = if result.is_ok() { Self::SUCCEEDED } else { Self::FAILED };
        self.0.store(state, Ordering::Release);
    }

    fn restart(&self) {
        self.0.store(Self::UNDER_WAY, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Default)]
enum Access {
    #[default]
    None,
    Read {
        tid: u32,
    },
    Write {
        tid: u32,
    },
    FindMapping {
        pid: u32,
        device: Device,
        inode: u64,
        most_areas: u64,
    },
}

enum AccessResult {
    /// Number of pieces that were read completely.
    Read(usize),
    Write(Result<(), Fault>),
    Mapping(Lookup),
}

impl AccessRequest {
    /// Number of pieces that were read completely.
    fn read_pieces(&mut self) -> usize {
        match self.result.take() {
            Some(AccessResult::Read(complete)) => complete,
            _ => 0,
        }
    }

    fn execute(&mut self) {
        self.result = match self.access {
            Access::None => None,
            Access::Read { tid } => {
                let complete = client_memory::read_pieces(tid, &self.pieces, &mut self.bytes);
                Some(AccessResult::Read(complete))
            }
            Access::Write { tid } => {
                let address = self.pieces.first().map_or(0, |piece| piece.address);
                Some(AccessResult::Write(client_memory::write(tid, address, &self.bytes)))
            }
            Access::FindMapping { pid, device, inode, most_areas } => {
                Some(AccessResult::Mapping(maps::find(pid, device, inode, most_areas)))
            }
        };
        self.progress.complete(match self.result {
            Some(AccessResult::Write(result)) => result,
            _ => Ok(()),
        });
    }
}

/// Executes accesses for the event loop.
pub(crate) struct ClientAccess {
    /// `None`: the program does not run by [`serve`], and accesses are made directly.
    yielder: Option<NonNull<LoopYielder>>,
    /// Reused by the next access. `None` while a blocked thread has it.
    request: Option<Box<AccessRequest>>,
    /// Of the last request.
    progress: Arc<Progress>,
}

/// The access takes too long; the client's memory may never become available.
#[derive(Debug)]
pub(crate) struct Late(pub(crate) BlockedAccess);

/// An access that was late. It blocks a thread until it returns.
#[derive(Clone, Debug)]
pub(crate) struct BlockedAccess(Arc<Progress>);

impl BlockedAccess {
    pub(crate) fn new(progress: Arc<Progress>) -> Self {
        Self(progress)
    }

    /// The result, once the access has returned; its thread exits then.
    pub(crate) fn result(&self) -> Option<Result<(), Fault>> {
        match self.0.0.load(Ordering::Acquire) {
            Progress::UNDER_WAY => None,
            Progress::SUCCEEDED => Some(Ok(())),
            _ => Some(Err(Fault::BadAddress)),
        }
    }

    pub(crate) fn has_returned(&self) -> bool {
        self.result().is_some()
    }
}

impl ClientAccess {
    /// The access object of this thread's event loop; may be used on the loop's stack only.
    pub(crate) fn of_this_loop() -> Self {
        let (request, progress) = (None, Arc::default());
        Self { yielder: current_yielder(), request, progress }
    }

    /// Executes the access that `prepare` describes; returns the request with its result.
    fn execute(
        &mut self,
        prepare: impl FnOnce(&mut AccessRequest),
    ) -> Result<&mut AccessRequest, Late> {
        let mut request = self.request.take().unwrap_or_else(|| {
            let request = Box::<AccessRequest>::default();
            self.progress = Arc::clone(&request.progress);
            request
        });
        request.progress.restart();
        prepare(&mut request);
        let completed = match self.yielder {
            // SAFETY: the yielder lives at the bottom of the stack that we are on, which `serve`'s
            // closure never leaves.
            Some(yielder) => unsafe { yielder.as_ref() }.suspend(request),
            None => {
                request.execute();
                Some(request)
            }
        };
        let completed = completed.ok_or_else(|| Late(BlockedAccess(self.progress.clone())))?;
        Ok(self.request.insert(completed))
    }

    /// Fills `into`, or fails.
    pub(crate) fn read(
        &mut self,
        tid: u32,
        address: u64,
        into: &mut [u8],
    ) -> Result<Result<(), Fault>, Late> {
        let len = into.len();
        let request = self.execute(|request| {
            request.access = Access::Read { tid };
            request.pieces.clear();
            request.pieces.push(Piece { address, at: 0, len });
            if request.bytes.len() < len {
                request.bytes.resize(len, 0);
            }
        })?;
        let result = if request.read_pieces() == 1 { Ok(()) } else { Err(Fault::BadAddress) };
        if result.is_ok() {
            into.copy_from_slice(&request.bytes[..len]);
        }
        if request.bytes.capacity() > KEPT_BYTES {
            request.bytes = Vec::new();
        }
        Ok(result)
    }

    /// Reads pieces to their positions in `into`, in their order until one faults; returns how many
    /// were read completely. No bytes are copied twice: the request owns the buffer during the
    /// access, and a blocked thread keeps it.
    pub(crate) fn read_pieces(
        &mut self,
        tid: u32,
        pieces: &[Piece],
        into: &mut Vec<u8>,
    ) -> Result<usize, Late> {
        let request = self.execute(|request| {
            request.access = Access::Read { tid };
            request.pieces.clear();
            request.pieces.extend_from_slice(pieces);
            std::mem::swap(&mut request.bytes, into);
        })?;
        std::mem::swap(&mut request.bytes, into);
        Ok(request.read_pieces())
    }

    /// Writes all of `bytes`, or fails.
    pub(crate) fn write(
        &mut self,
        tid: u32,
        address: u64,
        bytes: &[u8],
    ) -> Result<Result<(), Fault>, Late> {
        let request = self.execute(|request| {
            request.access = Access::Write { tid };
            request.pieces.clear();
            request.pieces.push(Piece { address, at: 0, len: bytes.len() });
            request.bytes.clear();
            request.bytes.extend_from_slice(bytes);
        })?;
        Ok(match request.result.take() {
            Some(AccessResult::Write(result)) => result,
            _ => Err(Fault::BadAddress),
        })
    }

    /// Like [`maps::find`].
    pub(crate) fn find_mapping(
        &mut self,
        pid: u32,
        device: Device,
        inode: u64,
        most_areas: u64,
    ) -> Result<Lookup, Late> {
        let request = self.execute(|request| {
            request.access = Access::FindMapping { pid, device, inode, most_areas };
        })?;
        Ok(match request.result.take() {
            Some(AccessResult::Mapping(lookup)) => lookup,
            _ => Lookup::default(),
        })
    }
}

/// Bytes of the loop's stack. All of it is resident once the daemon locks its memory.
const STACK_BYTES: usize = 512 << 10;

/// Exit code of a program that panics.
const PANICKED: i32 = 101;

/// Suspends the event loop with an access, and resumes it with the completed access; `None`: the
/// access is late.
type LoopYielder = Yielder<Option<Box<AccessRequest>>, Box<AccessRequest>>;

/// The event loop's coroutine, suspended or running.
struct EventLoop(Coroutine<Option<Box<AccessRequest>>, Box<AccessRequest>, ()>);

// SAFETY: everything on the stack was made there, by one closure that is `Send`; at each moment one
// thread runs it, and its transfer is a release and an acquire of a slot. It keeps nothing that
// belongs to a thread while suspended: no guard of a lock, no reference into thread-local storage.
unsafe impl Send for EventLoop {}

#[derive(Clone, Copy)]
struct CurrentLoop {
    yielder: NonNull<LoopYielder>,
    threads: NonNull<Arc<LoopThreads>>,
}

thread_local! {
    /// Set while a thread runs [`serve`]'s closure for the first time.
    static CURRENT: Cell<Option<CurrentLoop>> = const { Cell::new(None) };
}

/// The yielder of this thread's event loop.
fn current_yielder() -> Option<NonNull<LoopYielder>> {
    CURRENT.get().map(|current| current.yielder)
}

/// Holds the suspended loop during an access of one thread, by the number of the access. The thread
/// that takes the loop out resumes it.
type LoopSlot = TransferSlot<Box<EventLoop>>;

/// The threads that run the event loop, one at a time.
pub(crate) struct LoopThreads {
    current: Mutex<Option<LoopThread>>,
    /// Readable after a late access has returned.
    returned: OwnedFd,
}

#[derive(Clone)]
struct LoopThread {
    slot: Arc<LoopSlot>,
    tid: u32,
}

/// An access in which the event loop is, or was, suspended.
pub(crate) struct SuspendedAccess {
    thread: LoopThread,
    number: u64,
}

impl SuspendedAccess {
    /// Whether its thread sleeps. A thread that runs, or waits for a CPU, makes progress.
    pub(crate) fn is_blocked(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", self.thread.tid));
        // The name may contain any characters, so the state is behind its last parenthesis.
        stat.is_ok_and(|stat| {
            stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('R'))
        })
    }
}

impl LoopThreads {
    fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { current: Mutex::default(), returned: rustix::event::eventfd(0, flags)? })
    }

    /// Becomes readable when a late access has returned.
    pub(crate) fn returned(&self) -> BorrowedFd<'_> {
        self.returned.as_fd()
    }

    /// Must be called before the accesses are checked: later returns signal again.
    pub(crate) fn clear_returned(&self) {
        let _ = rustix::io::read(&self.returned, &mut [0; 8]);
    }

    pub(crate) fn signal_return(&self) {
        let _ = rustix::io::write(&self.returned, &1_u64.to_ne_bytes());
    }

    /// The loop threads of this thread's event loop; `None`: the program does not run by [`serve`].
    pub(crate) fn of_this_loop() -> Option<Arc<Self>> {
        // SAFETY: `serve`'s closure owns the value, and never ends.
        CURRENT.get().map(|current| unsafe { Arc::clone(current.threads.as_ref()) })
    }

    /// The access in which the event loop is suspended now.
    pub(crate) fn suspended_access(&self) -> Option<SuspendedAccess> {
        let thread = lock(&self.current).clone()?;
        let number = thread.slot.number();
        (number > 0).then_some(SuspendedAccess { thread, number })
    }

    /// Starts another thread, which resumes the loop if it is still suspended in this access. An
    /// error: no thread can be made.
    pub(crate) fn take_over(self: &Arc<Self>, access: SuspendedAccess) -> io::Result<()> {
        let threads = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("event-loop".into()).spawn(move || {
            copy_scheduling_of(access.thread.tid);
            if let Some(event_loop) = access.thread.slot.take(access.number) {
                threads.run(event_loop);
            }
        });
        spawned.map(drop)
    }

    /// Runs the loop until it ends or another thread has taken it over.
    fn run(self: &Arc<Self>, mut event_loop: Box<EventLoop>) {
        let slot = Arc::new(LoopSlot::new());
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        *lock(&self.current) = Some(LoopThread { slot: Arc::clone(&slot), tid });
        let mut completed = None;
        for access in 1.. {
            let resumed = event_loop.0.resume(completed.take());
            let CoroutineResult::Yield(mut request) = resumed else { return };
            slot.put(access, event_loop);
            request.execute();
            let Some(mine) = slot.take(access) else { return self.signal_return() };
            event_loop = mine;
            completed = Some(request);
        }
    }
}

/// Gives a new thread of the event loop the priority of the previous one.
fn copy_scheduling_of(tid: u32) {
    let attr = SchedAttr::of(Pid::from_raw(tid as i32));
    // If that is refused, the thread keeps the default priority.
    let _ = attr.and_then(|attr| attr.apply(None));
}

/// Runs a program that serves a bus, from here to its exit: a [`Server`](crate::Server) that is
/// made inside is not blocked by a client whose memory cannot be accessed. The program exits with
/// the returned exit code; a panic is 101.
///
/// Values made outside and used inside must not be bound to this thread: another one may resume the
/// program.
pub fn serve(program: impl FnOnce() -> i32 + Send + 'static) -> ! {
    let (Ok(stack), Ok(threads)) = (DefaultStack::new(STACK_BYTES), LoopThreads::new()) else {
        // Without a coroutine, a client whose memory cannot be accessed blocks the program.
        std::process::exit(program());
    };
    let threads = Arc::new(threads);
    let inside = Arc::clone(&threads);
    let body = move |yielder: &LoopYielder, _| {
        let (yielder, threads) = (NonNull::from(yielder), NonNull::from(&inside));
        CURRENT.set(Some(CurrentLoop { yielder, threads }));
        let code = catch_unwind(AssertUnwindSafe(program)).unwrap_or(PANICKED);
        std::process::exit(code);
    };
    threads.run(Box::new(EventLoop(Coroutine::with_stack(stack, body))));
    // Another thread runs the loop, and will end the process.
    loop {
        std::thread::park();
    }
}
