//! The thread that measures accounts.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use memory_ledger::{Measurement, ProcessId};
use rustix::event::{EventfdFlags, eventfd};

use super::measure::{Measurer, Request};
use super::open_files::Holder;
use super::unseen_growth::{UnseenChanges, UnseenGrowth};

/// Takes precedence over programs that keep all CPUs busy.
const NICE: i32 = -20;
/// Capacity of the queue of requests; a request beyond it is due again later.
const QUEUE: usize = 64;
/// Interval of reading the system's memory while an account is limited.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// The result of a measurement.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) measurement: Measurement,
    /// Lazily freed memory of each process that has any, bytes.
    pub(crate) lazily_freed: BTreeMap<ProcessId, u64>,
}

/// Work for the thread.
enum Job {
    Measure(Box<Request>),
    SearchFiles(Vec<Holder>),
}

/// Shared by the thread and the event loop.
struct Shared {
    measured: Mutex<Vec<Measured>>,
    /// The result of the last search for files that are held open.
    held_files: Mutex<Option<BTreeMap<ProcessId, u64>>>,
    /// Whether any account has a limit.
    limited: AtomicBool,
    /// Memory of the system has grown that no resident set shows.
    grown: AtomicBool,
    /// Such memory was freed.
    fallen: AtomicBool,
    /// Pages that processes of the system have lazily freed since the event loop took the number.
    lazily_freed_pages: AtomicU64,
    wake: OwnedFd,
}

impl Shared {
    fn wake(&self) {
        // Fails only if the counter is full, and then the fd is readable as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A measurement cannot be queued.
#[derive(Debug)]
pub(crate) struct QueueFull;

/// The event loop's side. Dropping it ends the thread.
pub struct UsageWorker {
    jobs: SyncSender<Job>,
    shared: Arc<Shared>,
}

impl UsageWorker {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = sync_channel(QUEUE);
        let shared = Arc::new(Shared {
            measured: Mutex::default(),
            held_files: Mutex::default(),
            limited: AtomicBool::new(false),
            grown: AtomicBool::new(false),
            fallen: AtomicBool::new(false),
            lazily_freed_pages: AtomicU64::new(0),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let work = Work { queue, shared: Arc::clone(&shared), growth: UnseenGrowth::new() };
        std::thread::Builder::new().name("usage".into()).spawn(move || work.run())?;
        Ok(Self { jobs, shared })
    }

    /// Queues a measurement.
    pub(crate) fn request(&self, request: Request) -> Result<(), QueueFull> {
        self.jobs.try_send(Job::Measure(Box::new(request))).map_err(|_| QueueFull)
    }

    /// Queues a search for memory files that these processes hold open.
    pub(crate) fn search_files(&self, holders: Vec<Holder>) -> Result<(), QueueFull> {
        self.jobs.try_send(Job::SearchFiles(holders)).map_err(|_| QueueFull)
    }

    /// The result of a search that has ended since the last call, bytes by process.
    pub(crate) fn take_held_files(&self) -> Option<BTreeMap<ProcessId, u64>> {
        self.shared.held_files.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sets the number of accounts with a limit. Without any, growth is not monitored.
    pub(crate) fn set_limit_count(&self, count: usize) {
        let limited = count > 0;
        if self.shared.limited.swap(limited, Ordering::Relaxed) != limited && limited {
            // Memory held before the first limit was set counts as well.
            self.shared.grown.store(true, Ordering::Relaxed);
        }
    }

    /// Measurements that have ended since the last call.
    pub(crate) fn take_measured(&self) -> Vec<Measured> {
        // Resets the fd; the next measurement makes it readable again.
        let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
        let mut measured = self.shared.measured.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *measured)
    }

    /// Whether memory that no resident set shows has grown since the last call.
    pub(crate) fn take_growth(&self) -> bool {
        self.shared.grown.swap(false, Ordering::Relaxed)
    }

    /// Memory that no resident set shows is being freed: if other memory grows by as much between
    /// two looks, no counter shows it. Some of the next looks count as growth.
    pub(crate) fn note_unseen_fall(&self) {
        self.shared.fallen.store(true, Ordering::Relaxed);
    }

    /// Number of pages that processes of the system have lazily freed since the last call.
    pub(crate) fn take_lazily_freed(&self) -> u64 {
        self.shared.lazily_freed_pages.swap(0, Ordering::Relaxed)
    }
}

/// Readable when there is a measurement or growth to take.
impl AsFd for UsageWorker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }
}

struct Work {
    queue: Receiver<Job>,
    shared: Arc<Shared>,
    growth: UnseenGrowth,
}

impl Work {
    fn run(mut self) {
        // A kill may depend on a measurement, but the measurement is not part of the kill. Readers
        // inherit the priority.
        headroom_linux::sched::leave_realtime(NICE);
        if let Err(error) = headroom_linux::sched::raise_own_session(NICE) {
            tracing::debug!("/proc/self/autogroup: {error}; measurements take longer on busy CPUs");
        }
        let mut measurer = Measurer::new();
        loop {
            match self.queue.recv_timeout(LOOK) {
                Ok(job) => self.do_job(job, &mut measurer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look();
        }
    }

    fn do_job(&self, job: Job, measurer: &mut Measurer) {
        match job {
            Job::Measure(request) => {
                let measurement = measurer.measure(*request);
                let lazily_freed = measurer.lazily_freed(measurement.account);
                let result = Measured { measurement, lazily_freed };
                let measured = &self.shared.measured;
                measured.lock().unwrap_or_else(PoisonError::into_inner).push(result);
            }
            Job::SearchFiles(holders) => {
                let held = measurer.search_files(&holders);
                let result = &self.shared.held_files;
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
            }
        }
        self.shared.wake();
    }

    /// Detects changes that no account shows.
    fn look(&mut self) {
        if !self.shared.limited.load(Ordering::Relaxed) {
            self.growth.forget();
            return;
        }
        let now = Instant::now();
        if self.shared.fallen.swap(false, Ordering::Relaxed) {
            self.growth.doubt(now);
        }
        let UnseenChanges { grown, lazily_freed_pages } = self.growth.look(now);
        if grown {
            self.shared.grown.store(true, Ordering::Relaxed);
        }
        self.shared.lazily_freed_pages.fetch_add(lazily_freed_pages, Ordering::Relaxed);
        if grown || lazily_freed_pages > 0 {
            self.shared.wake();
        }
    }
}
