//! Reads a process or a slice within a bounded time.
//!
//! Reading `smaps_rollup`, `maps` or `fd/N` waits for the process's mmap lock or for its `execve`,
//! reading `memory.stat` for the statistics of all cgroups below. A read cannot be interrupted, so
//! a reader thread does it, which is abandoned after a timeout and exits when the read has ended.
//! An owner whose processes block all readers that it may block only makes its own processes
//! unread.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use headroom_linux::clock;
use memory_ledger::{ProcessId, Uid};
use memory_watch::cgroups::Cgroups;
use memory_watch::process::{Details, FileId, FileRange, HeldFile, Proc, SmapsRollup};
use owners::{Owner, Quota, bounds};
use rustix::time::ClockId;

use super::program::program_of;
use super::slice::{SliceCharge, SliceQuery, slice_charge};

/// Interval after which a reader that sleeps, as on a lock, is abandoned.
const LOCK_PATIENCE: Duration = Duration::from_millis(50);
/// Timeout for a process: on a busy machine its reader waits for a CPU as well.
const PATIENCE: Duration = Duration::from_secs(2);
/// Timeout for a slice: users choose the size of their slices, and other accounts wait.
const SLICE_PATIENCE: Duration = Duration::from_millis(200);

/// Maximum number of questions that a reader is sent at a time.
pub(super) const BATCH: usize = 16;

/// A read request.
#[derive(Clone)]
pub(crate) enum Question {
    /// The proportional set size of a process.
    Rollup(u32),
    /// The mapped ranges of files that are not on a disk in a process.
    Ranges(u32),
    /// The mapped size of these files in a process; ascending.
    Mapped(u32, Arc<[FileId]>),
    /// The locked size of each file that a process maps.
    Locked(u32),
    /// The files that a process holds; checks at most this number of descriptors and mapped files.
    HeldFiles(u32, usize),
    /// The program that a process runs.
    Program(u32),
    /// What tells a process from others with its name.
    Details(ProcessId),
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
            Self::Rollup(pid)
            | Self::Ranges(pid)
            | Self::Mapped(pid, _)
            | Self::Locked(pid)
            | Self::HeldFiles(pid, _)
            | Self::Program(pid) => Subject::Process(*pid),
            Self::Details(id) => Subject::Process(id.pid),
            Self::Slice(_, query) => Subject::Slice(query.uid),
        }
    }

    fn answer(self, proc: &mut Proc) -> Option<Answer> {
        match self {
            Self::Rollup(pid) => match proc.smaps_rollup(pid) {
                Ok(rollup) => Some(Answer::Rollup(rollup)),
                Err(_) => proc.has_exited(pid).then_some(Answer::Exited),
            },
            Self::Ranges(pid) => match proc.file_ranges(pid) {
                Ok(ranges) if !ranges.is_empty() => Some(Answer::Ranges(ranges)),
                // A process without an address space has an empty list.
                _ => proc.has_exited(pid).then_some(Answer::Exited),
            },
            Self::Mapped(pid, files) => {
                let wanted = |file| files.binary_search(&file).is_ok();
                proc.mapped_of(pid, &wanted).ok().map(Answer::Mapped)
            }
            Self::Locked(pid) => proc.locked_files(pid).ok().map(Answer::Mapped),
            Self::HeldFiles(pid, most) => {
                let (files, checked) = proc.held_files(pid, most).ok()?;
                Some(Answer::HeldFiles { files, checked })
            }
            Self::Program(pid) => Some(Answer::Program(program_of(proc, pid))),
            Self::Details(id) => proc.details(id).ok()?.map(Answer::Details),
            Self::Slice(cgroups, query) => {
                Some(Answer::Slice(slice_charge(&cgroups, proc, &query)))
            }
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

pub(crate) enum Answer {
    Rollup(SmapsRollup),
    /// The process has exited.
    Exited,
    Ranges(Vec<FileRange>),
    Mapped(BTreeMap<FileId, u64>),
    HeldFiles {
        files: Vec<HeldFile>,
        /// Descriptors and mapped files that were checked.
        checked: usize,
    },
    /// See [`program_of`].
    Program(Option<String>),
    Details(Details),
    /// See [`slice_charge`].
    Slice(Option<SliceCharge>),
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
                        // It may have answered since, and sleep until the next question.
                        return self.answers.try_recv().ok();
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

/// A reader that was abandoned.
struct Abandoned {
    subject: Subject,
    /// Of the process or slice that blocks it.
    owner: Owner,
    ended: Arc<AtomicBool>,
}

/// Reads processes and slices, each with a timeout.
pub(crate) struct BoundedReader {
    reader: Option<Reader>,
    abandoned: Vec<Abandoned>,
    /// Abandoned readers of each owner.
    blocked: Quota,
    /// CPU time of all reads since the last [`take_cpu_ns`](Self::take_cpu_ns), nanoseconds.
    cpu_ns: u64,
}

impl Default for BoundedReader {
    fn default() -> Self {
        let blocked = Quota::new(bounds::USAGE_READERS.slots());
        Self { reader: None, abandoned: Vec::new(), blocked, cpu_ns: 0 }
    }
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

    /// Reads an object of this owner. `None`: it cannot be read, or the read has timed out.
    pub(crate) fn read(&mut self, owner: Owner, question: Question) -> Option<Answer> {
        self.read_all(&[(owner, question)]).pop().flatten()
    }

    /// What tells a process of this owner from others with its name.
    pub(crate) fn details(&mut self, owner: Owner, id: ProcessId) -> Option<Details> {
        match self.read(owner, Question::Details(id)) {
            Some(Answer::Details(details)) => Some(details),
            _ => None,
        }
    }

    /// Reads objects; the answers are those of [`read`](Self::read), in the same order. The reader
    /// does not wait for the caller between two of them: on a busy machine each switch between the
    /// threads takes milliseconds.
    pub(super) fn read_all(&mut self, questions: &[(Owner, Question)]) -> Vec<Option<Answer>> {
        let mut answers = Vec::with_capacity(questions.len());
        while let Some(question) = questions.get(answers.len()) {
            self.forget_ended();
            let readable = |(owner, question): &&(Owner, Question)| {
                let subject = question.subject();
                self.blocked.check(*owner, uid_of(*owner)).is_ok()
                    && self.abandoned.iter().all(|reader| reader.subject != subject)
            };
            if !readable(&question) {
                answers.push(None);
                continue;
            }
            let Some(reader) = self.reader.take().or_else(|| start().ok()) else {
                answers.push(None);
                continue;
            };
            let rest = &questions[answers.len()..];
            let batch: Vec<&(Owner, Question)> =
                rest.iter().take(BATCH).take_while(readable).collect();
            for (_, question) in &batch {
                // Fails if the reader has panicked; then no answer is received, either.
                let _ = reader.questions.send(question.clone());
            }
            self.receive(reader, &batch, &mut answers);
        }
        answers
    }

    /// Receives the answers to a batch of questions, up to the first that times out.
    fn receive(
        &mut self,
        reader: Reader,
        batch: &[&(Owner, Question)],
        answers: &mut Vec<Option<Answer>>,
    ) {
        for (owner, question) in batch {
            let subject = question.subject();
            let Some(Answered { answer, cpu_ns }) = reader.wait(subject.patience()) else {
                tracing::debug!(?subject, "does not answer in time");
                // The reader thread exits after its read, whose result is dropped.
                self.blocked.insert(*owner, uid_of(*owner));
                self.abandoned.push(Abandoned { subject, owner: *owner, ended: reader.ended });
                answers.push(None);
                return;
            };
            self.cpu_ns += cpu_ns;
            answers.push(answer);
        }
        self.reader = Some(reader);
    }

    fn forget_ended(&mut self) {
        let blocked = &mut self.blocked;
        self.abandoned.retain(|Abandoned { owner, ended, .. }| {
            let is_blocked = !ended.load(Ordering::Acquire);
            if !is_blocked {
                blocked.give_back(*owner, uid_of(*owner));
            }
            is_blocked
        });
    }
}

/// The quota is not divided among the uids of an owner: measurements are of accounts.
fn uid_of(owner: Owner) -> Uid {
    match owner {
        Owner::User(uid) => uid,
        Owner::Namespace(_) => Uid::NONE,
    }
}

fn start() -> io::Result<Reader> {
    let (questions, queue) = sync_channel::<Question>(BATCH);
    let (give, answers) = sync_channel(BATCH);
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

#[cfg(test)]
mod tests {
    use memory_ledger::Count;
    use rustix::fs::{CWD, Mode};

    use super::*;

    #[test]
    fn an_owner_blocks_its_part_of_the_readers_only() {
        let machine = tempfile::tempdir().unwrap();
        let cgroups = Arc::new(Cgroups::at(machine.path().to_owned()));
        let part = bounds::USAGE_READERS.slots().of_an_owner;
        let uids: Vec<Uid> = (0..2 * part as u32).map(Uid).collect();
        let statistics =
            |uid: &Uid| machine.path().join(format!("user.slice/user-{uid}.slice/memory.stat"));
        for uid in &uids {
            let file = statistics(uid);
            let folder = file.parent().unwrap();
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("cgroup.procs"), "").unwrap();
            rustix::fs::mkfifoat(CWD, &file, Mode::RWXU).unwrap();
        }
        let (hostile, other) = (Owner::User(Uid(1000)), Owner::User(Uid(1001)));
        let mut reader = BoundedReader::default();
        for uid in &uids {
            let (pids, count) = (Vec::new(), Count::default());
            let query = SliceQuery { uid: *uid, pids, count, tolerated_bytes: 0 };
            assert!(reader.read(hostile, Question::Slice(cgroups.clone(), query)).is_none());
        }
        assert_eq!(reader.blocked.held(hostile), part);
        assert!(reader.read(hostile, Question::Rollup(std::process::id())).is_none());
        let end = Instant::now() + Duration::from_secs(60);
        // On a busy machine a read may be late.
        while reader.read(other, Question::Rollup(std::process::id())).is_none() {
            assert!(Instant::now() < end, "another owner's process is not read");
        }
        for uid in &uids[..part] {
            drop(std::fs::OpenOptions::new().write(true).open(statistics(uid)).unwrap());
        }
        while reader.read(hostile, Question::Rollup(std::process::id())).is_none() {
            assert!(Instant::now() < end, "readers that have ended still count");
        }
    }
}
