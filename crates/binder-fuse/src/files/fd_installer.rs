//! Worker threads that install file descriptors in clients' threads.
//!
//! The event loop never waits for them. It submits a [`Job`] with the reply to the reader's ioctl;
//! a worker traces the reader, sends the reply, installs the files while the reader is stopped, and
//! reports the [`Outcome`]. The event loop then completes the read, and the worker writes the
//! reader's buffers as its [`Completion`] says and resumes the reader.
//!
//! A client that does not react blocks a worker for the timeout of [`tracee`](super::tracee), and
//! one whose memory cannot be accessed blocks it until the client is killed. So each delivery that
//! finds no idle worker starts another one, up to a limit. An owner may occupy at most as many
//! workers as are left for other owners; its further deliveries wait.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use binder_driver::Caller;
use headroom_linux::sched::leave_realtime;
use owners::client_files::{Charge, ClientFile, Closers};
use owners::{Quota, QuotaSize};
use rustix::event::EventfdFlags;
use rustix::thread::sched_getcpu;

use super::install::{Failure, Installation, ReadRoom, SocketKeeper, close_all, install};
use super::tracee::{CallStop, End, Lost, Tracee};
use crate::channel::Channel;
use crate::client_memory::MemoryWrite;
use crate::interrupt_timer::{InterruptTimer, PERIOD};
use crate::open::CallKey;
use crate::placement::OwnCpu;
use crate::sync::lock;

/// Workers, blocked ones included.
const WORKERS: QuotaSize = owners::bounds::FILE_INSTALLERS.slots();
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
/// A worker's timer ends after this time without a job: starting and stopping it for each delivery
/// costs two system calls.
const TIMER_LINGER: Duration = Duration::from_millis(20);
/// A delivery on the event loop's CPU that takes longer shares this CPU with other programs, and
/// the next [`OTHER_CPU_DELIVERIES`] are left to the scheduler.
const MAX_SHARED_CPU_TIME: Duration = Duration::from_millis(1);
const OTHER_CPU_DELIVERIES: u32 = 64;
/// How often a worker that waits for a completion checks whether the receiver was killed.
const EXIT_CHECK_PERIOD: Duration = Duration::from_millis(100);

/// Files to install in a thread, or descriptors to close in it, at the return from its ioctl.
pub(crate) struct Job {
    /// The read that waits for its outcome; `None`: it has none, nor a completion, as descriptors
    /// are only closed.
    pub(crate) delivery: Option<CallKey>,
    /// The thread.
    pub(crate) reader: Caller,
    pub(crate) call_stop: CallStop,
    /// Number of seccomp filters of the receiver that allow the calls which it makes for us.
    pub(crate) known_filters: u32,
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

/// A job in the queue.
struct QueuedJob {
    job: Job,
    completion: Receiver<Completion>,
    /// The CPU for the worker and the receiver; `None`: the one that the scheduler selects for the
    /// worker.
    cpu: Option<usize>,
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
    /// The returns of the completion could not be written; the thread is stopped until the next
    /// completion.
    Unwritten { reader: Caller, resume: Sender<Completion> },
}

/// How a stopped thread is resumed.
#[derive(Debug)]
pub(crate) struct Completion {
    /// Returns, and the argument of its ioctl.
    pub(crate) writes: Vec<MemoryWrite>,
    /// Result of its ioctl; `None`: it restarts the ioctl.
    pub(crate) result: Option<i32>,
    /// Descriptors to close before the thread is resumed.
    pub(crate) closes: Vec<u32>,
}

/// The event loop's handle to the workers.
pub(crate) struct FdInstaller {
    shared: Arc<WorkerPool>,
    completions: HashMap<CallKey, Sender<Completion>>,
    outcomes: Receiver<(CallKey, Outcome)>,
}

/// State shared by the workers.
struct WorkerPool {
    queue: Mutex<Queue>,
    /// Notified when a job was queued, the queue was closed, or a worker has exited.
    changed: Condvar,
    channel: Arc<Channel>,
    outcomes: Sender<(CallKey, Outcome)>,
    signal: OwnedFd,
    closers: Closers,
    /// Number of deliveries that are left to the scheduler.
    other_cpu_deliveries: AtomicU32,
}

struct Queue {
    jobs: VecDeque<QueuedJob>,
    workers: usize,
    idle: usize,
    /// Deliveries in progress, charged to the receivers.
    under_way: Quota,
    /// No more jobs will be submitted.
    closed: bool,
}

impl Default for Queue {
    fn default() -> Self {
        let (jobs, under_way) = (VecDeque::new(), Quota::new(WORKERS));
        Self { jobs, workers: 0, idle: 0, under_way, closed: false }
    }
}

impl Queue {
    /// Whether one more delivery may begin.
    fn may_begin(&self, charge: Charge) -> bool {
        self.under_way.check(charge.owner, charge.uid).is_ok()
    }

    /// Index of the first job that may begin.
    fn first(&self) -> Option<usize> {
        self.jobs.iter().position(|queued| self.may_begin(queued.job.charge))
    }

    fn take(&mut self) -> Option<QueuedJob> {
        let queued = self.jobs.remove(self.first()?)?;
        let Charge { owner, uid } = queued.job.charge;
        self.under_way.insert(owner, uid);
        Some(queued)
    }

    fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.under_way.taken() == 0
    }

    fn done(&mut self, charge: Charge) {
        self.under_way.give_back(charge.owner, charge.uid);
    }

    /// Whether a job may begin and no worker is idle for it.
    fn wants_worker(&self) -> bool {
        self.idle == 0 && self.workers < WORKERS.slots && self.first().is_some()
    }
}

impl FdInstaller {
    pub(crate) fn start(device: Arc<Channel>, closers: Closers) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let signal = rustix::event::eventfd(0, flags)?;
        let (sender, outcomes) = channel();
        let shared = WorkerPool {
            queue: Mutex::default(),
            changed: Condvar::new(),
            channel: device,
            outcomes: sender,
            signal,
            closers,
            other_cpu_deliveries: AtomicU32::new(0),
        };
        Ok(Self { shared: Arc::new(shared), completions: HashMap::new(), outcomes })
    }

    /// Queues a job. False: there is no worker, and none can be started.
    pub(crate) fn submit(&mut self, job: Job) -> bool {
        let (sender, completion) = channel();
        let delivery = job.delivery;
        let mut queue = lock(&self.shared.queue);
        let cpu = if queue.is_empty() { self.shared.event_loop_cpu() } else { None };
        queue.jobs.push_back(QueuedJob { job, completion, cpu });
        let may_begin = |queued: &&QueuedJob| queue.may_begin(queued.job.charge);
        let runnable = queue.jobs.iter().filter(may_begin).count();
        if runnable > queue.idle && queue.workers < WORKERS.slots {
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
    pub(crate) fn withdraw(&mut self, delivery: CallKey) -> bool {
        let mut queue = lock(&self.shared.queue);
        let at = queue.jobs.iter().position(|queued| queued.job.delivery == Some(delivery));
        let blocked = at.filter(|&at| !queue.may_begin(queue.jobs[at].job.charge));
        let withdrawn = blocked.and_then(|at| queue.jobs.remove(at));
        drop(queue);
        let Some(withdrawn) = withdrawn else { return false };
        self.completions.remove(&delivery);
        // The driver still holds the files: nothing is closed here.
        drop(withdrawn);
        true
    }

    /// Whether a read waits for its files.
    pub(crate) fn has_readers(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Whether no job is queued or being executed.
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.shared.queue).is_empty()
    }

    pub(crate) fn complete(&mut self, delivery: CallKey, completion: Completion) {
        if let Some(sender) = self.completions.remove(&delivery) {
            let _ = sender.send(completion);
        }
    }

    /// Signals outcomes to an edge-triggered epoll; it is never read.
    pub(crate) fn signal(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }

    /// The next outcome, with the id of its delivery.
    pub(crate) fn outcome(&mut self) -> Option<(CallKey, Outcome)> {
        let (delivery, outcome) = self.outcomes.try_recv().ok()?;
        if matches!(outcome, Outcome::Unanswered(_) | Outcome::Lost) {
            self.completions.remove(&delivery);
        }
        Some((delivery, outcome))
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

impl WorkerPool {
    /// The CPU of the event loop, whose thread this is: there neither the worker nor the receiver
    /// has to wake another CPU. `None`: other programs use it.
    fn event_loop_cpu(&self) -> Option<usize> {
        let left = |left: u32| left.checked_sub(1);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        let is_shared = self.other_cpu_deliveries.fetch_update(set, get, left).is_ok();
        (!is_shared).then(sched_getcpu)
    }
}

fn start_worker(shared: &Arc<WorkerPool>, queue: &mut Queue) {
    let worker = Worker { shared: Arc::clone(shared) };
    let thread = std::thread::Builder::new().name("fd-installer".into()).stack_size(STACK);
    match thread.spawn(move || worker.run()) {
        Ok(_) => queue.workers += 1,
        Err(error) => tracing::debug!("no further thread that installs descriptors: {error}"),
    }
}

/// A worker's next step.
enum Next {
    Job(Box<QueuedJob>),
    TimedOut,
    Closed,
}

struct Worker {
    shared: Arc<WorkerPool>,
}

/// What belongs to the thread of a worker.
struct WorkerThread {
    cpu: OwnCpu,
    timer: io::Result<InterruptTimer>,
    is_timer_armed: bool,
}

impl WorkerThread {
    fn new() -> Self {
        let (cpu, timer) = (OwnCpu::of_this_thread(), InterruptTimer::new());
        Self { cpu, timer, is_timer_armed: false }
    }

    fn arm_timer(&mut self) -> io::Result<()> {
        match &self.timer {
            Ok(timer) if !self.is_timer_armed => timer.set_interval(PERIOD),
            Ok(_) => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("no timer: {error}"))),
        }
        self.is_timer_armed = true;
        Ok(())
    }

    fn disarm_timer(&mut self) {
        if let Ok(timer) = &self.timer {
            timer.set_interval(Duration::ZERO);
        }
        self.is_timer_armed = false;
    }
}

impl Worker {
    fn run(&self) {
        leave_realtime(NICE);
        self.run_jobs(&mut WorkerThread::new());
        let mut queue = lock(&self.shared.queue);
        queue.workers -= 1;
        self.shared.changed.notify_all();
    }

    fn run_jobs(&self, thread: &mut WorkerThread) {
        let mut stuck: Vec<Tracee> = Vec::new();
        loop {
            let next = self.next(if !stuck.is_empty() {
                STUCK_CHECK_PERIOD
            } else if thread.is_timer_armed {
                TIMER_LINGER
            } else {
                IDLE_TIMEOUT
            });
            stuck = stuck.into_iter().filter_map(Tracee::let_go).collect();
            match next {
                Next::Job(queued) => {
                    let charge = queued.job.charge;
                    stuck.extend(self.run_job(*queued, thread));
                    lock(&self.shared.queue).done(charge);
                }
                Next::TimedOut if thread.is_timer_armed => thread.disarm_timer(),
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
            Some(queued) => {
                // A later job may be able to begin, too.
                if queue.wants_worker() {
                    start_worker(&self.shared, &mut queue);
                }
                Next::Job(Box::new(queued))
            }
            None if queue.closed => Next::Closed,
            None => Next::TimedOut,
        }
    }

    /// Executes a job on its CPU; returns the thread if it is stuck and has to be detached later.
    fn run_job(&self, queued: QueuedJob, thread: &mut WorkerThread) -> Option<Tracee> {
        let QueuedJob { job, completion, cpu } = queued;
        thread.cpu.bind(cpu);
        let start = Instant::now();
        let stuck = self.deliver(job, &completion, thread.arm_timer());
        match cpu {
            Some(_) if start.elapsed() <= MAX_SHARED_CPU_TIME => {}
            Some(_) => {
                let others = &self.shared.other_cpu_deliveries;
                others.store(OTHER_CPU_DELIVERIES, Ordering::Relaxed);
                thread.cpu.release();
            }
            None => thread.cpu.release(),
        }
        stuck
    }

    fn deliver(
        &self,
        mut job: Job,
        completion: &Receiver<Completion>,
        timer: io::Result<()>,
    ) -> Option<Tracee> {
        let files = std::mem::take(&mut job.files);
        let served = match timer
            .and_then(|()| Tracee::seize(job.reader.tid, job.call_stop, job.known_filters))
        {
            Ok(tracee) => {
                self.send_reply(&job);
                tracee.stopped().and_then(|tracee| self.act(tracee, &job, &files, completion))
            }
            Err(error) => {
                if job.delivery.is_none() {
                    self.send_reply(&job);
                    tracing::debug!("thread {}: cannot close for it: {error}", job.reader.tid);
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
                tracing::debug!("thread {} cannot be used: {error}", job.reader.tid);
                None
            }
            Lost::Stuck(tracee) => {
                tracing::debug!("thread {} does not move: dying, or frozen", job.reader.tid);
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
            tracing::warn!(
                "thread {}: the kernel does not take the answer: {error}",
                job.reader.tid
            );
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
        let (fds, outcome, _socket) = match install(&mut tracee, files, job.room, &keeper) {
            Ok(Installation { fds, socket }) => {
                (fds.clone(), Outcome::Installed(fds), Some(socket))
            }
            Err(Failure::Refused(error)) => (Vec::new(), Outcome::Stopped(error), None),
            Err(Failure::Lost(lost)) => return Err(lost),
        };
        self.report(job, outcome);
        let Some(mut completion) = await_completion(&mut tracee, completion)? else {
            return tracee.finish(End::Unchanged);
        };
        if !completion.write_to(&tracee) {
            let (resume, next) = channel();
            self.report(job, Outcome::Unwritten { reader: job.reader, resume });
            let Some(next) = await_completion(&mut tracee, &next)? else {
                return tracee.finish(End::Unchanged);
            };
            completion = next;
            // Closed once: another thread may use the number of a closed one.
            completion.closes.retain(|fd| !fds.contains(fd));
            close_all(&mut tracee, &fds)?;
        }
        close_all(&mut tracee, &completion.closes)?;
        tracee.finish(completion.result.map_or(End::Again, |result| End::Return(result.into())))
    }
}

impl Completion {
    /// False: the memory cannot be written.
    fn write_to(&self, tracee: &Tracee) -> bool {
        tracee.memory().write_all(&self.writes).is_ok()
    }
}

/// Waits for the result of the stopped thread's read. `None`: the event loop has ended.
fn await_completion(
    tracee: &mut Tracee,
    completion: &Receiver<Completion>,
) -> Result<Option<Completion>, Lost> {
    loop {
        match completion.recv_timeout(EXIT_CHECK_PERIOD) {
            Ok(completion) => return Ok(Some(completion)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if tracee.has_exited() => return Err(Lost::Gone),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use binder_driver::ProcessId;
    use binder_driver::slab::Key;
    use owners::{Owner, Uid};

    use super::*;

    fn job(number: u32) -> QueuedJob {
        let (reply, files, closes) = (Vec::new(), Vec::new(), Vec::new());
        let uid = Uid(number);
        let charge = Charge { owner: Owner::User(uid), uid };
        let (call_stop, room) = (CallStop::Step, ReadRoom::default());
        let process = ProcessId::from_number(1);
        let reader = Caller { process, tid: 1, euid: uid };
        let job = Job {
            delivery: None,
            reader,
            call_stop,
            known_filters: 0,
            charge,
            reply,
            room,
            files,
            closes,
        };
        QueuedJob { job, completion: channel().1, cpu: None }
    }

    /// The uids of the jobs that may begin, in their order.
    fn begin_all(queue: &mut Queue) -> Vec<u32> {
        std::iter::from_fn(|| queue.take().map(|queued| queued.job.charge.uid.0)).collect()
    }

    #[test]
    fn an_owner_whose_receivers_block_leaves_workers_to_others() {
        let mut queue = Queue::default();
        queue.jobs.extend((0..100).map(|_| job(1)));
        assert_eq!(begin_all(&mut queue), [1; WORKERS.of_an_owner]);
        queue.jobs.extend([job(2), job(3)]);
        assert_eq!(begin_all(&mut queue), [2, 3], "jobs behind blocked ones begin");
        queue.jobs.extend((0..100).map(|_| job(4)));
        assert!(begin_all(&mut queue).len() < WORKERS.slots - WORKERS.of_an_owner - 2);
        queue.jobs.push_back(job(5));
        assert_eq!(begin_all(&mut queue), [5], "two such owners leave some, too");
    }

    #[test]
    fn a_waiting_job_begins_when_another_one_ends() {
        let mut queue = Queue::default();
        queue.jobs.extend((0..WORKERS.slots).map(|_| job(1)));
        begin_all(&mut queue);
        assert!(!queue.jobs.is_empty() && queue.first().is_none());
        let charge = job(1).job.charge;
        queue.done(charge);
        assert_eq!(begin_all(&mut queue), [1]);
        (0..WORKERS.of_an_owner).for_each(|_| queue.done(charge));
        assert_eq!(queue.under_way.taken(), 0);
    }
}
