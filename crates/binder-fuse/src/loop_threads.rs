//! Runs the event loop as a coroutine, which another thread resumes when its thread is blocked in a
//! client's memory.
//!
//! No system call reads or writes another process's memory without waiting for it, and a client can
//! make an access to its memory block for ever: by a mapping of its own filesystem, or a range of
//! `userfaultfd`. So the event loop runs on a stack of its own ([`serve`]). For each access to a
//! client it suspends; its thread makes the system call, with the buffers of an [`AccessRequest`],
//! and resumes the loop. When the call lasts too long ([`LoopThreads::take_over`]), another thread
//! resumes the loop in its place, the access fails as late, and the blocked thread exits once its
//! call returns. [`AccessLimits`](crate::access_limits::AccessLimits) bounds their number.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use headroom_linux::sched::SchedAttr;
use rustix::event::EventfdFlags;
use rustix::process::Pid;

use crate::client_access::AccessRequest;
use crate::sync::lock;
use crate::transfer_slot::TransferSlot;

/// Bytes of the loop's stack. All of it is resident once the daemon locks its memory.
const STACK_BYTES: usize = 512 << 10;

/// Exit code of a program that panics.
const PANICKED: i32 = 101;

/// Suspends the event loop with an access, and resumes it with the completed access; `None`: the
/// access is late.
pub(crate) type LoopYielder = Yielder<Option<Box<AccessRequest>>, Box<AccessRequest>>;

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
pub(crate) fn current_yielder() -> Option<NonNull<LoopYielder>> {
    CURRENT.get().map(|current| current.yielder)
}

/// Holds the suspended loop during an access of one thread, by the number of the access. The thread
/// that takes the loop out resumes it.
type Slot = TransferSlot<Box<EventLoop>>;

/// The threads that run the event loop, one at a time.
pub(crate) struct LoopThreads {
    current: Mutex<Option<LoopThread>>,
    /// Readable after a late access has returned.
    returned: OwnedFd,
}

#[derive(Clone)]
struct LoopThread {
    slot: Arc<Slot>,
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
        let slot = Arc::new(Slot::new());
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
