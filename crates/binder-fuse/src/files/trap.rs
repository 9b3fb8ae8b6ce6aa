//! Installs files in threads whose BINDER_WRITE_READ is trapped by a seccomp filter.
//!
//! A thread that sleeps in an ioctl on our device has passed the filter. So its delivery is
//! *deferred*: its ioctl returns without the transaction, and the filter traps the thread's next
//! call; a listener thread adds the files to its table and lets the call proceed. When that ioctl
//! arrives, the event loop collects the [`TrapOutcome`], so it has the descriptors before it serves
//! the call.
//!
//! Every other call proceeds at once. Adding a file waits for the receiver's thread to run, so a
//! listener starts another one before it adds files.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use binder_driver::ProcessId;
use ioctl_trap::{HeldCalls, Listener, PLACES, Trapped};
use owners::client_files::ClientFile;

use crate::sync::lock;

/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;
/// Maximum number of idle listener threads of one filter; further ones exit after their delivery.
const MAX_IDLE: usize = 2;

/// Result of a deferred delivery.
#[derive(Debug)]
pub(crate) enum TrapOutcome {
    /// All files are installed under these numbers.
    Installed(Vec<u32>),
    /// Not all files could be added; those with these numbers were.
    Failed(io::Error, Vec<u32>),
    /// The thread was not trapped: it does not run under the filter.
    Untouched,
}

/// Files to add to a thread's table at its next call.
struct Deferred {
    process: ProcessId,
    state: DeferredState,
}

enum DeferredState {
    Waiting(Vec<Arc<ClientFile>>),
    /// A listener thread adds them.
    Adding,
    Done(TrapOutcome),
}

/// All deferred deliveries, and the filters' listeners.
pub(crate) struct Trap(Arc<DeferredFds>);

#[derive(Default)]
struct DeferredFds {
    /// All deliveries, for the event loop, and those in [`DeferredState::Waiting`], for the
    /// listeners: neither takes the lock while its counter is 0.
    count: AtomicUsize,
    waiting: AtomicUsize,
    by_thread: Mutex<HashMap<u32, Deferred>>,
}

impl Trap {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Serves one more filter, until no process runs under it.
    pub(crate) fn listen(&self, listener: Listener, held_calls: HeldCalls) -> io::Result<()> {
        let server = FilterServer {
            listener,
            held_calls,
            deferred: Arc::clone(&self.0),
            idle: AtomicUsize::new(0),
            places: AtomicU64::new(0),
        };
        Arc::new(server).start_thread()
    }

    /// No call has to be checked for a delivery.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.count.load(Ordering::Relaxed) == 0
    }

    /// Defers a delivery: the files are added at the next call of a thread that is in an ioctl on
    /// our device. False: the thread already has a deferred delivery.
    pub(crate) fn defer(&self, tid: u32, process: ProcessId, files: Vec<Arc<ClientFile>>) -> bool {
        let mut by_thread = lock(&self.0.by_thread);
        if by_thread.contains_key(&tid) {
            return false;
        }
        by_thread.insert(tid, Deferred { process, state: DeferredState::Waiting(files) });
        self.0.count.store(by_thread.len(), Ordering::Relaxed);
        // Visible to the listener of the thread's next call: our reply to the ioctl comes between.
        self.0.waiting.fetch_add(1, Ordering::Release);
        true
    }

    /// Whether files wait for the thread's next trapped call.
    pub(crate) fn awaits_call(&self, tid: u32) -> bool {
        !self.is_empty() && lock(&self.0.by_thread).contains_key(&tid)
    }

    /// Result of the delivery to a thread whose call has arrived, with the process of its open.
    pub(crate) fn collect(&self, tid: u32) -> Option<(ProcessId, TrapOutcome)> {
        let mut by_thread = lock(&self.0.by_thread);
        let Deferred { process, state } = by_thread.remove(&tid)?;
        self.0.count.store(by_thread.len(), Ordering::Relaxed);
        drop(by_thread);
        Some((process, self.0.end(state)))
    }

    /// Cancels a delivery because its thread or its open is gone. The result of a delivery in
    /// progress remains to be collected.
    pub(crate) fn withdraw(&self, tid: u32, process: ProcessId) {
        let mut by_thread = lock(&self.0.by_thread);
        let cancellable = |deferred: &Deferred| {
            deferred.process == process && !matches!(deferred.state, DeferredState::Adding)
        };
        if !by_thread.get(&tid).is_some_and(cancellable) {
            return;
        }
        let deferred = by_thread.remove(&tid);
        self.0.count.store(by_thread.len(), Ordering::Relaxed);
        drop(by_thread);
        if let Some(deferred) = deferred {
            drop(self.0.end(deferred.state));
        }
    }
}

impl DeferredFds {
    fn end(&self, state: DeferredState) -> TrapOutcome {
        match state {
            DeferredState::Waiting(_) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                TrapOutcome::Untouched
            }
            // The thread is held in the trap, so it cannot be the one whose call has arrived.
            DeferredState::Adding => TrapOutcome::Untouched,
            DeferredState::Done(outcome) => outcome,
        }
    }

    /// Takes the files that wait for a thread.
    fn take(&self, tid: u32) -> Option<Vec<Arc<ClientFile>>> {
        let mut by_thread = lock(&self.by_thread);
        let state = &mut by_thread.get_mut(&tid)?.state;
        match std::mem::replace(state, DeferredState::Adding) {
            DeferredState::Waiting(files) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                Some(files)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    fn put(&self, tid: u32, state: DeferredState) {
        if let Some(deferred) = lock(&self.by_thread).get_mut(&tid) {
            if matches!(state, DeferredState::Waiting(_)) {
                self.waiting.fetch_add(1, Ordering::Relaxed);
            }
            deferred.state = state;
        }
    }
}

/// One filter with its listener threads.
struct FilterServer {
    listener: Listener,
    held_calls: HeldCalls,
    deferred: Arc<DeferredFds>,
    /// Number of threads that wait for a call.
    idle: AtomicUsize,
    /// Slots in use, a bit for each listener thread.
    places: AtomicU64,
}

impl FilterServer {
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let taken =
            |places: u64| (places.trailing_ones() < PLACES as u32).then(|| places | (places + 1));
        let before = self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        let place = before.map_err(|_| io::Error::other("too many threads"))?.trailing_ones();
        let server = Arc::clone(self);
        let thread = std::thread::Builder::new().name("ioctl-trap".into()).stack_size(STACK);
        self.idle.fetch_add(1, Ordering::Relaxed);
        let spawned = thread.spawn(move || {
            server.listen(place as usize);
            server.leave(place);
        });
        spawned.map(drop).inspect_err(|_| {
            self.idle.fetch_sub(1, Ordering::Relaxed);
            self.leave(place);
        })
    }

    fn leave(&self, place: u32) {
        self.places.fetch_and(!(1 << place), Ordering::Relaxed);
    }

    /// Lets calls proceed, until the filter is gone or enough other threads are idle.
    fn listen(self: &Arc<Self>, place: usize) {
        loop {
            let call = match self.listener.next() {
                Ok(Some(call)) => call,
                Ok(None) => return,
                Err(error) => return tracing::warn!("cannot receive trapped calls: {error}"),
            };
            self.held_calls.note(place, call.id);
            let delivered = self.deferred.waiting.load(Ordering::Acquire) > 0 && self.deliver(call);
            // The thread may have been killed meanwhile, which is no error.
            let _ = self.listener.proceed(call.id);
            if delivered && self.idle.fetch_add(1, Ordering::Relaxed) >= MAX_IDLE {
                self.idle.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Adds the files that wait for the thread. False: there are none.
    fn deliver(self: &Arc<Self>, call: Trapped) -> bool {
        let Some(files) = self.deferred.take(call.tid) else { return false };
        if self.idle.fetch_sub(1, Ordering::Relaxed) <= 1
            && let Err(error) = self.start_thread()
        {
            tracing::debug!("no further listener thread: {error}");
        }
        let state = self.add(call, files);
        self.deferred.put(call.tid, state);
        true
    }

    fn add(&self, call: Trapped, files: Vec<Arc<ClientFile>>) -> DeferredState {
        let mut numbers = Vec::with_capacity(files.len());
        for file in &files {
            match self.listener.add_file(call.id, file.as_fd()) {
                Ok(number) => numbers.push(number),
                // The call was ended by a signal or a kill: a thread that is alive makes the call
                // again.
                Err(error) if error.kind() == io::ErrorKind::NotFound && numbers.is_empty() => {
                    return DeferredState::Waiting(files);
                }
                Err(error) => return DeferredState::Done(TrapOutcome::Failed(error, numbers)),
            }
        }
        DeferredState::Done(TrapOutcome::Installed(numbers))
    }
}
