//! Threads that call `process_mrelease`, which takes hundreds of milliseconds for a large victim
//! and waits for the lock of its address space.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::boost::Boost;
use crate::victim::{Victim, last_errno};

/// Attempts per victim while the kernel returns `EAGAIN`, and the pause between them: 40 ms in all.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum number of queued victims; further ones free their memory themselves. Each takes 400
/// bytes, which are locked.
const QUEUE: usize = 256;
/// A reaper makes a few system calls only; it does not need 2 MiB of locked stack.
const STACK_BYTES: usize = 64 * 1024;
/// The part of the stack that is locked; at most half of this is in use.
const LOCKED_BYTES: usize = 16 * 1024;

/// Results of a reaper for a victim, in this order.
#[derive(Clone, Copy, Debug)]
pub enum Done {
    /// The result of `process_mrelease`.
    Released(Mrelease),
    /// The victim had not exited after that, and was boosted.
    Boosted(Boost),
}

struct Job {
    token: u64,
    victim: Victim,
}

/// A fixed pool of threads, created at start so that no allocation is needed when memory is short.
/// They inherit the scheduling of the thread that starts them, and lock their stacks if permitted.
pub struct Reaper {
    jobs: Option<SyncSender<Job>>,
    results: Receiver<(u64, Done)>,
    done: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Reaper {
    /// The useful number of real-time reapers up to `most`: with several CPUs, one is left to all
    /// other work.
    pub fn enough(most: usize) -> usize {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        cpus.saturating_sub(1).clamp(1, most.max(1))
    }

    /// Starts the pool: the memory of up to `threads` victims is released concurrently.
    pub fn start(threads: usize) -> io::Result<Self> {
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, queue) = sync_channel::<Job>(QUEUE);
        let (answer, results) = sync_channel(2 * QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let start = |_| {
            let (queue, answer, done) = (queue.clone(), answer.clone(), done.clone());
            let worker = Worker { queue, answer, done };
            std::thread::Builder::new()
                .name("reaper".into())
                .stack_size(STACK_BYTES)
                .spawn(move || worker.run())
        };
        let threads = (0..threads).map(start).collect::<io::Result<_>>()?;
        Ok(Self { jobs: Some(jobs), results, done, threads })
    }

    /// Queues a process that was sent SIGKILL; `token` is returned with the results. The victim is
    /// dropped if the queue is full.
    pub(crate) fn submit(&self, token: u64, victim: &Victim) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.try_send(Job { token, victim: victim.clone() });
        }
    }

    /// Passes the available results to `result`, without blocking.
    pub fn drain(&self, mut result: impl FnMut(u64, Done)) {
        // The count is unused; the read makes the fd unreadable again.
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
        self.jobs = None;
        // A thread may be blocked until there is room for its result.
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
    queue: Arc<Mutex<Receiver<Job>>>,
    answer: SyncSender<(u64, Done)>,
    done: Arc<OwnedFd>,
}

impl Worker {
    fn run(&self) {
        lock_stack();
        loop {
            // The lock is held during the wait: the other threads wait for the lock instead of for
            // a job.
            let job = self.queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(Job { token, victim }) = job else { return };
            reap(&victim, |done| self.report(token, done));
        }
    }

    fn report(&self, token: u64, done: Done) {
        // Fails when the pool is being dropped.
        if self.answer.send((token, done)).is_ok() {
            let _ = rustix::io::write(&*self.done, &1u64.to_ne_bytes());
        }
    }
}

/// Releases the memory of one victim that was sent SIGKILL, and boosts it if it has not exited.
pub(crate) fn reap(victim: &Victim, mut report: impl FnMut(Done)) {
    report(Done::Released(mrelease_repeatedly(victim)));
    if !victim.has_exited() {
        report(Done::Boosted(Boost::new(victim)));
    }
}

fn mrelease_repeatedly(victim: &Victim) -> Mrelease {
    for _ in 1..TRIES {
        match mrelease(victim.as_fd()) {
            Mrelease::Busy if !victim.has_exited() => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    mrelease(victim.as_fd())
}

/// Locks the part of the stack that a job uses. Where locking is not permitted the pages have at
/// least been touched.
fn lock_stack() {
    let stack = [0u8; LOCKED_BYTES];
    // SAFETY: locking changes no content. It stays until the thread, and with it the stack, is
    // gone.
    let _ = unsafe { rustix::mm::mlock(stack.as_ptr().cast_mut().cast(), LOCKED_BYTES) };
    std::hint::black_box(&stack);
}

/// `PROCESS_MRELEASE_REAP_KILL`, proposed in 2026: the call also kills, and takes a reference to
/// the memory first. It is used only on processes that were sent SIGKILL already, so the signal has
/// no further effect.
const REAP_KILL: u32 = 1;

/// Result of `process_mrelease`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mrelease {
    /// The private memory that could be released was released.
    Freed,
    /// `EAGAIN`: part of it was busy; to be retried.
    Busy,
    /// `ESRCH`: every thread has detached from the memory; its exit frees it, or has freed it.
    LettingGo,
    /// `EINVAL`: the process is not dying, or shares its memory with one that is not.
    NotDying,
    /// `ENOSYS`: kernel before 5.15.
    Unsupported,
    /// Any other error.
    Failed(Errno),
}

/// Releases the memory of a process that was sent SIGKILL. Blocks while it works: about 0.1 µs per
/// page. Needs no privilege.
pub fn mrelease(pidfd: BorrowedFd<'_>) -> Mrelease {
    let flags = if kills_too() { REAP_KILL } else { 0 };
    loop {
        return match call(pidfd.as_raw_fd(), flags) {
            Ok(()) => Mrelease::Freed,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Mrelease::Busy,
            Err(Errno::SRCH) => Mrelease::LettingGo,
            Err(Errno::INVAL) => Mrelease::NotDying,
            Err(Errno::NOSYS) => Mrelease::Unsupported,
            Err(errno) => Mrelease::Failed(errno),
        };
    }
}

/// `process_mrelease` is available (Linux 5.15), or the errno if it is not.
pub fn check_mrelease() -> Result<(), Errno> {
    check(0)
}

/// Whether the kernel has the flag.
fn kills_too() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| check(REAP_KILL).is_ok())
}

/// Calls it without a pidfd. The kernel checks the flags before the descriptor, so `EBADF` shows
/// that they are known.
fn check(flags: libc::c_uint) -> Result<(), Errno> {
    call(-1, flags).or_else(|errno| if errno == Errno::BADF { Ok(()) } else { Err(errno) })
}

fn call(pidfd: i32, flags: u32) -> Result<(), Errno> {
    // SAFETY: process_mrelease takes a file descriptor and flags, and no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd, flags) };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_refuses_a_bad_descriptor_and_unknown_flags_before_anything_else() {
        let without_flags = call(-1, 0);
        if without_flags == Err(Errno::NOSYS) {
            test_support::skip("this kernel has no process_mrelease");
            return;
        }
        assert_eq!(without_flags, Err(Errno::BADF));
        assert_eq!(call(-1, 1 << 31), Err(Errno::INVAL));
        assert!(matches!(call(-1, REAP_KILL), Err(Errno::BADF | Errno::INVAL)));
    }
}
