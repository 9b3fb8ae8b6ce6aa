//! Reads a process or a slice within a bounded time.
//!
//! Reading `smaps_rollup` waits for the process's mmap lock, reading `memory.stat` for the
//! statistics of all cgroups below. A read cannot be interrupted, so a reader thread does it, which
//! is abandoned after a timeout and exits when the read has ended.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use headroom_linux::clock;
use memory_ledger::Uid;
use memory_watch::cgroups::Cgroups;
use memory_watch::process::{FileId, Proc, SmapsRollup};
use rustix::time::ClockId;

use super::slice::{SliceQuery, slice_bytes};

/// Interval after which a reader that sleeps, as on a lock, is abandoned.
const LOCK_PATIENCE: Duration = Duration::from_millis(50);
/// Timeout for a process: on a busy machine its reader waits for a CPU as well.
const PATIENCE: Duration = Duration::from_secs(2);
/// Timeout for a slice: users choose the size of their slices, and other accounts wait.
const SLICE_PATIENCE: Duration = Duration::from_millis(200);
/// Maximum number of abandoned readers; above it nothing is read until one has exited.
const MOST_LEFT: usize = 8;

/// A read request.
pub(super) enum Question {
    /// The proportional set size of a process.
    Rollup(u32),
    /// The mapped size of these files in a process; ascending.
    Mapped(u32, Arc<[FileId]>),
    /// The charge of a user's slice.
    Slice(Arc<Cgroups>, SliceQuery),
}

/// The object that is read. While an abandoned reader is busy with it, no other reader reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Process(u32),
    Slice(Uid),
}

impl Question {
    fn subject(&self) -> Subject {
        match self {
            Self::Rollup(pid) | Self::Mapped(pid, _) => Subject::Process(*pid),
            Self::Slice(_, query) => Subject::Slice(query.uid),
        }
    }

    fn answer(self, proc: &mut Proc) -> Option<Answer> {
        match self {
            Self::Rollup(pid) => proc.smaps_rollup(pid).ok().map(Answer::Rollup),
            Self::Mapped(pid, files) => {
                let wanted = |file| files.binary_search(&file).is_ok();
                proc.mapped_of(pid, &wanted).ok().map(Answer::Mapped)
            }
            Self::Slice(cgroups, query) => Some(Answer::Slice(slice_bytes(&cgroups, proc, &query))),
        }
    }
}

impl Subject {
    /// The timeout for a reader that is not blocked on a lock.
    fn patience(self) -> Duration {
        match self {
            Self::Process(_) => PATIENCE,
            Self::Slice(_) => SLICE_PATIENCE,
        }
    }
}

pub(super) enum Answer {
    Rollup(SmapsRollup),
    Mapped(BTreeMap<FileId, u64>),
    /// See [`slice_bytes`].
    Slice(Option<u64>),
}

struct Answered {
    answer: Option<Answer>,
    cpu_ns: u64,
}

struct Reader {
    questions: SyncSender<Question>,
    answers: Receiver<Answered>,
    ended: Arc<AtomicBool>,
    tid: Arc<AtomicU32>,
}

impl Reader {
    fn wait(&self, patience: Duration) -> Option<Answered> {
        let begun = Instant::now();
        loop {
            match self.answers.recv_timeout(LOCK_PATIENCE) {
                Ok(answered) => return Some(answered),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {
                    if begun.elapsed() >= patience || !self.is_running() {
                        return None;
                    }
                }
            }
        }
    }

    /// Whether the reader is running or runnable, and not sleeping on a lock.
    fn is_running(&self) -> bool {
        let path = format!("/proc/self/task/{}/stat", self.tid.load(Ordering::Relaxed));
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
    }
}

/// Reads processes and slices, each with a timeout.
#[derive(Default)]
pub(super) struct BoundedReader {
    reader: Option<Reader>,
    /// Abandoned readers.
    left: Vec<(Subject, Arc<AtomicBool>)>,
    /// CPU time of all reads since the last [`take_cpu_ns`](Self::take_cpu_ns), nanoseconds.
    cpu_ns: u64,
}

impl BoundedReader {
    /// CPU time of the reads since the last call, nanoseconds.
    pub(super) fn take_cpu_ns(&mut self) -> u64 {
        std::mem::take(&mut self.cpu_ns)
    }

    /// CPU time of the reads since the last [`take_cpu_ns`](Self::take_cpu_ns), nanoseconds.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.cpu_ns
    }

    /// Reads an object. `None`: the process is gone, or the read has timed out.
    pub(super) fn read(&mut self, question: Question) -> Option<Answer> {
        let subject = question.subject();
        self.left.retain(|(_, ended)| !ended.load(Ordering::Acquire));
        if self.left.len() >= MOST_LEFT || self.left.iter().any(|(of, _)| *of == subject) {
            return None;
        }
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => start().ok()?,
        };
        reader.questions.send(question).ok()?;
        match reader.wait(subject.patience()) {
            Some(Answered { answer, cpu_ns }) => {
                self.cpu_ns += cpu_ns;
                self.reader = Some(reader);
                answer
            }
            None => {
                tracing::debug!(?subject, "does not answer in time");
                // The reader thread exits after its read, whose result is dropped.
                self.left.push((subject, reader.ended));
                None
            }
        }
    }
}

fn start() -> io::Result<Reader> {
    let (questions, queue) = sync_channel::<Question>(1);
    let (give, answers) = sync_channel(1);
    let ended = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&ended);
    let tid = Arc::new(AtomicU32::new(0));
    let own_tid = Arc::clone(&tid);
    let work = move || {
        let id = rustix::thread::gettid().as_raw_nonzero().get();
        own_tid.store(id.unsigned_abs(), Ordering::Relaxed);
        let mut proc = Proc::default();
        let mut spent_ns = thread_cpu_ns();
        while let Ok(question) = queue.recv() {
            let answer = question.answer(&mut proc);
            let now_ns = thread_cpu_ns();
            let cpu_ns = now_ns - spent_ns;
            spent_ns = now_ns;
            if give.send(Answered { answer, cpu_ns }).is_err() {
                break;
            }
        }
        done.store(true, Ordering::Release);
    };
    std::thread::Builder::new().name("usage-reader".into()).spawn(work)?;
    Ok(Reader { questions, answers, ended, tid })
}

/// CPU time of this thread, nanoseconds.
pub(super) fn thread_cpu_ns() -> u64 {
    clock::now_ns(ClockId::ThreadCPUTime)
}
