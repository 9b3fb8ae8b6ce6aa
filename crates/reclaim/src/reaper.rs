//! Threads for `process_mrelease`, which can take hundreds of milliseconds.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::mrelease::{Mrelease, mrelease};

/// Tries while the kernel says `EAGAIN`.
const TRIES: u32 = 20;
/// Pause between two of them: the lock that is busy is held for the length of a page fault or a
/// memory mapping call.
const PAUSE: Duration = Duration::from_millis(2);
/// Jobs that may wait: more victims at a time than users that can be limited.
const QUEUE: usize = 1024;
/// A reaper calls two system calls; it needs no 2 MiB of locked stack.
const STACK_BYTES: usize = 64 * 1024;

struct Job {
    token: u64,
    pidfd: Arc<OwnedFd>,
}

/// A fixed pool of threads, made at start so that nothing has to be allocated when memory is short.
/// They inherit the scheduling policy of the thread that starts them.
pub struct Reaper {
    jobs: Option<SyncSender<Job>>,
    results: Receiver<(u64, Mrelease)>,
    done: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Reaper {
    /// Starts the pool.
    pub fn start(threads: usize) -> io::Result<Self> {
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, queue) = sync_channel::<Job>(QUEUE);
        let (answer, results) = sync_channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let work = |_| {
            let (queue, answer, done) = (queue.clone(), answer.clone(), done.clone());
            std::thread::Builder::new()
                .name("reaper".into())
                .stack_size(STACK_BYTES)
                .spawn(move || run(&queue, &answer, &done))
        };
        let threads = (0..threads).map(work).collect::<io::Result<_>>()?;
        Ok(Self { jobs: Some(jobs), results, done, threads })
    }

    /// Asks for the release of a dying process's memory; `token` comes back with the result. `false`
    /// when the queue is full: the victim then has to exit on its own.
    pub fn submit(&self, token: u64, pidfd: Arc<OwnedFd>) -> bool {
        let Some(jobs) = &self.jobs else { return false };
        !matches!(jobs.try_send(Job { token, pidfd }), Err(TrySendError::Full(_)))
    }

    /// Takes the results that are there, without blocking.
    pub fn drain(&self, mut result: impl FnMut(u64, Mrelease)) {
        // The count is of no use, only that the fd is not readable any more.
        let _ = rustix::io::read(&*self.done, &mut [0u8; 8]);
        for (token, released) in self.results.try_iter() {
            result(token, released);
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
        self.jobs = None;
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

fn run(queue: &Mutex<Receiver<Job>>, answer: &SyncSender<(u64, Mrelease)>, done: &OwnedFd) {
    loop {
        // The lock is held while waiting: the others wait for it instead of for a job.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { token, pidfd }) = job else { return };
        let released = release(pidfd.as_fd());
        drop(pidfd);
        if answer.send((token, released)).is_err() {
            return;
        }
        let _ = rustix::io::write(done, &1u64.to_ne_bytes());
    }
}

fn release(pidfd: BorrowedFd<'_>) -> Mrelease {
    for _ in 1..TRIES {
        match mrelease(pidfd) {
            Mrelease::Busy => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    mrelease(pidfd)
}
