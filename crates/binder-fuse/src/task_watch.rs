//! Detects the exit of client threads, and of processes that have opened a device.
//!
//! libbinder announces the exit of a thread by `BINDER_THREAD_EXIT` with a null argument, which
//! FUSE fails with `EFAULT` without a request to us, and a thread that is killed announces nothing.
//! So each calling thread is watched by a thread pidfd (Linux 6.9); without one, its existence is
//! checked once a second.
//!
//! A process that inherited an open must not be taken for a later process with the pid of an opener
//! that has exited. So each opener is watched by a pidfd, and its pid is valid only until that
//! reports the exit.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use binder_driver::ProcessId;
use headroom_linux::clock::Timer;
use headroom_linux::descriptors::{self, KeptFd};
use headroom_linux::{features, pidfd};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use serde::{Deserialize, Serialize};

/// How often threads without a pidfd are checked.
const CHECK_AFTER: Duration = Duration::from_secs(1);

/// Kind of the watched tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskKind {
    Thread,
    /// A process: all of its threads.
    Process,
}

/// A task that has exited, and the opens that it had made or called on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Tid or pid of the task.
    pub(crate) id: u32,
    pub(crate) processes: Vec<ProcessId>,
}

/// How exits are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExitDetection {
    /// At once.
    Pidfd,
    /// By periodic checks.
    Timer,
}

/// The watched tasks of one kind.
pub(crate) struct TaskWatch {
    kind: TaskKind,
    tasks: HashMap<u32, Watched>,
    detection: ExitDetection,
    timer: Timer,
}

struct Watched {
    /// `None`: checked by timer.
    pidfd: Option<OwnedFd>,
    processes: Vec<ProcessId>,
}

/// A watched task in a state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedTask {
    pub(crate) id: u32,
    pub(crate) pidfd: Option<KeptFd>,
    processes: Vec<ProcessId>,
}

impl SavedTask {
    /// Whether it is watched for some of these opens, and no others.
    pub(crate) fn is_for(&self, opens: &HashSet<ProcessId>) -> bool {
        !self.processes.is_empty() && self.processes.iter().all(|open| opens.contains(open))
    }
}

impl Watched {
    fn is_dead(&self, id: u32) -> bool {
        match &self.pidfd {
            Some(pidfd) => {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
                rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
            }
            None => !exists(id),
        }
    }
}

/// Opens the pidfd of a task.
pub(crate) fn pidfd_of(id: u32, kind: TaskKind) -> io::Result<OwnedFd> {
    if kind == TaskKind::Thread { pidfd::open_thread(id) } else { pidfd::open(id) }
}

fn exists(tid: u32) -> bool {
    // SAFETY: signal 0 is never delivered; only the thread's existence is checked.
    let result = unsafe { libc::syscall(libc::SYS_tkill, tid as libc::pid_t, 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

impl TaskWatch {
    /// Determines which detection this kernel supports.
    pub(crate) fn new(kind: TaskKind) -> io::Result<Self> {
        let pidfds = kind == TaskKind::Process || features::has_thread_pidfds();
        let detection = if pidfds { ExitDetection::Pidfd } else { ExitDetection::Timer };
        Self::with_detection(kind, detection)
    }

    fn with_detection(kind: TaskKind, detection: ExitDetection) -> io::Result<Self> {
        Ok(Self { kind, tasks: HashMap::new(), detection, timer: Timer::new()? })
    }

    /// Whether exits are detected at once.
    pub(crate) fn is_immediate(&self) -> bool {
        self.detection == ExitDetection::Pidfd
    }

    /// Must be polled for reading along with the pidfds; when it is readable, call
    /// [`check`](Self::check).
    pub(crate) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// If the id belonged to a task that has exited without being noticed, returns that task's
    /// exit. Must be called before [`watch`](Self::watch).
    pub(crate) fn stale(&mut self, id: u32) -> Option<Exit> {
        self.tasks.get(&id)?.is_dead(id).then(|| self.remove(id))?
    }

    /// Watches a task on behalf of `process`; its pidfd is added to `epoll` with `token`. A thread
    /// without a pidfd is watched by the timer; for a process a missing pidfd is an error.
    pub(crate) fn watch(
        &mut self,
        id: u32,
        process: ProcessId,
        epoll: BorrowedFd<'_>,
        token: u64,
    ) -> io::Result<()> {
        if let Some(watched) = self.tasks.get_mut(&id) {
            if !watched.processes.contains(&process) {
                watched.processes.push(process);
            }
            return Ok(());
        }
        let opened = || -> io::Result<OwnedFd> {
            let pidfd = pidfd_of(id, self.kind)?;
            let data = epoll::EventData::new_u64(token);
            epoll::add(epoll, &pidfd, data, epoll::EventFlags::IN)?;
            Ok(pidfd)
        };
        let pidfd = match self.kind {
            TaskKind::Process => Some(opened()?),
            TaskKind::Thread if self.detection == ExitDetection::Pidfd => opened().ok(),
            TaskKind::Thread => None,
        };
        if pidfd.is_none() {
            self.arm();
        }
        self.tasks.insert(id, Watched { pidfd, processes: vec![process] });
        Ok(())
    }

    /// Stops watching a task on behalf of `process`.
    pub(crate) fn unwatch(&mut self, id: u32, process: ProcessId) {
        if let Some(watched) = self.tasks.get_mut(&id) {
            watched.processes.retain(|&other| other != process);
            if watched.processes.is_empty() {
                self.tasks.remove(&id);
            }
        }
    }

    pub(crate) fn save(&self) -> Vec<SavedTask> {
        let saved = |(&id, watched): (&u32, &Watched)| SavedTask {
            id,
            pidfd: watched.pidfd.as_ref().map(KeptFd::of),
            processes: watched.processes.clone(),
        };
        self.tasks.iter().map(saved).collect()
    }

    /// Watches a task of a state; its pidfd is added to `epoll` with `token`.
    ///
    /// # Safety
    ///
    /// As for [`KeptFd::take`].
    pub(crate) unsafe fn restore(
        &mut self,
        SavedTask { id, pidfd, processes }: SavedTask,
        epoll: BorrowedFd<'_>,
        token: u64,
    ) -> io::Result<()> {
        // SAFETY: as guaranteed by the caller.
        let pidfd = pidfd.map(|fd| unsafe { fd.take() }).transpose()?;
        match &pidfd {
            Some(pidfd) => {
                let data = epoll::EventData::new_u64(token);
                epoll::add(epoll, pidfd, data, epoll::EventFlags::IN)?;
            }
            None => self.arm(),
        }
        self.tasks.insert(id, Watched { pidfd, processes });
        Ok(())
    }

    /// The pidfd of a task became readable; `None` if it was that of an earlier task with this id.
    pub(crate) fn exited(&mut self, id: u32) -> Option<Exit> {
        if self.tasks.get(&id)?.is_dead(id) { self.remove(id) } else { None }
    }

    /// The timer fired: returns tasks without a pidfd that have exited.
    pub(crate) fn check(&mut self) -> Vec<Exit> {
        self.timer.take_expiry();
        let unseen = self.tasks.iter().filter(|(_, watched)| watched.pidfd.is_none());
        let (mut dead, mut alive) = (Vec::new(), false);
        for (&id, watched) in unseen {
            if watched.is_dead(id) {
                dead.push(id);
            } else {
                alive = true;
            }
        }
        if alive {
            self.arm();
        }
        dead.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    fn remove(&mut self, id: u32) -> Option<Exit> {
        // Dropping the pidfd removes it from the epoll set.
        self.tasks.remove(&id).map(|watched| Exit { id, processes: watched.processes })
    }

    fn arm(&self) {
        self.timer.expire_in(CHECK_AFTER);
    }
}

/// Descriptors for which the table has room from the start: it grows while requests wait.
const DESCRIPTORS: u32 = 16_384;

/// Raises the limit of open files, and makes room for them: each open of a device needs one
/// descriptor, each thread another.
pub(crate) fn prepare_descriptors() {
    if let Err(errno) = descriptors::prepare(DESCRIPTORS) {
        tracing::warn!("cannot make room for open files: {errno}; many clients may not fit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use binder_driver::{Driver, Opener, Owner, Uid};
    use std::sync::mpsc;

    fn process() -> ProcessId {
        let mut driver = Driver::new();
        let context = driver.add_context("binder");
        driver
            .open(context, Opener { pid: 1, euid: Uid::ROOT, owner: Owner::User(Uid::ROOT) })
            .unwrap()
    }

    fn exit_of_a_thread_is_seen(detection: ExitDetection) {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut watch = TaskWatch::with_detection(TaskKind::Thread, detection).unwrap();
        let (tid_out, tid_in) = mpsc::channel();
        let (go_out, go_in) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tid_out.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = go_in.recv();
        });
        let (tid, process) = (tid_in.recv().unwrap(), process());
        watch.watch(tid, process, epoll.as_fd(), 1).unwrap();
        assert_eq!(watch.stale(tid), None);
        assert_eq!(watch.exited(tid), None, "it is alive");
        assert_eq!(watch.check(), []);
        drop(go_out);
        thread.join().unwrap();
        let expected = Exit { id: tid, processes: vec![process] };
        // join() returns when the thread's memory is released, shortly before the thread has
        // exited.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let seen = if detection == ExitDetection::Pidfd {
                watch.exited(tid)
            } else {
                watch.check().pop()
            };
            if let Some(exit) = seen {
                assert_eq!(exit, expected);
                break;
            }
            assert!(std::time::Instant::now() < deadline, "the exit was not seen");
            std::thread::yield_now();
        }
        assert!(watch.tasks.is_empty());
    }

    #[test]
    fn a_threads_exit_is_seen_by_pidfd() {
        exit_of_a_thread_is_seen(ExitDetection::Pidfd);
    }

    #[test]
    fn a_threads_exit_is_seen_by_the_timer_where_there_are_no_pidfds() {
        exit_of_a_thread_is_seen(ExitDetection::Timer);
    }

    #[test]
    fn a_thread_is_watched_until_its_last_user_leaves() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut watch = TaskWatch::new(TaskKind::Thread).unwrap();
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let process = process();
        watch.watch(tid, process, epoll.as_fd(), 1).unwrap();
        watch.watch(tid, process, epoll.as_fd(), 1).unwrap();
        assert_eq!(watch.tasks[&tid].processes.len(), 1);
        watch.unwatch(tid, process);
        assert!(watch.tasks.is_empty());
    }

    #[test]
    fn a_process_has_exited_when_its_pidfd_is_readable() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut watch = TaskWatch::new(TaskKind::Process).unwrap();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let (pid, process) = (child.id(), process());
        watch.watch(pid, process, epoll.as_fd(), 1).unwrap();
        assert_eq!((watch.stale(pid), watch.exited(pid)), (None, None), "it is alive");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(watch.stale(pid), Some(Exit { id: pid, processes: vec![process] }));
        let gone = watch.watch(pid, process, epoll.as_fd(), 1);
        assert_eq!(gone.unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
