//! Threads for what takes its time: `process_mrelease`, hundreds of milliseconds for a large victim,
//! and the boost, a few microseconds a thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::boost::{Boost, Lift};
use crate::holdings::Holdings;
use crate::mrelease::{Mrelease, mrelease};
use crate::schedule::{Schedule, run_on, this_cpu};
use crate::victim::Victim;

/// Tries in a row while the kernel says `EAGAIN`.
const TRIES: u32 = 20;
/// Pause between two of them: what is busy is busy for the length of a page fault or a memory mapping
/// call.
const PAUSE: Duration = Duration::from_millis(2);
/// Jobs that may wait; a victim beyond that frees its memory itself. Each takes 400 bytes, which are locked.
const QUEUE: usize = 256;
/// A reaper calls two system calls; it needs no 2 MiB of locked stack.
const STACK_BYTES: usize = 64 * 1024;
/// What is locked of it; half of this is in use at the most.
const LOCKED_BYTES: usize = 16 * 1024;

/// What a victim is helped with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Its memory is released from outside.
    Release,
    /// The same, and its threads are raised: after that where they would be in the way of it, else at
    /// the same time.
    Expedite,
    /// Its threads are raised.
    Boost(Lift),
    /// It is let out of a freezer, once its memory has been released.
    Thaw,
}

/// What came of it.
#[derive(Debug)]
pub enum Done {
    /// What `process_mrelease` said.
    Released(Mrelease),
    /// What was raised, to be undone if the victim survives.
    Boosted(Boost),
}

struct Job {
    token: u64,
    victim: Victim,
    task: Task,
}

/// A fixed pool of threads, made at start so that nothing has to be allocated when memory is short:
/// some release memory, one boosts. They inherit the scheduling of the thread that starts them, and
/// lock their stacks where they may.
pub struct Reaper {
    releases: Option<SyncSender<Job>>,
    boosts: Option<SyncSender<Job>>,
    /// Releases that have not ended.
    pending: Arc<AtomicUsize>,
    results: Receiver<(u64, Done)>,
    done: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

type Queue = Arc<Mutex<Receiver<Job>>>;

impl Reaper {
    /// So many reapers at the most are of use, where they are real-time: one CPU is left to everybody else, if there are
    /// several.
    pub fn enough(most: usize) -> usize {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        cpus.saturating_sub(1).clamp(1, most.max(1))
    }

    /// Starts the pool: so many victims at a time have their memory released.
    pub fn start(threads: usize) -> io::Result<Self> {
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (releases, release_queue) = sync_channel::<Job>(QUEUE);
        let (boosts, boost_queue) = sync_channel::<Job>(QUEUE);
        let (answer, results) = sync_channel(2 * QUEUE);
        let pending = Arc::new(AtomicUsize::new(0));
        let start = |name: &str, queue: Queue, boosts: Option<SyncSender<Job>>| {
            let (answer, done, pending) = (answer.clone(), done.clone(), pending.clone());
            let worker = Worker { queue, boosts, pending, reapers: threads, answer, done };
            std::thread::Builder::new()
                .name(name.into())
                .stack_size(STACK_BYTES)
                .spawn(move || worker.run())
        };
        let queue = Arc::new(Mutex::new(release_queue));
        let reaper = |_| start("reaper", queue.clone(), Some(boosts.clone()));
        let mut started: Vec<JoinHandle<()>> =
            (0..threads).map(reaper).collect::<io::Result<_>>()?;
        started.push(start("booster", Arc::new(Mutex::new(boost_queue)), None)?);
        let (releases, boosts) = (Some(releases), Some(boosts));
        Ok(Self { releases, boosts, pending, results, done, threads: started })
    }

    /// Asks for help for a dying process; `token` comes back with the result. `false` when the queue
    /// is full: the victim then has to do without.
    pub(crate) fn submit(&self, token: u64, victim: &Victim, task: Task) -> bool {
        let queue = match task {
            Task::Release | Task::Expedite => &self.releases,
            Task::Boost(_) | Task::Thaw => &self.boosts,
        };
        let Some(queue) = queue else { return false };
        let counts = matches!(task, Task::Release | Task::Expedite);
        if counts {
            self.pending.fetch_add(1, Ordering::Relaxed);
        }
        let job = Job { token, victim: victim.clone(), task };
        let taken = !matches!(queue.try_send(job), Err(TrySendError::Full(_)));
        if counts && !taken {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }

    /// Takes the results that are there, without blocking.
    pub fn drain(&self, mut result: impl FnMut(u64, Done)) {
        // The count is of no use, only that the fd is not readable any more.
        let _ = rustix::io::read(&*self.done, &mut [0u8; 8]);
        for (token, done) in self.results.try_iter() {
            result(token, done);
        }
    }
}

/// Becomes readable when there are results to [`drain`](Reaper::drain).
impl AsFd for Reaper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        (self.releases, self.boosts) = (None, None);
        // A thread may wait for room for its result.
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            self.drain(|_, _| {});
            std::thread::sleep(Duration::from_millis(1));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Worker {
    queue: Queue,
    /// Where a reaper leaves what would hold it up.
    boosts: Option<SyncSender<Job>>,
    pending: Arc<AtomicUsize>,
    reapers: usize,
    answer: SyncSender<(u64, Done)>,
    done: Arc<OwnedFd>,
}

impl Worker {
    fn run(&self) {
        lock_stack();
        let own = Schedule::of(0).ok().filter(Schedule::is_real_time);
        loop {
            // The lock is held while waiting: the others wait for it instead of for a job.
            let job = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(job) = job else { return };
            match job.task {
                Task::Release => self.tell(&job, Done::Released(release(&job.victim))),
                Task::Expedite => self.expedite(&job, own.as_ref()),
                Task::Boost(lift) => {
                    self.tell(&job, Done::Boosted(Boost::lift(&job.victim, lift)));
                }
                Task::Thaw => self.tell(&job, Done::Boosted(thaw(&job.victim))),
            }
        }
    }

    /// With `own`, the scheduling of this real-time thread, few threads of a victim are gathered behind
    /// it.
    fn expedite(&self, job: &Job, own: Option<&Schedule>) {
        // Who has let go of the memory already is freeing it, and best left where it runs.
        let has_memory = Holdings::anon_now(job.victim.pid()).is_some();
        // And of more victims than reapers, those that wait for one get on by themselves.
        let crowded = self.pending.load(Ordering::Relaxed) > self.reapers;
        let cpu = own.filter(|_| has_memory && !crowded).and_then(|_| this_cpu());
        let cpu = cpu.filter(|cpu| run_on(0, cpu).is_ok());
        let gathered = cpu.and_then(|cpu| Boost::gather(&job.victim, cpu));
        if gathered.is_none() {
            self.leave(job, Task::Boost(if crowded { Lift::Ordinary } else { Lift::AboveAll }));
        }
        let released = release(&job.victim);
        self.tell(job, Done::Released(released));
        if let Some(boost) = gathered {
            boost.spread();
            // Of no use to anybody who only waits for the memory: no reason to wake them twice.
            let _ = self.answer.send((job.token, Done::Boosted(boost)));
        }
        self.leave(job, Task::Thaw);
        if let (Some(own), Some(_)) = (own, cpu) {
            // Back to where it was; if that is refused, here is as good.
            let _ = run_on(0, own.cpus());
        }
    }

    /// Leaves a task to the booster. If that has too much to do, the victim has to do without.
    fn leave(&self, job: &Job, task: Task) {
        if let Some(boosts) = &self.boosts {
            let _ = boosts.try_send(Job { token: job.token, victim: job.victim.clone(), task });
        }
    }

    fn tell(&self, job: &Job, result: Done) {
        if matches!(result, Done::Released(_)) {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
        // Nobody listens any more: then nobody needs to know.
        if self.answer.send((job.token, result)).is_ok() {
            let _ = rustix::io::write(&self.done, &1u64.to_ne_bytes());
        }
    }
}

fn thaw(victim: &Victim) -> Boost {
    let mut boost = Boost::of(victim);
    boost.thaw();
    boost
}

fn release(victim: &Victim) -> Mrelease {
    for _ in 1..TRIES {
        match mrelease(victim.as_fd()) {
            Mrelease::Busy if !victim.has_exited() => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    mrelease(victim.as_fd())
}

/// Keeps what a job needs of the stack in memory. Where locking is not allowed the stack has at least
/// been touched.
fn lock_stack() {
    let stack = [0u8; LOCKED_BYTES];
    // SAFETY: locking changes no content. It stays until the thread, and with it the stack, is gone.
    let _ = unsafe { rustix::mm::mlock(stack.as_ptr().cast_mut().cast(), LOCKED_BYTES) };
    std::hint::black_box(&stack);
}
