//! Wakes the event loop while it waits for rings, which epoll cannot wait for.
//!
//! A thread polls the loop's epoll instance and sets a word that the loop waits for too. It polls
//! only when the loop has armed it, so it costs nothing while calls use rings alone.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::futex;

const DISARMED: u32 = 0;
const ARMED: u32 = 1;
const ENDED: u32 = 2;

struct Shared {
    /// The event loop's epoll instance.
    epoll: OwnedFd,
    /// Readable when the thread is to end.
    end: OwnedFd,
    state: AtomicU32,
    /// 1: there are events.
    signal: AtomicU32,
}

/// The thread. Dropping it ends it.
pub(crate) struct EventWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl EventWatch {
    /// Starts the thread, disarmed.
    pub(crate) fn start(epoll: BorrowedFd<'_>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            epoll: epoll.try_clone_to_owned()?,
            end: eventfd(0, EventfdFlags::CLOEXEC)?,
            state: AtomicU32::new(DISARMED),
            signal: AtomicU32::new(0),
        });
        let thread = std::thread::Builder::new().name("event-watch".into());
        let watched = Arc::clone(&shared);
        let thread = thread.spawn(move || watched.watch())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Watches for events again, if it has found some since.
    pub(crate) fn arm(&self) {
        let Shared { state, .. } = &*self.shared;
        if state.load(SeqCst) == DISARMED {
            state.store(ARMED, SeqCst);
            futex::wake(state);
        }
    }

    /// Not 0: there are events.
    pub(crate) fn signal(&self) -> &AtomicU32 {
        &self.shared.signal
    }

    /// Whether there are events; resets that.
    pub(crate) fn take_signal(&self) -> bool {
        self.shared.signal.load(SeqCst) != 0 && self.shared.signal.swap(0, SeqCst) != 0
    }
}

impl Drop for EventWatch {
    fn drop(&mut self) {
        self.shared.state.store(ENDED, SeqCst);
        futex::wake(&self.shared.state);
        let _ = rustix::io::write(&self.shared.end, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn watch(&self) {
        loop {
            match self.state.load(SeqCst) {
                DISARMED => futex::wait(&self.state, DISARMED),
                ENDED => return,
                _ => self.wait_for_events(),
            }
        }
    }

    fn wait_for_events(&self) {
        let mut fds = [&self.epoll, &self.end].map(|fd| PollFd::new(fd, PollFlags::IN));
        if poll(&mut fds, None).is_err() || fds[0].revents().is_empty() {
            return;
        }
        // Not if it has ended meanwhile.
        let _ = self.state.compare_exchange(ARMED, DISARMED, SeqCst, SeqCst);
        self.signal.store(1, SeqCst);
        futex::wake(&self.signal);
    }
}
