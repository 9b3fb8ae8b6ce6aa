//! Gives files to threads whose BINDER_WRITE_READ is trapped on its way to us.
//!
//! A thread that sleeps in our ioctl cannot be given anything here: the trap is behind it. So it is
//! *promised* its files: its ioctl returns without the transaction, and when the thread comes
//! again, whatever for, it is held by the filter; a thread of ours adds the files to its table and
//! lets it go on. When its ioctl arrives, the event loop fetches the [`Outcome`]: what was added is
//! known before the call goes on.
//!
//! Every other call goes on at once. Adding a file waits for the receiver's thread to run, so
//! before one of our threads does that, another one listens.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use binder_driver::ProcessId;
use ioctl_trap::{InHand, Listener, PLACES, Trapped};

use super::closing::ClientFile;
use crate::sync::lock;

/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;
/// Threads that wait for calls of one filter at a time; more than these end when they have no
/// promise to keep.
const ENOUGH_IDLE: usize = 2;

/// What came of a promise.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The thread has the files.
    Given(Vec<u32>),
    /// It could not be given all of them; it has these.
    Failed(io::Error, Vec<u32>),
    /// It was not trapped: it does not live under the filter.
    Untouched,
}

/// Files for a thread's next call.
struct Promise {
    process: ProcessId,
    state: State,
}

enum State {
    Waiting(Vec<Arc<ClientFile>>),
    /// A thread of ours is at it.
    Adding,
    Over(Outcome),
}

/// All promises, and the filters' listeners.
pub(crate) struct Trap(Arc<Promises>);

#[derive(Default)]
struct Promises {
    /// How many there are, so that the event loop need not look; and how many wait, so that a
    /// listener need not.
    count: AtomicUsize,
    waiting: AtomicUsize,
    by_thread: Mutex<HashMap<u32, Promise>>,
}

impl Trap {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Serves one more filter, until nobody lives under it.
    pub(crate) fn listen(&self, listener: Listener, in_hand: InHand) -> io::Result<()> {
        let post = Post {
            listener,
            in_hand,
            promises: Arc::clone(&self.0),
            idle: AtomicUsize::new(0),
            places: AtomicU64::new(0),
        };
        Arc::new(post).start_thread()
    }

    /// A call of any thread may have to be looked at.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.count.load(Ordering::Relaxed) == 0
    }

    /// A thread, which is in our ioctl, shall have files when it comes again. False: it has a
    /// promise already.
    pub(crate) fn promise(
        &self,
        tid: u32,
        process: ProcessId,
        files: Vec<Arc<ClientFile>>,
    ) -> bool {
        let mut by_thread = lock(&self.0.by_thread);
        if by_thread.contains_key(&tid) {
            return false;
        }
        by_thread.insert(tid, Promise { process, state: State::Waiting(files) });
        self.0.count.store(by_thread.len(), Ordering::Relaxed);
        // Its thread hears of it: our answer to the ioctl comes between.
        self.0.waiting.fetch_add(1, Ordering::Release);
        true
    }

    /// What became of the promise to a thread whose call has arrived: on which open, and how it
    /// went.
    pub(crate) fn collect(&self, tid: u32) -> Option<(ProcessId, Outcome)> {
        let mut by_thread = lock(&self.0.by_thread);
        let Promise { process, state } = by_thread.remove(&tid)?;
        self.0.count.store(by_thread.len(), Ordering::Relaxed);
        drop(by_thread);
        Some((process, self.0.end(state)))
    }

    /// The promise is void: its thread or its open is gone. One that is being kept just now stays
    /// to be collected.
    pub(crate) fn withdraw(&self, tid: u32, process: ProcessId) {
        let mut by_thread = lock(&self.0.by_thread);
        let void = |promise: &Promise| {
            promise.process == process && !matches!(promise.state, State::Adding)
        };
        if !by_thread.get(&tid).is_some_and(void) {
            return;
        }
        let promise = by_thread.remove(&tid);
        self.0.count.store(by_thread.len(), Ordering::Relaxed);
        drop(by_thread);
        if let Some(promise) = promise {
            drop(self.0.end(promise.state));
        }
    }
}

impl Promises {
    fn end(&self, state: State) -> Outcome {
        match state {
            State::Waiting(_) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                Outcome::Untouched
            }
            // The thread is held in the trap, so it cannot be the one whose call has arrived.
            State::Adding => Outcome::Untouched,
            State::Over(outcome) => outcome,
        }
    }

    /// The files that wait for a thread.
    fn take(&self, tid: u32) -> Option<Vec<Arc<ClientFile>>> {
        let mut by_thread = lock(&self.by_thread);
        let state = &mut by_thread.get_mut(&tid)?.state;
        match std::mem::replace(state, State::Adding) {
            State::Waiting(files) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                Some(files)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    fn put(&self, tid: u32, state: State) {
        if let Some(promise) = lock(&self.by_thread).get_mut(&tid) {
            if matches!(state, State::Waiting(_)) {
                self.waiting.fetch_add(1, Ordering::Relaxed);
            }
            promise.state = state;
        }
    }
}

/// One filter, and those who listen to it.
struct Post {
    listener: Listener,
    in_hand: InHand,
    promises: Arc<Promises>,
    /// Threads that wait for a call.
    idle: AtomicUsize,
    /// Those that there are, a bit each.
    places: AtomicU64,
}

impl Post {
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let taken =
            |places: u64| (places.trailing_ones() < PLACES as u32).then(|| places | (places + 1));
        let before = self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        let place = before.map_err(|_| io::Error::other("too many threads"))?.trailing_ones();
        let post = Arc::clone(self);
        let thread = std::thread::Builder::new().name("ioctl-trap".into()).stack_size(STACK);
        self.idle.fetch_add(1, Ordering::Relaxed);
        let spawned = thread.spawn(move || {
            post.listen(place as usize);
            post.leave(place);
        });
        spawned.map(drop).inspect_err(|_| {
            self.idle.fetch_sub(1, Ordering::Relaxed);
            self.leave(place);
        })
    }

    fn leave(&self, place: u32) {
        self.places.fetch_and(!(1 << place), Ordering::Relaxed);
    }

    /// Lets calls go on, until there are none any more, or there is no need of this thread.
    fn listen(self: &Arc<Self>, place: usize) {
        loop {
            let call = match self.listener.next() {
                Ok(Some(call)) => call,
                Ok(None) => return,
                Err(error) => return tracing::warn!("cannot hear of trapped calls: {error}"),
            };
            self.in_hand.note(place, call.id);
            let kept = self.promises.waiting.load(Ordering::Acquire) > 0 && self.keep_promise(call);
            // One whose thread was killed meanwhile is no error.
            let _ = self.listener.proceed(call.id);
            if kept && self.idle.fetch_add(1, Ordering::Relaxed) >= ENOUGH_IDLE {
                self.idle.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Adds the files that were promised to the thread. False: there were none.
    fn keep_promise(self: &Arc<Self>, call: Trapped) -> bool {
        let Some(files) = self.promises.take(call.tid) else { return false };
        if self.idle.fetch_sub(1, Ordering::Relaxed) <= 1
            && let Err(error) = self.start_thread()
        {
            tracing::debug!("no further thread that listens: {error}");
        }
        let state = self.add(call, files);
        self.promises.put(call.tid, state);
        true
    }

    fn add(&self, call: Trapped, files: Vec<Arc<ClientFile>>) -> State {
        let mut numbers = Vec::with_capacity(files.len());
        for file in &files {
            match self.listener.add_file(call.id, file.as_fd()) {
                Ok(number) => numbers.push(number),
                // A signal came, or it was killed: whoever lives comes again.
                Err(error) if error.kind() == io::ErrorKind::NotFound && numbers.is_empty() => {
                    return State::Waiting(files);
                }
                Err(error) => return State::Over(Outcome::Failed(error, numbers)),
            }
        }
        State::Over(Outcome::Given(numbers))
    }
}
