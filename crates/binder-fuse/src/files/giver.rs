//! The thread that gives files to clients' threads, one delivery at a time.
//!
//! The event loop never waits for it. A delivery goes: the event loop hands over a [`Job`] with the answer to the
//! reader's ioctl; the thread traces the reader, answers the ioctl, and installs the files while the reader is
//! stopped; the event loop hears of the [`Outcome`], writes what the reader is to see, and says by its
//! [`Verdict`] how the reader goes on. A client that does not react costs it [`tracee`](super::tracee)'s patience.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;

use super::install::{Failure, close_all, install};
use super::store::Closer;
use super::tracee::{End, Lost, Tracee};
use crate::channel::Channel;

/// How often threads that were stuck are looked at, while there are any.
const LOOK_AT_STUCK: Duration = Duration::from_millis(20);
/// The event loop answers within one of its turns; longer than this it is gone.
const VERDICT_PATIENCE: Duration = Duration::from_secs(10);

/// A thread that is to be given files, or made to close some, on its way out of its ioctl.
pub(crate) struct Job {
    /// Names it in its outcome and verdict; `None`: it has neither, there is only something to close.
    pub(crate) gift: Option<u64>,
    pub(crate) tid: u32,
    /// The reply to its ioctl.
    pub(crate) reply: Vec<u8>,
    /// Memory of it that may be written: address and bytes.
    pub(crate) room: (u64, u64),
    /// To give.
    pub(crate) files: Vec<Arc<OwnedFd>>,
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

/// The thread, as the event loop knows it.
pub(crate) struct Giver {
    jobs: Option<Sender<Job>>,
    verdicts: Option<Sender<Verdict>>,
    outcomes: Receiver<(u64, Outcome)>,
    signal: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Giver {
    pub(crate) fn start(device: Arc<Channel>) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let signal = Arc::new(rustix::event::eventfd(0, flags)?);
        let (jobs, work) = channel();
        let (verdicts, hear) = channel();
        let (say, outcomes) = channel();
        let closer = Closer::start()?;
        let worker = Worker { channel: device, hear, say, signal: Arc::clone(&signal), closer };
        let thread = std::thread::Builder::new()
            .name("file-giver".into())
            .spawn(move || worker.work(&work))?;
        let (jobs, verdicts) = (Some(jobs), Some(verdicts));
        Ok(Self { jobs, verdicts, outcomes, signal, thread: Some(thread) })
    }

    /// Hands a delivery over. False: there is no thread any more.
    pub(crate) fn hand_over(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    pub(crate) fn decide(&self, verdict: Verdict) {
        if let Some(verdicts) = &self.verdicts {
            let _ = verdicts.send(verdict);
        }
    }

    /// Readable when there is an outcome.
    pub(crate) fn signal(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    /// The next outcome, and of which gift.
    pub(crate) fn outcome(&self) -> Option<(u64, Outcome)> {
        self.outcomes.try_recv().ok()
    }

    /// Before the outcomes are taken: what comes afterwards signals anew.
    pub(crate) fn clear_signal(&self) {
        let _ = rustix::io::read(&*self.signal, &mut [0; 8]);
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        self.jobs = None;
        self.verdicts = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    channel: Arc<Channel>,
    hear: Receiver<Verdict>,
    say: Sender<(u64, Outcome)>,
    signal: Arc<OwnedFd>,
    closer: Closer,
}

impl Worker {
    fn work(&self, jobs: &Receiver<Job>) {
        let mut stuck: Vec<Tracee> = Vec::new();
        loop {
            let job = if stuck.is_empty() {
                jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                jobs.recv_timeout(LOOK_AT_STUCK)
            };
            stuck = stuck.into_iter().filter_map(Tracee::let_go).collect();
            match job {
                Ok(job) => stuck.extend(self.serve(job)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Serves a delivery; a thread that is stuck and has to be let go later.
    fn serve(&self, mut job: Job) -> Option<Tracee> {
        let files = std::mem::take(&mut job.files);
        let served = match Tracee::seize(job.tid) {
            Ok(tracee) => {
                self.answer(&job);
                tracee.stopped().and_then(|tracee| self.act(tracee, &job, &files))
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
        // Whatever they are, closing them may take time.
        files.into_iter().for_each(|file| self.closer.close(file));
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
            let _ = self.say.send((gift, outcome));
            let _ = rustix::io::write(&*self.signal, &1_u64.to_ne_bytes());
        }
    }

    fn answer(&self, job: &Job) {
        if let Err(error) = self.channel.send(&job.reply) {
            tracing::warn!("thread {}: the kernel does not take the answer: {error}", job.tid);
        }
    }

    /// Does with a stopped thread what the job says, and lets it go.
    fn act(&self, mut tracee: Tracee, job: &Job, files: &[Arc<OwnedFd>]) -> Result<(), Lost> {
        let Some(gift) = job.gift else {
            close_all(&mut tracee, &job.closes)?;
            return tracee.finish(End::Unchanged);
        };
        let outcome = match install(&mut tracee, files, job.room, &self.closer) {
            Ok(fds) => Outcome::Given(fds),
            Err(Failure::Refused(error)) => Outcome::Stopped(error),
            Err(Failure::Lost(lost)) => return Err(lost),
        };
        self.tell(job, outcome);
        let Some(verdict) = self.verdict(gift) else {
            return tracee.finish(End::Unchanged);
        };
        close_all(&mut tracee, &verdict.closes)?;
        tracee.finish(verdict.result.map_or(End::Again, |result| End::Return(result.into())))
    }

    /// The verdict for this gift; earlier ones came too late.
    fn verdict(&self, gift: u64) -> Option<Verdict> {
        loop {
            let verdict = self.hear.recv_timeout(VERDICT_PATIENCE).ok()?;
            if verdict.gift == gift {
                return Some(verdict);
            }
        }
    }
}
