//! Lets the event loop go on when its thread is held up in a client's memory.
//!
//! No system call reads or writes another process's memory without waiting for it, and a client can
//! see to it that its memory never answers: a mapping of a filesystem of its own, a range of
//! `userfaultfd`. So the event loop has a stack of its own ([`serve`]), and a thread that *carries*
//! it. Where the loop touches a client it steps off: the carrier makes the call, with buffers of
//! its own, and then takes the loop up again. When a call lasts too long ([`Carriers::take_over`])
//! another thread takes the loop up in its place, the loop hears that the access was late, and the
//! first carrier, whenever it comes back, finds that nobody waits for it.
//!
//! Stepping off and on again costs some nanoseconds, and one copy of what is read or written;
//! parcels are not copied.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use binder_driver::{Fault, Piece};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use headroom_linux::mountinfo::Device;
use headroom_linux::sched::SchedAttr;
use rustix::process::Pid;

use crate::client_memory;
use crate::maps::{self, Lookup};
use crate::sync::lock;

/// Bytes of the loop's stack. It is all resident once the daemon locks its memory.
const STACK_BYTES: usize = 512 << 10;
/// Carriers that are held up at a time; then the bus waits after all.
const MAX_HELD_UP: usize = 64;
/// A carrier's buffer is given back when it has grown beyond this.
const KEPT_BYTES: usize = 256 << 10;

/// Why a program of one thread that panics ends.
const PANICKED: i32 = 101;

type Steps = Yielder<Option<Box<Desk>>, Box<Desk>>;

/// How the loop of this thread steps off, and who carries it.
type Here = (NonNull<Steps>, NonNull<Arc<Carriers>>);

/// The event loop's stack, wherever it is.
struct Loop(Coroutine<Option<Box<Desk>>, Box<Desk>, ()>);

// SAFETY: everything on the stack was made there, by one closure that is `Send`; at each moment one
// thread runs it, and handing it on is a release and an acquire of a slot. It keeps nothing of a
// thread across a step off: no guard of a lock, no reference into thread-local storage.
unsafe impl Send for Loop {}

thread_local! {
    /// Set while a thread runs [`serve`]'s closure for the first time.
    static STEPS: Cell<Option<Here>> = const { Cell::new(None) };
}

/// A call into a client, with its own buffers: whoever is late keeps them.
#[derive(Default)]
struct Desk {
    call: Call,
    /// Ranges in the client, and where in `bytes` they belong.
    pieces: Vec<Piece>,
    /// What was read, or is written.
    bytes: Vec<u8>,
    result: Option<Found>,
}

#[derive(Clone, Copy, Default)]
enum Call {
    #[default]
    Nothing,
    Read {
        tid: u32,
    },
    Write {
        tid: u32,
    },
    Find {
        pid: u32,
        device: Device,
        inode: u64,
        longest: Duration,
    },
}

/// What came of it.
enum Found {
    Memory(Result<(), Fault>),
    Mapping(Lookup),
}

impl Desk {
    fn memory(&mut self) -> Result<(), Fault> {
        match self.result.take() {
            Some(Found::Memory(result)) => result,
            _ => Err(Fault),
        }
    }

    fn make_call(&mut self) {
        self.result = match self.call {
            Call::Nothing => None,
            Call::Read { tid } => {
                let result = client_memory::read_pieces(tid, &self.pieces, &mut self.bytes);
                Some(Found::Memory(result))
            }
            Call::Write { tid } => {
                let address = self.pieces.first().map_or(0, |piece| piece.address);
                Some(Found::Memory(client_memory::write(tid, address, &self.bytes)))
            }
            Call::Find { pid, device, inode, longest } => {
                Some(Found::Mapping(maps::find(pid, device, inode, longest)))
            }
        };
    }
}

/// Where a carrier leaves the loop while it makes a call. Whoever takes it out carries it.
#[derive(Default)]
struct Slot(AtomicPtr<Loop>);

impl Slot {
    fn leave(&self, event_loop: Box<Loop>) {
        self.0.store(Box::into_raw(event_loop), Ordering::Release);
    }

    fn take(&self) -> Option<Box<Loop>> {
        let left = self.0.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: only `leave` puts pointers there, of boxes that it gave up, and each is taken out
        // once.
        (!left.is_null()).then(|| unsafe { Box::from_raw(left) })
    }
}

/// Who carries the loop.
#[derive(Default)]
pub(crate) struct Carriers {
    current: Mutex<Option<Carrier>>,
    held_up: AtomicUsize,
}

#[derive(Clone)]
struct Carrier {
    slot: Arc<Slot>,
    tid: u32,
}

impl Carriers {
    /// Starts another carrier, which takes the loop up if the present one has left it for a call
    /// still. False: too many are held up already, or there is no thread to be had.
    pub(crate) fn take_over(self: &Arc<Self>) -> bool {
        let Some(late) = lock(&self.current).clone() else { return false };
        if self.held_up.load(Ordering::Relaxed) >= MAX_HELD_UP {
            return false;
        }
        let carriers = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("event-loop".into()).spawn(move || {
            be_scheduled_like(late.tid);
            if let Some(event_loop) = late.slot.take() {
                carriers.held_up.fetch_add(1, Ordering::Relaxed);
                carriers.carry(event_loop, None);
            }
        });
        spawned.is_ok()
    }

    /// Carries the loop until it ends or another one has taken it up.
    fn carry(self: &Arc<Self>, mut event_loop: Box<Loop>, mut answer: Option<Box<Desk>>) {
        let slot = Arc::new(Slot::default());
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        *lock(&self.current) = Some(Carrier { slot: Arc::clone(&slot), tid });
        while let CoroutineResult::Yield(mut desk) = event_loop.0.resume(answer.take()) {
            slot.leave(event_loop);
            desk.make_call();
            match slot.take() {
                Some(mine) => event_loop = mine,
                None => {
                    self.held_up.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
            }
            answer = Some(desk);
        }
    }
}

/// The event loop's priority is whatever it was given; a new carrier needs the same.
fn be_scheduled_like(tid: u32) {
    let attr = SchedAttr::of(Pid::from_raw(tid as i32));
    // If it is refused, the thread is an ordinary one.
    let _ = attr.and_then(|attr| attr.apply(None));
}

/// Runs a program that serves a bus, from here to its end: a [`Server`](crate::Server) that is made
/// inside is not held up by a client whose memory does not answer. The program ends with the
/// returned exit code; a panic is 101.
///
/// What is made outside and used inside must not belong to this thread: another one may go on.
pub fn serve(program: impl FnOnce() -> i32 + Send + 'static) -> ! {
    let Ok(stack) = DefaultStack::new(STACK_BYTES) else {
        // As without us: a client whose memory does not answer is waited for.
        std::process::exit(program());
    };
    let carriers = Arc::new(Carriers::default());
    let inside = Arc::clone(&carriers);
    let body = move |steps: &Steps, _| {
        STEPS.set(Some((NonNull::from(steps), NonNull::from(&inside))));
        let code = catch_unwind(AssertUnwindSafe(program)).unwrap_or(PANICKED);
        std::process::exit(code);
    };
    carriers.carry(Box::new(Loop(Coroutine::with_stack(stack, body))), None);
    // Another thread has the loop, and will end the process.
    loop {
        std::thread::park();
    }
}

/// The loop's side: how it steps off.
pub(crate) struct Ferry {
    /// `None`: the program does not run by [`serve`], and calls are made where they stand.
    steps: Option<NonNull<Steps>>,
    /// There unless a late carrier has it.
    desk: Option<Box<Desk>>,
}

/// The access takes too long; its client's memory may never answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late;

impl Ferry {
    /// That of this thread's loop; must be used on the loop's stack only.
    pub(crate) fn here() -> Self {
        Self { steps: STEPS.get().map(|(steps, _)| steps), desk: None }
    }

    /// Who can take this thread's loop over.
    pub(crate) fn carriers() -> Option<Arc<Carriers>> {
        // SAFETY: `serve`'s closure owns it, and never ends.
        STEPS.get().map(|(_, carriers)| unsafe { Arc::clone(carriers.as_ref()) })
    }

    /// Makes a call, which `plan` writes down; the desk with its outcome.
    fn call(&mut self, plan: impl FnOnce(&mut Desk)) -> Result<&mut Desk, Late> {
        let mut desk = self.desk.take().unwrap_or_default();
        plan(&mut desk);
        let desk = match self.steps {
            // SAFETY: the yielder lives at the bottom of the stack that we are on, which `serve`'s
            // closure never leaves.
            Some(steps) => unsafe { steps.as_ref() }.suspend(desk).ok_or(Late)?,
            None => {
                desk.make_call();
                desk
            }
        };
        Ok(self.desk.insert(desk))
    }

    /// Fills `into`, or fails.
    pub(crate) fn read(
        &mut self,
        tid: u32,
        address: u64,
        into: &mut [u8],
    ) -> Result<Result<(), Fault>, Late> {
        let len = into.len();
        let desk = self.call(|desk| {
            desk.call = Call::Read { tid };
            desk.pieces.clear();
            desk.pieces.push(Piece { address, at: 0, len });
            if desk.bytes.len() < len {
                desk.bytes.resize(len, 0);
            }
        })?;
        let result = desk.memory();
        if result.is_ok() {
            into.copy_from_slice(&desk.bytes[..len]);
        }
        if desk.bytes.capacity() > KEPT_BYTES {
            desk.bytes = Vec::new();
        }
        Ok(result)
    }

    /// Reads all pieces to their places in a parcel, or fails as a whole. Nothing is copied twice:
    /// the parcel lies on the desk meanwhile, and who is late keeps it.
    pub(crate) fn read_parcel(
        &mut self,
        tid: u32,
        pieces: &[Piece],
        parcel: &mut Vec<u8>,
    ) -> Result<Result<(), Fault>, Late> {
        let desk = self.call(|desk| {
            desk.call = Call::Read { tid };
            desk.pieces.clear();
            desk.pieces.extend_from_slice(pieces);
            std::mem::swap(&mut desk.bytes, parcel);
        })?;
        std::mem::swap(&mut desk.bytes, parcel);
        Ok(desk.memory())
    }

    /// Writes all of `bytes`, or fails.
    pub(crate) fn write(
        &mut self,
        tid: u32,
        address: u64,
        bytes: &[u8],
    ) -> Result<Result<(), Fault>, Late> {
        let desk = self.call(|desk| {
            desk.call = Call::Write { tid };
            desk.pieces.clear();
            desk.pieces.push(Piece { address, at: 0, len: bytes.len() });
            desk.bytes.clear();
            desk.bytes.extend_from_slice(bytes);
        })?;
        Ok(desk.memory())
    }

    /// As [`maps::find`].
    pub(crate) fn find(
        &mut self,
        pid: u32,
        device: Device,
        inode: u64,
        longest: Duration,
    ) -> Result<Lookup, Late> {
        let desk = self.call(|desk| desk.call = Call::Find { pid, device, inode, longest })?;
        Ok(match desk.result.take() {
            Some(Found::Mapping(lookup)) => lookup,
            _ => Lookup::default(),
        })
    }
}
