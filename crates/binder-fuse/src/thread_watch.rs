//! Learns of the exit of client threads.
//!
//! libbinder says goodbye with `BINDER_THREAD_EXIT` and a null argument, which FUSE answers with `EFAULT`
//! without asking us, and a thread that is killed says nothing at all. So each thread that calls is watched by a
//! thread pidfd (Linux 6.9); where there is none, its existence is checked once a second.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use binder_driver::ProcessId;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// `O_EXCL`: the pidfd is of the thread, not of its process.
const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;
/// How often threads without a pidfd are checked.
const CHECK_SECONDS: i64 = 1;

/// A thread that left, and the opens that it had called on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) tid: u32,
    pub(crate) processes: Vec<ProcessId>,
}

/// The watched threads.
pub(crate) struct ThreadWatch {
    threads: HashMap<u32, Watched>,
    use_pidfds: bool,
    timer: OwnedFd,
}

struct Watched {
    /// `None`: checked by timer.
    pidfd: Option<OwnedFd>,
    processes: Vec<ProcessId>,
}

impl Watched {
    fn is_dead(&self, tid: u32) -> bool {
        match &self.pidfd {
            Some(pidfd) => {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
                rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
            }
            None => !exists(tid),
        }
    }
}

/// Opens a thread's pidfd.
pub(crate) fn pidfd_of(tid: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers in; the descriptor out is new and nobody else's.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, tid as libc::pid_t, PIDFD_THREAD);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd as i32)) }
    }
}

fn exists(tid: u32) -> bool {
    // SAFETY: signal 0 is never delivered; only the thread's existence is checked.
    let result = unsafe { libc::syscall(libc::SYS_tkill, tid as libc::pid_t, 0) };
    result == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

impl ThreadWatch {
    /// Finds out which way works here.
    pub(crate) fn new() -> io::Result<Self> {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        // A thread of ours that does not lead its process is what old kernels refuse; EINVAL says so for
        // any thread.
        Self::with_pidfds(pidfd_of(own).is_ok())
    }

    fn with_pidfds(use_pidfds: bool) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { threads: HashMap::new(), use_pidfds, timer })
    }

    /// Exits are seen at once.
    pub(crate) fn is_immediate(&self) -> bool {
        self.use_pidfds
    }

    /// To be watched for reading beside the pidfds; then call [`check`](Self::check).
    pub(crate) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Watches `tid` on behalf of `process`; its pidfd joins `epoll` with `token`. If the number belonged to a
    /// thread that has died unnoticed, that one's exit is returned.
    pub(crate) fn watch(
        &mut self,
        tid: u32,
        process: ProcessId,
        epoll: BorrowedFd<'_>,
        token: u64,
    ) -> Option<Exit> {
        let stale = self.threads.get(&tid).is_some_and(|watched| watched.is_dead(tid));
        let exit = if stale { self.remove(tid) } else { None };
        if let Some(watched) = self.threads.get_mut(&tid) {
            if !watched.processes.contains(&process) {
                watched.processes.push(process);
            }
            return exit;
        }
        let pidfd = if self.use_pidfds { pidfd_of(tid).ok() } else { None };
        let pidfd = pidfd.filter(|fd| {
            let data = epoll::EventData::new_u64(token);
            epoll::add(epoll, fd, data, epoll::EventFlags::IN).is_ok()
        });
        if pidfd.is_none() {
            self.arm();
        }
        self.threads.insert(tid, Watched { pidfd, processes: vec![process] });
        exit
    }

    /// `process` has no more interest in `tid`.
    pub(crate) fn unwatch(&mut self, tid: u32, process: ProcessId) {
        if let Some(watched) = self.threads.get_mut(&tid) {
            watched.processes.retain(|&other| other != process);
            if watched.processes.is_empty() {
                self.threads.remove(&tid);
            }
        }
    }

    /// The pidfd of `tid` became readable; `None` if that was an earlier thread of this number.
    pub(crate) fn exited(&mut self, tid: u32) -> Option<Exit> {
        if self.threads.get(&tid)?.is_dead(tid) { self.remove(tid) } else { None }
    }

    /// The timer fired: threads without a pidfd that are gone.
    pub(crate) fn check(&mut self) -> Vec<Exit> {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        let unseen = self.threads.iter().filter(|(_, watched)| watched.pidfd.is_none());
        let (mut dead, mut alive) = (Vec::new(), false);
        for (&tid, watched) in unseen {
            if watched.is_dead(tid) {
                dead.push(tid);
            } else {
                alive = true;
            }
        }
        if alive {
            self.arm();
        }
        dead.into_iter().filter_map(|tid| self.remove(tid)).collect()
    }

    fn remove(&mut self, tid: u32) -> Option<Exit> {
        // Dropping the pidfd takes it out of the epoll set.
        self.threads.remove(&tid).map(|watched| Exit { tid, processes: watched.processes })
    }

    fn arm(&self) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = Timespec { tv_sec: CHECK_SECONDS, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: zero, it_value };
        // Cannot fail: the descriptor is a timer and the value is in range.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec);
    }
}

/// Raises the limit of open files as far as it goes: each open of a device costs one, each thread another.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(errno) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!("cannot raise the limit of open files: {errno}; many clients may not fit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use binder_driver::{Driver, Opener};
    use std::sync::mpsc;

    fn process() -> ProcessId {
        let mut driver = Driver::new();
        let context = driver.add_context("binder");
        driver.open(context, Opener { pid: 1, euid: 0 }).unwrap()
    }

    fn exit_of_a_thread_is_seen(use_pidfds: bool) {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut watch = ThreadWatch::with_pidfds(use_pidfds).unwrap();
        let (tid_out, tid_in) = mpsc::channel();
        let (go_out, go_in) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tid_out.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let _ = go_in.recv();
        });
        let (tid, process) = (tid_in.recv().unwrap(), process());
        assert_eq!(watch.watch(tid, process, epoll.as_fd(), 1), None);
        assert_eq!(watch.exited(tid), None, "it is alive");
        assert_eq!(watch.check(), []);
        drop(go_out);
        thread.join().unwrap();
        let expected = Exit { tid, processes: vec![process] };
        // join() returns when the thread's memory is released, a moment before it is gone.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let seen = if use_pidfds { watch.exited(tid) } else { watch.check().pop() };
            if let Some(exit) = seen {
                assert_eq!(exit, expected);
                break;
            }
            assert!(std::time::Instant::now() < deadline, "the exit was not seen");
            std::thread::yield_now();
        }
        assert!(watch.threads.is_empty());
    }

    #[test]
    fn a_threads_exit_is_seen_by_pidfd() {
        exit_of_a_thread_is_seen(true);
    }

    #[test]
    fn a_threads_exit_is_seen_by_the_timer_where_there_are_no_pidfds() {
        exit_of_a_thread_is_seen(false);
    }

    #[test]
    fn a_thread_is_watched_as_long_as_anybody_cares() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut watch = ThreadWatch::new().unwrap();
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let process = process();
        watch.watch(tid, process, epoll.as_fd(), 1);
        watch.watch(tid, process, epoll.as_fd(), 1);
        assert_eq!(watch.threads[&tid].processes.len(), 1);
        watch.unwatch(tid, process);
        assert!(watch.threads.is_empty());
    }
}
