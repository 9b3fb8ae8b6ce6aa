//! Actual usage of accounts, measured outside the event loop: shared pages are counted once, page
//! tables and tmpfs files that are held open are included.
//!
//! [`memory_ledger::measurement`] decides when an account is measured and what follows. The thread
//! of the [`UsageWorker`] measures. It reads the memory controller's charge of the user's
//! [`slice`](self::slice) if that is the user's usage, and otherwise the processes, both with
//! [`bounded`] readers: a process's owner can keep its mmap lock held for any time, and a slice can
//! have many cgroups. The thread also detects changes that no account shows, and searches for
//! memory files that processes hold open ([`open_files`]) when the system is short of memory.

mod bound;
mod bounded;
mod measure;
mod open_files;
mod program;
mod slice;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use headroom_linux::machine_memory::{MachineReader, Meminfo};
use memory_ledger::{Measurement, ProcessId};
use rustix::event::{EventfdFlags, eventfd};

pub(crate) use bounded::{Answer, BoundedReader, Question};
use measure::Measurer;
pub(crate) use measure::machine_shmem_bytes;
pub use measure::{FileSearchMode, Held, Member, Request, Unlisted};
pub use open_files::Holder;

/// Takes precedence over programs that keep all CPUs busy.
const NICE: i32 = -20;
/// Capacity of the queue of requests; a request beyond it is due again later.
const QUEUE: usize = 64;
/// Interval of reading the system's memory while an account is limited.
const LOOK: Duration = Duration::from_millis(250);
/// Growth after which the daemon searches for its owner, bytes: half of what an account may exceed
/// its limit by for more than a second.
pub(crate) const GROWTH_BYTES: u64 = 16 << 20;
/// Number of looks that count as growth after memory was freed that no resident set shows. A killed
/// process frees its page tables and files after its resident set: within a second.
const DOUBTFUL_LOOKS: u32 = 4;
/// Number of counters of [`counters`].
const COUNTERS: usize = 6;

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
struct WorkerState {
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

impl WorkerState {
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
    shared: Arc<WorkerState>,
}

impl UsageWorker {
    /// Starts the thread.
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = sync_channel(QUEUE);
        let shared = Arc::new(WorkerState {
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
    shared: Arc<WorkerState>,
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

/// The counters of the system that are watched, each by itself: one that shrinks hides no growth of
/// another.
fn counters(info: &Meminfo) -> [Option<u64>; COUNTERS] {
    [
        info.shmem,
        info.page_tables,
        info.unevictable,
        info.mlocked,
        info.slab_unreclaimable,
        info.kernel_stack,
    ]
}

/// Changes since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnseenChanges {
    /// A counter has grown by [`GROWTH_BYTES`].
    grown: bool,
    /// Number of pages that any processes have lazily freed (`MADV_FREE`).
    lazily_freed_pages: u64,
}

/// The system's memory at the last look.
struct UnseenGrowth {
    reader: Option<MachineReader>,
    /// Each counter at the last growth, or its minimum since, bytes.
    before: [Option<u64>; COUNTERS],
    lazily_freed_pages: u64,
    /// Number of looks that count as growth, [`LOOK`] apart.
    doubtful_looks: u32,
    next_doubtful: Option<Instant>,
}

impl UnseenGrowth {
    fn new() -> Self {
        Self::of(Path::new("/proc"))
    }

    fn of(proc: &Path) -> Self {
        let reader = MachineReader::open(proc, Path::new("/sys"));
        let reader = reader.inspect_err(|error| tracing::warn!("{error}")).ok();
        Self {
            reader,
            before: [None; COUNTERS],
            lazily_freed_pages: 0,
            doubtful_looks: 0,
            next_doubtful: None,
        }
    }

    /// No account is limited: growth until the next look does not count.
    fn forget(&mut self) {
        self.before = [None; COUNTERS];
    }

    /// Memory is being freed that no resident set shows: if other memory grows by as much between
    /// two looks, no counter shows it. Some of the next looks count as growth.
    fn doubt(&mut self, now: Instant) {
        (self.doubtful_looks, self.next_doubtful) = (DOUBTFUL_LOOKS, Some(now + LOOK));
    }

    fn is_doubtful(&mut self, now: Instant) -> bool {
        let is_due = self.doubtful_looks > 0 && self.next_doubtful.is_none_or(|next| now >= next);
        if is_due {
            (self.doubtful_looks, self.next_doubtful) = (self.doubtful_looks - 1, Some(now + LOOK));
        }
        is_due
    }

    fn look(&mut self, now: Instant) -> UnseenChanges {
        let grown = self.is_doubtful(now);
        let mut changes = UnseenChanges { grown, ..UnseenChanges::default() };
        let Some(reader) = &mut self.reader else { return changes };
        let freed_pages = reader.lazily_freed_pages().unwrap_or(0);
        changes.lazily_freed_pages = freed_pages.saturating_sub(self.lazily_freed_pages);
        self.lazily_freed_pages = freed_pages;
        let Ok(info) = reader.meminfo() else { return changes };
        for (before, now) in self.before.iter_mut().zip(counters(&info)) {
            let Some(now) = now else { continue };
            let least = before.map_or(now, |before| before.min(now));
            let grown = now >= least + GROWTH_BYTES;
            *before = Some(if grown { now } else { least });
            changes.grown |= grown;
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn write(proc: &Path, meminfo: &str, lazily_freed_pages: u64) {
        let text = format!("MemTotal: 9000000 kB\nMemAvailable: 9000000 kB\n{meminfo}");
        std::fs::write(proc.join("meminfo"), text).unwrap();
        std::fs::write(proc.join("vmstat"), format!("pglazyfree {lazily_freed_pages}\n")).unwrap();
    }

    #[test]
    fn each_counter_grows_by_itself() {
        let names = ["Shmem", "PageTables", "Unevictable", "Mlocked", "SUnreclaim", "KernelStack"];
        for name in names {
            let proc = tempfile::tempdir().unwrap();
            // Another counter shrinks meanwhile.
            let other = if name == "Shmem" { "Mlocked" } else { "Shmem" };
            let meminfo = |bytes: u64, other_bytes: u64| {
                format!("{name}: {} kB\n{other}: {} kB\n", bytes >> 10, other_bytes >> 10)
            };
            write(proc.path(), &meminfo(50 * MIB, 100 * MIB), 0);
            let mut growth = UnseenGrowth::of(proc.path());
            let mut grown = |bytes, other_bytes| {
                write(proc.path(), &meminfo(bytes, other_bytes), 0);
                growth.look(Instant::now()).grown
            };
            assert!(!grown(50 * MIB, 100 * MIB) && !grown(40 * MIB, 100 * MIB));
            assert!(!grown(55 * MIB, 80 * MIB));
            assert!(grown(56 * MIB, 60 * MIB), "{name}: 16 MiB above the minimum");
            assert!(!grown(71 * MIB, 60 * MIB));
        }
    }

    #[test]
    fn four_looks_after_a_fall_count_as_growth() {
        let proc = tempfile::tempdir().unwrap();
        write(proc.path(), "", 0);
        let mut growth = UnseenGrowth::of(proc.path());
        let start = Instant::now();
        growth.doubt(start);
        let looks = (0..12).map(|half| growth.look(start + half * LOOK / 2).grown);
        let grown: Vec<u32> =
            looks.zip(0..).filter(|(grown, _)| *grown).map(|(_, at)| at).collect();
        assert_eq!(grown, [2, 4, 6, 8]);
    }

    #[test]
    fn pages_that_are_lazily_freed_are_counted_once() {
        let proc = tempfile::tempdir().unwrap();
        write(proc.path(), "", 7);
        let mut growth = UnseenGrowth::of(proc.path());
        let mut freed = |pages| {
            write(proc.path(), "", pages);
            growth.look(Instant::now()).lazily_freed_pages
        };
        assert_eq!([freed(7), freed(7), freed(19)], [7, 0, 12], "those before the start, too");
    }
}
