//! Worker threads that install file descriptors in clients' threads.
//!
//! The event loop never waits for them. It submits a [`Job`] with the reply to the reader's ioctl;
//! a worker traces the reader, sends the reply, installs the files while the reader is stopped, and
//! reports the [`Outcome`]. The event loop then writes the reader's buffers, and its [`Completion`]
//! lets the worker resume the reader.
//!
//! A client that does not react blocks a worker for the timeout of [`tracee`](super::tracee), and
//! one whose memory cannot be accessed blocks it until the client is killed. So each delivery that
//! finds no idle worker starts another one, up to a limit. An owner may occupy at most as many
//! workers as are left for other owners; its further deliveries wait.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use headroom_linux::sched::leave_realtime;
use owners::Owner;
use rustix::event::EventfdFlags;

use super::closing::{Charge, ClientFile, Closers};
use super::install::{Failure, ReadRoom, SocketKeeper, close_all, install};
use super::tracee::{CallStop, End, Lost, Tracee};
use crate::channel::Channel;
use crate::interrupt_timer::InterruptTimer;
use crate::placement;
use crate::sync::lock;

/// Maximum number of workers, blocked ones included.
const MAX_WORKERS: usize = 32;
/// Bytes of a worker's stack. All of it is resident once the daemon locks its memory.
const STACK: usize = 64 << 10;
/// A worker without work exits after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Nice value of the workers. They are not real-time threads as the event loop is: each stop that a
/// client causes costs them time. The receiver waits for them.
const NICE: i32 = -10;
/// How long a shutdown waits for busy workers.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// How often stuck threads are checked, while there are any.
const STUCK_CHECK_PERIOD: Duration = Duration::from_millis(20);
/// The event loop completes a delivery within one of its turns; after this time it has ended.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);

/// Files to install in a thread, or descriptors to close in it, at the return from its ioctl.
pub(crate) struct Job {
    /// Id of its outcome and completion; `None`: it has neither, as descriptors are only closed.
    pub(crate) delivery: Option<u64>,
    pub(crate) tid: u32,
    pub(crate) call_stop: CallStop,
    /// Owner and uid of the receiver.
    pub(crate) charge: Charge,
    /// The reply to its ioctl.
    pub(crate) reply: Vec<u8>,
    /// The unused part of its read buffer.
    pub(crate) room: ReadRoom,
    /// Files to install.
    pub(crate) files: Vec<Arc<ClientFile>>,
    /// Descriptors to close.
    pub(crate) closes: Vec<u32>,
}

/// Result of an installation.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The files are installed; the thread is stopped until the completion.
    Installed(Vec<u32>),
    /// The files could not be installed; the thread is stopped until the completion.
    Stopped(io::Error),
    /// The thread cannot be traced; its ioctl has no reply yet.
    Unanswered(io::Error),
    /// The thread has exited, or runs already: its ioctl has its reply.
    Lost,
}

/// How a stopped thread is resumed.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) delivery: u64,
    /// Result of its ioctl; `None`: it restarts the ioctl.
    pub(crate) result: Option<i32>,
    /// Descriptors to close before the thread is resumed.
    pub(crate) closes: Vec<u32>,
}

/// The event loop's handle to the workers.
pub(crate) struct FdInstaller {
    shared: Arc<Shared>,
    completions: HashMap<u64, Sender<Completion>>,
    outcomes: Receiver<(u64, Outcome)>,
}

/// State shared by the workers.
struct Shared {
    queue: Mutex<Queue>,
    /// Notified when a job was queued, the queue was closed, or a worker has exited.
    changed: Condvar,
    channel: Arc<Channel>,
    outcomes: Sender<(u64, Outcome)>,
    signal: OwnedFd,
    closers: Closers,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Job, Receiver<Completion>)>,
    workers: usize,
    idle: usize,
    /// Deliveries in progress, by the receiver's owner.
    under_way: HashMap<Owner, usize>,
    /// No more jobs will be submitted.
    closed: bool,
}

impl Queue {
    /// Whether one more delivery to this owner may begin: the owner occupies fewer workers than are
    /// left.
    fn may_begin(&self, owner: Owner) -> bool {
        let all: usize = self.under_way.values().sum();
        let own = self.under_way.get(&owner).copied().unwrap_or(0);
        own < MAX_WORKERS - all.min(MAX_WORKERS)
    }

    /// Index of the first job that may begin.
    fn first(&self) -> Option<usize> {
        self.jobs.iter().position(|(job, _)| self.may_begin(job.charge.owner))
    }

    fn take(&mut self) -> Option<(Job, Receiver<Completion>)> {
        let (job, completion) = self.jobs.remove(self.first()?)?;
        *self.under_way.entry(job.charge.owner).or_default() += 1;
        Some((job, completion))
    }

    fn done(&mut self, owner: Owner) {
        if let Some(count) = self.under_way.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&owner);
            }
        }
    }

    /// Whether a job may begin and no worker is idle for it.
    fn wants_worker(&self) -> bool {
        self.idle == 0 && self.workers < MAX_WORKERS && self.first().is_some()
    }
}

impl FdInstaller {
    pub(crate) fn start(device: Arc<Channel>, closers: Closers) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let signal = rustix::event::eventfd(0, flags)?;
        let (sender, outcomes) = channel();
        let (queue, changed) = Default::default();
        let shared = Shared { queue, changed, channel: device, outcomes: sender, signal, closers };
        Ok(Self { shared: Arc::new(shared), completions: HashMap::new(), outcomes })
    }

    /// Queues a job. False: there is no worker, and none can be started.
    pub(crate) fn submit(&mut self, job: Job) -> bool {
        let (sender, completion) = channel();
        let delivery = job.delivery;
        let mut queue = lock(&self.shared.queue);
        queue.jobs.push_back((job, completion));
        let runnable =
            queue.jobs.iter().filter(|(job, _)| queue.may_begin(job.charge.owner)).count();
        if runnable > queue.idle && queue.workers < MAX_WORKERS {
            start_worker(&self.shared, &mut queue);
        }
        if queue.workers == 0 {
            queue.jobs.clear();
            return false;
        }
        drop(queue);
        if let Some(delivery) = delivery {
            self.completions.insert(delivery, sender);
        }
        self.shared.changed.notify_one();
        true
    }

    /// Removes a delivery that waits for other deliveries to its owner. False: a worker executes
    /// it, or is about to take it.
    pub(crate) fn withdraw(&mut self, delivery: u64) -> bool {
        let mut queue = lock(&self.shared.queue);
        let at = queue.jobs.iter().position(|(job, _)| job.delivery == Some(delivery));
        let blocked = at.filter(|&at| !queue.may_begin(queue.jobs[at].0.charge.owner));
        let withdrawn = blocked.and_then(|at| queue.jobs.remove(at));
        drop(queue);
        let Some((job, _)) = withdrawn else { return false };
        self.completions.remove(&delivery);
        // The driver still holds the files: nothing is closed here.
        drop(job);
        true
    }

    /// Whether no job is queued or being executed.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = lock(&self.shared.queue);
        queue.jobs.is_empty() && queue.under_way.is_empty()
    }

    pub(crate) fn complete(&mut self, completion: Completion) {
        if let Some(sender) = self.completions.remove(&completion.delivery) {
            let _ = sender.send(completion);
        }
    }

    /// Becomes readable when there is an outcome.
    pub(crate) fn signal(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }

    /// The next outcome, with the id of its delivery.
    pub(crate) fn outcome(&mut self) -> Option<(u64, Outcome)> {
        let (delivery, outcome) = self.outcomes.try_recv().ok()?;
        if matches!(outcome, Outcome::Unanswered(_) | Outcome::Lost) {
            self.completions.remove(&delivery);
        }
        Some((delivery, outcome))
    }

    /// Must be called before the outcomes are taken: later ones set the signal again.
    pub(crate) fn clear_signal(&self) {
        let _ = rustix::io::read(&self.shared.signal, &mut [0; 8]);
    }
}

impl Drop for FdInstaller {
    fn drop(&mut self) {
        self.completions.clear();
        let mut queue = lock(&self.shared.queue);
        queue.closed = true;
        self.shared.changed.notify_all();
        // A worker that is blocked by a client may never exit.
        let busy = |queue: &mut Queue| queue.workers > 0;
        drop(self.shared.changed.wait_timeout_while(queue, SHUTDOWN_TIMEOUT, busy));
    }
}

fn start_worker(shared: &Arc<Shared>, queue: &mut Queue) {
    let worker = Worker { shared: Arc::clone(shared) };
    let thread = std::thread::Builder::new().name("fd-installer".into()).stack_size(STACK);
    match thread.spawn(move || worker.run()) {
        Ok(_) => queue.workers += 1,
        Err(error) => tracing::debug!("no further thread that installs descriptors: {error}"),
    }
}

/// A worker's next step.
enum Next {
    Job(Box<Job>, Receiver<Completion>),
    TimedOut,
    Closed,
}

struct Worker {
    shared: Arc<Shared>,
}

impl Worker {
    fn run(&self) {
        leave_realtime(NICE);
        self.run_jobs(&InterruptTimer::new());
        let mut queue = lock(&self.shared.queue);
        queue.workers -= 1;
        self.shared.changed.notify_all();
    }

    fn run_jobs(&self, timer: &io::Result<InterruptTimer>) {
        let mut stuck: Vec<Tracee> = Vec::new();
        loop {
            let next = self.next(if stuck.is_empty() { IDLE_TIMEOUT } else { STUCK_CHECK_PERIOD });
            stuck = stuck.into_iter().filter_map(Tracee::let_go).collect();
            match next {
                Next::Job(job, completion) => {
                    let owner = job.charge.owner;
                    stuck.extend(self.deliver(*job, &completion, timer));
                    lock(&self.shared.queue).done(owner);
                }
                Next::TimedOut if !stuck.is_empty() => {}
                Next::TimedOut | Next::Closed => return,
            }
        }
    }

    /// Waits for the next job.
    fn next(&self, timeout: Duration) -> Next {
        let mut queue = lock(&self.shared.queue);
        queue.idle += 1;
        let nothing = |queue: &mut Queue| queue.first().is_none() && !queue.closed;
        let waited = self.shared.changed.wait_timeout_while(queue, timeout, nothing);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
        match queue.take() {
            Some((job, completion)) => {
                // A later job may be able to begin, too.
                if queue.wants_worker() {
                    start_worker(&self.shared, &mut queue);
                }
                Next::Job(Box::new(job), completion)
            }
            None if queue.closed => Next::Closed,
            None => Next::TimedOut,
        }
    }

    /// Executes a job; returns the thread if it is stuck and has to be detached later.
    fn deliver(
        &self,
        mut job: Job,
        completion: &Receiver<Completion>,
        timer: &io::Result<InterruptTimer>,
    ) -> Option<Tracee> {
        let files = std::mem::take(&mut job.files);
        let _pinned = placement::pin_to_this_cpu();
        let seized = match timer {
            Ok(timer) => Tracee::seize(job.tid, job.call_stop).map(|tracee| (tracee, timer.arm())),
            Err(error) => Err(io::Error::new(error.kind(), format!("no timer: {error}"))),
        };
        let served = match seized {
            Ok((tracee, _ringing)) => {
                self.send_reply(&job);
                tracee.stopped().and_then(|tracee| self.act(tracee, &job, &files, completion))
            }
            Err(error) => {
                if job.delivery.is_none() {
                    self.send_reply(&job);
                    tracing::debug!("thread {}: cannot close for it: {error}", job.tid);
                }
                self.report(&job, Outcome::Unanswered(error));
                Ok(())
            }
        };
        drop(files);
        let lost = served.err()?;
        self.report(&job, Outcome::Lost);
        match lost {
            Lost::Gone => None,
            Lost::Refused(error) => {
                tracing::debug!("thread {} cannot be used: {error}", job.tid);
                None
            }
            Lost::Stuck(tracee) => {
                tracing::debug!("thread {} does not move: dying, or frozen", job.tid);
                Some(*tracee)
            }
        }
    }

    fn report(&self, job: &Job, outcome: Outcome) {
        if let Some(delivery) = job.delivery {
            let _ = self.shared.outcomes.send((delivery, outcome));
            let _ = rustix::io::write(&self.shared.signal, &1_u64.to_ne_bytes());
        }
    }

    fn send_reply(&self, job: &Job) {
        if let Err(error) = self.shared.channel.send(&job.reply) {
            tracing::warn!("thread {}: the kernel does not take the answer: {error}", job.tid);
        }
    }

    /// Executes the job in a stopped thread, and resumes it.
    fn act(
        &self,
        mut tracee: Tracee,
        job: &Job,
        files: &[Arc<ClientFile>],
        completion: &Receiver<Completion>,
    ) -> Result<(), Lost> {
        if job.delivery.is_none() {
            close_all(&mut tracee, &job.closes)?;
            return tracee.finish(End::Unchanged);
        }
        let keeper = SocketKeeper { closers: self.shared.closers.clone(), charge: job.charge };
        let outcome = match install(&mut tracee, files, job.room, &keeper) {
            Ok(fds) => Outcome::Installed(fds),
            Err(Failure::Refused(error)) => Outcome::Stopped(error),
            Err(Failure::Lost(lost)) => return Err(lost),
        };
        self.report(job, outcome);
        let Ok(completion) = completion.recv_timeout(COMPLETION_TIMEOUT) else {
            return tracee.finish(End::Unchanged);
        };
        close_all(&mut tracee, &completion.closes)?;
        tracee.finish(completion.result.map_or(End::Again, |result| End::Return(result.into())))
    }
}

#[cfg(test)]
mod tests {
    use owners::Uid;

    use super::*;

    fn job(number: u32) -> (Job, Receiver<Completion>) {
        let (reply, files, closes) = (Vec::new(), Vec::new(), Vec::new());
        let uid = Uid(number);
        let charge = Charge { owner: Owner::User(uid), uid };
        let (call_stop, room) = (CallStop::Step, ReadRoom::default());
        let job = Job { delivery: None, tid: 1, call_stop, charge, reply, room, files, closes };
        (job, channel().1)
    }

    /// The uids of the jobs that may begin, in their order.
    fn begin_all(queue: &mut Queue) -> Vec<u32> {
        std::iter::from_fn(|| queue.take().map(|(job, _)| job.charge.uid.0)).collect()
    }

    #[test]
    fn an_owner_whose_receivers_block_leaves_workers_to_others() {
        let mut queue = Queue::default();
        queue.jobs.extend((0..100).map(|_| job(1)));
        assert_eq!(begin_all(&mut queue), [1; MAX_WORKERS / 2]);
        queue.jobs.extend([job(2), job(3)]);
        assert_eq!(begin_all(&mut queue), [2, 3], "jobs behind blocked ones begin");
        queue.jobs.extend((0..100).map(|_| job(4)));
        assert!(begin_all(&mut queue).len() < MAX_WORKERS - MAX_WORKERS / 2 - 2);
        queue.jobs.push_back(job(5));
        assert_eq!(begin_all(&mut queue), [5], "two such owners leave some, too");
    }

    #[test]
    fn a_waiting_job_begins_when_another_one_ends() {
        let mut queue = Queue::default();
        queue.jobs.extend((0..MAX_WORKERS).map(|_| job(1)));
        begin_all(&mut queue);
        assert!(!queue.jobs.is_empty() && queue.first().is_none());
        queue.done(Owner::User(Uid(1)));
        assert_eq!(begin_all(&mut queue), [1]);
        (0..MAX_WORKERS / 2).for_each(|_| queue.done(Owner::User(Uid(1))));
        assert!(queue.under_way.is_empty());
    }
}
