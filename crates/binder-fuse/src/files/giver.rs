//! The threads that give files to clients' threads.
//!
//! The event loop never waits for them. A delivery goes: the event loop hands over a [`Job`] with
//! the answer to the reader's ioctl; a worker traces the reader, answers the ioctl, and installs
//! the files while the reader is stopped; the event loop hears of the [`Outcome`], writes what the
//! reader is to see, and says by its [`Verdict`] how the reader goes on.
//!
//! A client that does not react costs a worker [`tracee`](super::tracee)'s patience, and one whose
//! memory does not answer keeps it until it dies. So there is another worker for each delivery that
//! finds none idle, up to a limit; and a user has at most as many at work as are left for others,
//! whatever its receivers do: further deliveries to it wait.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use owners::Owner;
use rustix::event::EventfdFlags;

use super::alarm::Alarm;
use super::closing::{Charge, ClientFile, Closers};
use super::install::{Failure, ReadRoom, SocketKeeper, close_all, install};
use super::placement;
use super::tracee::{End, Lost, Tracee};
use crate::channel::Channel;
use crate::sync::lock;

/// Workers at a time, those that are held up included.
const MAX_WORKERS: usize = 32;
/// Bytes of a worker's stack, which is all resident once the daemon locks its memory.
const STACK: usize = 64 << 10;
/// A worker without work ends after this time.
const IDLE: Duration = Duration::from_secs(10);
/// How long the end waits for workers that are still at work.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// How often threads that were stuck are looked at, while there are any.
const LOOK_AT_STUCK: Duration = Duration::from_millis(20);
/// The event loop answers within one of its turns; longer than this it is gone.
const VERDICT_PATIENCE: Duration = Duration::from_secs(10);

/// A thread that is to be given files, or made to close some, on its way out of its ioctl.
pub(crate) struct Job {
    /// Names it in its outcome and verdict; `None`: it has neither, there is only something to
    /// close.
    pub(crate) gift: Option<u64>,
    pub(crate) tid: u32,
    /// The receiver's.
    pub(crate) charge: Charge,
    /// The reply to its ioctl.
    pub(crate) reply: Vec<u8>,
    /// The unused part of its read buffer.
    pub(crate) room: ReadRoom,
    /// To give.
    pub(crate) files: Vec<Arc<ClientFile>>,
    /// To close.
    pub(crate) closes: Vec<u32>,
}

/// What came of giving.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It has the files, and waits for the verdict.
    Given(Vec<u32>),
    /// It could not be given them, and waits for the verdict.
    Stopped(io::Error),
    /// It cannot be traced; its ioctl is not answered yet.
    Unanswered(io::Error),
    /// It is gone, or goes on by itself: its ioctl is answered.
    Lost,
}

/// How the thread goes on.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) gift: u64,
    /// What its ioctl returns; `None`: it makes the ioctl again.
    pub(crate) result: Option<i32>,
    /// To close before that.
    pub(crate) closes: Vec<u32>,
}

/// The workers, as the event loop knows them.
pub(crate) struct Giver {
    shared: Arc<Shared>,
    /// Where workers hear of their gifts.
    verdicts: HashMap<u64, Sender<Verdict>>,
    outcomes: Receiver<(u64, Outcome)>,
}

/// What the workers have in common.
struct Shared {
    queue: Mutex<Queue>,
    /// There is a job, or no more to come, or a worker less.
    changed: Condvar,
    channel: Arc<Channel>,
    say: Sender<(u64, Outcome)>,
    signal: OwnedFd,
    closers: Closers,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Job, Receiver<Verdict>)>,
    workers: usize,
    idle: usize,
    /// Deliveries that workers are at, by the receiver's owner.
    under_way: HashMap<Owner, usize>,
    /// Nobody hands over any more.
    closed: bool,
}

impl Queue {
    /// One more delivery to this user may begin: half of what is left is never for him who has so
    /// much already.
    fn may_begin(&self, owner: Owner) -> bool {
        let all: usize = self.under_way.values().sum();
        let his = self.under_way.get(&owner).copied().unwrap_or(0);
        his < MAX_WORKERS - all.min(MAX_WORKERS)
    }

    /// Where the first job is that may begin.
    fn first(&self) -> Option<usize> {
        self.jobs.iter().position(|(job, _)| self.may_begin(job.charge.owner))
    }

    fn take(&mut self) -> Option<(Job, Receiver<Verdict>)> {
        let (job, hear) = self.jobs.remove(self.first()?)?;
        *self.under_way.entry(job.charge.owner).or_default() += 1;
        Some((job, hear))
    }

    fn done(&mut self, owner: Owner) {
        if let Some(count) = self.under_way.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&owner);
            }
        }
    }

    /// There is a job that may begin, and nobody who waits for one.
    fn wants_worker(&self) -> bool {
        self.idle == 0 && self.workers < MAX_WORKERS && self.first().is_some()
    }
}

impl Giver {
    pub(crate) fn start(device: Arc<Channel>, closers: Closers) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let signal = rustix::event::eventfd(0, flags)?;
        let (say, outcomes) = channel();
        let (queue, changed) = Default::default();
        let shared = Shared { queue, changed, channel: device, say, signal, closers };
        Ok(Self { shared: Arc::new(shared), verdicts: HashMap::new(), outcomes })
    }

    /// Hands a delivery over. False: there is no worker, and none to be had.
    pub(crate) fn hand_over(&mut self, job: Job) -> bool {
        let (tell, hear) = channel();
        let gift = job.gift;
        let mut queue = lock(&self.shared.queue);
        queue.jobs.push_back((job, hear));
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
        if let Some(gift) = gift {
            self.verdicts.insert(gift, tell);
        }
        self.shared.changed.notify_one();
        true
    }

    /// Takes back a delivery that waits for others to its user. False: a worker has it, or is about
    /// to take it.
    pub(crate) fn withdraw(&mut self, gift: u64) -> bool {
        let mut queue = lock(&self.shared.queue);
        let at = queue.jobs.iter().position(|(job, _)| job.gift == Some(gift));
        let blocked = at.filter(|&at| !queue.may_begin(queue.jobs[at].0.charge.owner));
        let withdrawn = blocked.and_then(|at| queue.jobs.remove(at));
        drop(queue);
        let Some((job, _)) = withdrawn else { return false };
        self.verdicts.remove(&gift);
        // The driver has the files still: nothing is closed here.
        drop(job);
        true
    }

    pub(crate) fn decide(&mut self, verdict: Verdict) {
        if let Some(tell) = self.verdicts.remove(&verdict.gift) {
            let _ = tell.send(verdict);
        }
    }

    /// Readable when there is an outcome.
    pub(crate) fn signal(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }

    /// The next outcome, and of which gift.
    pub(crate) fn outcome(&mut self) -> Option<(u64, Outcome)> {
        let (gift, outcome) = self.outcomes.try_recv().ok()?;
        if matches!(outcome, Outcome::Unanswered(_) | Outcome::Lost) {
            self.verdicts.remove(&gift);
        }
        Some((gift, outcome))
    }

    /// Before the outcomes are taken: what comes afterwards signals anew.
    pub(crate) fn clear_signal(&self) {
        let _ = rustix::io::read(&self.shared.signal, &mut [0; 8]);
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        self.verdicts.clear();
        let mut queue = lock(&self.shared.queue);
        queue.closed = true;
        self.shared.changed.notify_all();
        // One that a client holds up is not waited for.
        let at_work = |queue: &mut Queue| queue.workers > 0;
        drop(self.shared.changed.wait_timeout_while(queue, END_PATIENCE, at_work));
    }
}

fn start_worker(shared: &Arc<Shared>, queue: &mut Queue) {
    let worker = Worker { shared: Arc::clone(shared) };
    let thread = std::thread::Builder::new().name("file-giver".into()).stack_size(STACK);
    match thread.spawn(move || worker.work()) {
        Ok(_) => queue.workers += 1,
        Err(error) => tracing::debug!("no further thread that gives files: {error}"),
    }
}

/// What a worker does next.
enum Next {
    Job(Box<Job>, Receiver<Verdict>),
    /// There was none for a while.
    Nothing,
    /// There will be none any more.
    End,
}

struct Worker {
    shared: Arc<Shared>,
}

impl Worker {
    fn work(&self) {
        self.work_with(&Alarm::new());
        let mut queue = lock(&self.shared.queue);
        queue.workers -= 1;
        self.shared.changed.notify_all();
    }

    fn work_with(&self, alarm: &io::Result<Alarm>) {
        let mut stuck: Vec<Tracee> = Vec::new();
        loop {
            let next = self.next(if stuck.is_empty() { IDLE } else { LOOK_AT_STUCK });
            stuck = stuck.into_iter().filter_map(Tracee::let_go).collect();
            match next {
                Next::Job(job, hear) => {
                    let owner = job.charge.owner;
                    stuck.extend(self.serve(*job, &hear, alarm));
                    lock(&self.shared.queue).done(owner);
                }
                Next::Nothing if !stuck.is_empty() => {}
                Next::Nothing | Next::End => return,
            }
        }
    }

    /// The next job, waited for.
    fn next(&self, patience: Duration) -> Next {
        let mut queue = lock(&self.shared.queue);
        queue.idle += 1;
        let nothing = |queue: &mut Queue| queue.first().is_none() && !queue.closed;
        let waited = self.shared.changed.wait_timeout_while(queue, patience, nothing);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
        match queue.take() {
            Some((job, hear)) => {
                // Those behind it may have waited for the same.
                if queue.wants_worker() {
                    start_worker(&self.shared, &mut queue);
                }
                Next::Job(Box::new(job), hear)
            }
            None if queue.closed => Next::End,
            None => Next::Nothing,
        }
    }

    /// Serves a delivery; a thread that is stuck and has to be let go later.
    fn serve(
        &self,
        mut job: Job,
        hear: &Receiver<Verdict>,
        alarm: &io::Result<Alarm>,
    ) -> Option<Tracee> {
        let files = std::mem::take(&mut job.files);
        let _here = placement::stay();
        let seized = match alarm {
            Ok(alarm) => Tracee::seize(job.tid).map(|tracee| (tracee, alarm.ringing())),
            Err(error) => Err(io::Error::new(error.kind(), format!("no timer: {error}"))),
        };
        let served = match seized {
            Ok((tracee, _ringing)) => {
                self.answer(&job);
                tracee.stopped().and_then(|tracee| self.act(tracee, &job, &files, hear))
            }
            Err(error) => {
                if job.gift.is_none() {
                    self.answer(&job);
                    tracing::debug!("thread {}: cannot close for it: {error}", job.tid);
                }
                self.tell(&job, Outcome::Unanswered(error));
                Ok(())
            }
        };
        drop(files);
        let lost = served.err()?;
        self.tell(&job, Outcome::Lost);
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

    fn tell(&self, job: &Job, outcome: Outcome) {
        if let Some(gift) = job.gift {
            let _ = self.shared.say.send((gift, outcome));
            let _ = rustix::io::write(&self.shared.signal, &1_u64.to_ne_bytes());
        }
    }

    fn answer(&self, job: &Job) {
        if let Err(error) = self.shared.channel.send(&job.reply) {
            tracing::warn!("thread {}: the kernel does not take the answer: {error}", job.tid);
        }
    }

    /// Does with a stopped thread what the job says, and lets it go.
    fn act(
        &self,
        mut tracee: Tracee,
        job: &Job,
        files: &[Arc<ClientFile>],
        hear: &Receiver<Verdict>,
    ) -> Result<(), Lost> {
        if job.gift.is_none() {
            close_all(&mut tracee, &job.closes)?;
            return tracee.finish(End::Unchanged);
        }
        let keeper = SocketKeeper { closers: self.shared.closers.clone(), charge: job.charge };
        let outcome = match install(&mut tracee, files, job.room, &keeper) {
            Ok(fds) => Outcome::Given(fds),
            Err(Failure::Refused(error)) => Outcome::Stopped(error),
            Err(Failure::Lost(lost)) => return Err(lost),
        };
        self.tell(job, outcome);
        let Ok(verdict) = hear.recv_timeout(VERDICT_PATIENCE) else {
            return tracee.finish(End::Unchanged);
        };
        close_all(&mut tracee, &verdict.closes)?;
        tracee.finish(verdict.result.map_or(End::Again, |result| End::Return(result.into())))
    }
}

#[cfg(test)]
mod tests {
    use owners::Uid;

    use super::*;

    fn job(uid: u32) -> (Job, Receiver<Verdict>) {
        let (reply, files, closes) = (Vec::new(), Vec::new(), Vec::new());
        let charge = Charge { owner: Owner::User(Uid(uid)), uid: Uid(uid) };
        let job =
            Job { gift: None, tid: 1, charge, reply, room: ReadRoom::default(), files, closes };
        (job, channel().1)
    }

    /// The users of the jobs that may begin, in their order.
    fn begin_all(queue: &mut Queue) -> Vec<u32> {
        std::iter::from_fn(|| queue.take().map(|(job, _)| job.charge.uid.0)).collect()
    }

    #[test]
    fn a_user_whose_receivers_hold_everything_up_leaves_workers_to_others() {
        let mut queue = Queue::default();
        queue.jobs.extend((0..100).map(|_| job(1)));
        assert_eq!(begin_all(&mut queue), [1; MAX_WORKERS / 2]);
        queue.jobs.extend([job(2), job(3)]);
        assert_eq!(begin_all(&mut queue), [2, 3], "those behind the held up are not held up");
        queue.jobs.extend((0..100).map(|_| job(4)));
        assert!(begin_all(&mut queue).len() < MAX_WORKERS - MAX_WORKERS / 2 - 2);
        queue.jobs.push_back(job(5));
        assert_eq!(begin_all(&mut queue), [5], "two such users leave some, too");
    }

    #[test]
    fn what_waited_for_its_turn_begins_when_another_one_is_over() {
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
