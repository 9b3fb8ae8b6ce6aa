//! Kills processes and reclaims their memory in one call, blocking or polled; the result for each
//! victim.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use headroom_linux::clock::Timer;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::family::{self, Relative, Scope, sharer_of};
use crate::holdings::Holdings;
use crate::reaper::Mrelease;
use crate::reclaim::{Progress, Reclaim};
use crate::victim::{Identity, KillError, Victim, status};

/// The epoll data of the timer; victims have their index.
const TIMER: u64 = u64::MAX;

/// Replacement for a deadline that the clock cannot represent.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// Options of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time that a process which handles SIGTERM may take to exit by itself; zero: SIGKILL at once.
    pub grace: Duration,
    /// The processes that are killed with the victim.
    pub scope: Scope,
    /// Maximum wait after SIGKILL for all victims to exit.
    pub deadline: Duration,
    /// Measure memory shared with other processes before the kill, which takes 10 ms per GiB.
    pub measure: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            grace: Duration::ZERO,
            scope: Scope::Process,
            deadline: Duration::from_secs(10),
            measure: false,
        }
    }
}

/// Progress of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Number of victims.
    pub victims: usize,
    /// Number of victims that have exited.
    pub gone: usize,
    /// Memory of the victims that can be freed, bytes.
    pub bytes: u64,
    /// Part of `bytes` that is back; for a victim that frees its memory itself only known once it
    /// has exited.
    pub bytes_back: u64,
    /// Time from the start until the last memory was back. `None`: some is not.
    pub memory_back: Option<Duration>,
    /// No more progress is expected: all victims have exited, or the deadline has passed.
    pub done: bool,
}

impl Victim {
    /// Kills the process, and those that [`Options::scope`] adds; the memory is freed while the
    /// caller [waits for](Reap::wait) the result or [advances](Reap::advance) it. The error is
    /// about this process; others that cannot be killed are in the [reports](Reap::reports).
    pub fn kill(self, options: &Options) -> Result<Reap, KillError> {
        let pid = self.pid();
        let reap = Reap::begin(vec![self], options);
        let reap = reap.map_err(|e| {
            let errno = Errno::from_io_error(&e).unwrap_or(Errno::IO);
            KillError::Io { pid, errno }
        })?;
        match reap.members.first().and_then(|member| member.refused) {
            Some(refused) => Err(refused),
            None => Ok(reap),
        }
    }
}

/// One of the processes to be killed.
struct Member {
    victim: Victim,
    holdings: Option<Holdings>,
    /// SIGTERM was sent; SIGKILL follows at this time.
    grace_until: Option<Instant>,
    refused: Option<KillError>,
    reclaim: Option<Reclaim>,
    /// Memory at the last reading, bytes; memory that was released may not be free yet.
    left_bytes: u64,
    back_at: Option<Instant>,
    gone: bool,
}

/// A kill in progress.
///
/// Either call [`wait`](Reap::wait), or poll the fd and call [`advance`](Reap::advance) whenever it
/// is readable. If it is dropped early, the victims still exit, without further help.
pub struct Reap {
    members: Vec<Member>,
    epoll: OwnedFd,
    timer: Timer,
    begun: Instant,
    deadline: Instant,
    given_up: bool,
}

impl Reap {
    /// Signals all victims, then releases the memory of each from this thread, which blocks for 0.1
    /// µs per page. An error means that no process was signalled; processes that cannot be killed
    /// are in the [reports](Reap::reports).
    pub fn begin(victims: Vec<Victim>, options: &Options) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        watch(&epoll, timer.as_fd(), TIMER)?;
        let mut relatives: Vec<Relative> = Vec::new();
        for victim in victims {
            for relative in family::gather(victim, options.scope) {
                let same = |r: &Relative| r.victim.identity() == relative.victim.identity();
                if !relatives.iter().any(same) {
                    relatives.push(relative);
                }
            }
        }
        for (at, relative) in relatives.iter().enumerate() {
            if let Err(error) = watch(&epoll, relative.victim.as_fd(), at as u64) {
                relatives.iter().for_each(Relative::release);
                return Err(error);
            }
        }
        let members = relatives.iter().map(|relative| Member::new(&relative.victim, options));
        let mut members: Vec<Member> = members.collect();
        let begun = Instant::now();
        let patience = options.grace.saturating_add(options.deadline);
        let deadline = begun.checked_add(patience).unwrap_or(begun + FOREVER);
        for (member, relative) in members.iter_mut().zip(&relatives) {
            member.signal(options);
            // A process with SIGTERM must be able to run, one that cannot be killed must continue.
            if member.reclaim.is_none() {
                relative.release();
            }
        }
        members.iter_mut().for_each(Member::reap);
        let mut reap = Self { members, epoll, timer, begun, deadline, given_up: false };
        reap.advance();
        Ok(reap)
    }

    /// Performs the steps that are due. To be called whenever the fd is readable.
    pub fn advance(&mut self) -> Status {
        self.timer.take_expiry();
        for member in &mut self.members {
            member.advance();
            if member.gone || member.refused.is_some() {
                // A pidfd stays readable after the exit, also that of a process that could not be
                // killed: remove it from the event loop.
                let _ = epoll::delete(&self.epoll, member.victim.as_fd());
            }
        }
        self.given_up |= Instant::now() >= self.deadline;
        let status = self.status();
        self.set_timer(&status);
        status
    }

    /// Progress as of the last [`advance`](Reap::advance).
    pub fn status(&self) -> Status {
        let signalled = || self.members.iter().filter(|member| member.refused.is_none());
        let bytes = signalled().map(Member::bytes).sum();
        let back = signalled().map(|member| member.back_at.map(|at| at - self.begun));
        let all_over = signalled().all(|member| member.gone);
        Status {
            victims: signalled().count(),
            gone: signalled().filter(|member| member.gone).count(),
            bytes,
            bytes_back: signalled().map(Member::bytes_back).sum(),
            memory_back: back
                .clone()
                .all(|at| at.is_some())
                .then(|| back.flatten().max())
                .flatten(),
            done: all_over || self.given_up,
        }
    }

    /// The result for each victim, as of the last [`advance`](Reap::advance).
    pub fn reports(&self) -> Vec<VictimReport> {
        self.members.iter().map(Member::report).collect()
    }

    /// Waits until all victims have exited or the deadline has passed; the error is the first
    /// victim that has not exited.
    pub fn wait(&mut self) -> Result<Status, ReapError> {
        self.wait_with_progress(Duration::MAX, |_| {})
    }

    /// Like [`wait`](Self::wait), and calls `on_progress` at least once per `every`.
    pub fn wait_with_progress(
        &mut self,
        every: Duration,
        mut on_progress: impl FnMut(Status),
    ) -> Result<Status, ReapError> {
        loop {
            let status = self.advance();
            if status.done {
                let remains = self.reports().into_iter().find_map(|report| match report.end {
                    End::Remains(error) => Some(error),
                    End::Gone | End::Refused(_) => None,
                });
                return remains.map_or(Ok(status), Err);
            }
            on_progress(status);
            let timeout = Timespec::try_from(every).ok();
            let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // If poll fails, the loop checks every millisecond instead.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn set_timer(&self, status: &Status) {
        let due = self.members.iter().filter(|member| !member.gone);
        let due = due.filter_map(|member| member.grace_until);
        let due = due.chain((!status.done).then_some(self.deadline)).min();
        match due {
            Some(due) => self.timer.expire_in(due.saturating_duration_since(Instant::now())),
            None => self.timer.disarm(),
        }
    }
}

/// Becomes readable when there is progress to [`advance`](Reap::advance).
impl AsFd for Reap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Member {
    fn new(victim: &Victim, options: &Options) -> Self {
        let look = if options.measure { Holdings::measured } else { Holdings::of };
        let holdings = look(victim.pid());
        Self {
            victim: victim.clone(),
            holdings,
            grace_until: None,
            refused: None,
            reclaim: None,
            left_bytes: holdings.map_or(0, |holdings| holdings.freeable_bytes()),
            back_at: None,
            gone: false,
        }
    }

    fn signal(&mut self, options: &Options) {
        let terminate = !options.grace.is_zero() && self.victim.handles_sigterm();
        let done = if terminate { self.victim.send_sigterm() } else { self.victim.send_kill() };
        match done {
            Ok(()) if terminate => self.grace_until = Some(Instant::now() + options.grace),
            Ok(()) => self.reclaim = Some(Reclaim::new(self.victim.clone())),
            // The process had exited before the signal.
            Err(KillError::Gone(_)) if self.victim.has_exited() => {}
            Err(refused) => self.refused = Some(refused),
        }
    }

    fn reap(&mut self) {
        if let Some(reclaim) = &mut self.reclaim
            && reclaim.reap() != Progress::Pending
        {
            self.back_at = Some(Instant::now());
        }
    }

    fn advance(&mut self) {
        if self.gone || self.refused.is_some() {
            return;
        }
        if self.grace_until.is_some_and(|until| Instant::now() >= until) {
            self.grace_until = None;
            // The signal also fails if the process has exited already.
            let _ = self.victim.send_kill();
            self.reclaim = Some(Reclaim::new(self.victim.clone()));
            self.reap();
        }
        let progress = match &mut self.reclaim {
            Some(reclaim) => reclaim.look(),
            None if self.victim.has_exited() => Progress::Gone,
            None => Progress::Pending,
        };
        self.gone = progress == Progress::Gone;
        if progress != Progress::Pending && self.back_at.is_none() {
            self.back_at = Some(Instant::now());
        }
        let shared = || self.mrelease() == Some(Mrelease::NotDying);
        if self.gone {
            // Processes that share the memory still have it.
            self.left_bytes = if shared() { self.bytes() } else { 0 };
        } else if let Some(left) = Holdings::anon_now(self.victim.pid()) {
            self.left_bytes = left;
        } else if progress == Progress::Released {
            self.left_bytes = 0;
        }
    }

    fn mrelease(&self) -> Option<Mrelease> {
        self.reclaim.as_ref().and_then(Reclaim::mrelease)
    }

    fn bytes(&self) -> u64 {
        self.holdings.map_or(0, |holdings| holdings.freeable_bytes())
    }

    fn bytes_back(&self) -> u64 {
        self.bytes().saturating_sub(self.left_bytes)
    }

    fn report(&self) -> VictimReport {
        let reclaim = self.reclaim.as_ref();
        let boost = reclaim.and_then(Reclaim::boost).unwrap_or_default();
        let mrelease = self.mrelease();
        let end = match self.refused {
            Some(refused) => End::Refused(refused),
            None if self.gone => End::Gone,
            None => End::Remains(ReapError::of(&self.victim, mrelease)),
        };
        VictimReport {
            identity: self.victim.identity(),
            holdings: self.holdings.unwrap_or_default(),
            bytes_back: self.bytes_back(),
            mrelease,
            threads_raised: boost.threads,
            thawed: boost.thawed,
            boost_refused: boost.refused,
            end,
        }
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, word: u64) -> io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(word), epoll::EventFlags::IN)?;
    Ok(())
}

/// A victim that was sent SIGKILL has not exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReapError {
    /// It waits in the kernel for an event that does not occur, usually from a device or a file
    /// server, and exits once it does.
    #[error("pid {pid} is stuck in an uninterruptible sleep; {memory}")]
    Stuck {
        /// Pid of the victim.
        pid: u32,
        /// State of its private memory.
        memory: Memory,
    },
    /// It shares its memory with another process that is not dying.
    #[error("pid {pid} shares its memory with pid {sharer}, which is not dying")]
    Shared {
        /// Pid of the victim.
        pid: u32,
        /// Pid of the other process.
        sharer: u32,
    },
    /// It runs, or waits for other processes.
    #[error("pid {pid} is still {}; {memory}", state_name(*.state))]
    StillAlive {
        /// Pid of the victim.
        pid: u32,
        /// Its state, as in `/proc/<pid>/stat`.
        state: u8,
        /// State of its private memory.
        memory: Memory,
    },
}

impl ReapError {
    /// The reason why a victim has not exited.
    fn of(victim: &Victim, mrelease: Option<Mrelease>) -> Self {
        let pid = victim.pid();
        let memory =
            if mrelease == Some(Mrelease::Freed) { Memory::Released } else { Memory::Held };
        let sharer = if mrelease == Some(Mrelease::NotDying) { sharer_of(victim) } else { None };
        match (sharer, state_of(pid).unwrap_or(b'?')) {
            (Some(sharer), _) => Self::Shared { pid, sharer },
            (None, b'D') => Self::Stuck { pid, memory },
            (None, state) => Self::StillAlive { pid, state, memory },
        }
    }

    /// Its private memory was released nevertheless.
    pub fn released(&self) -> bool {
        match self {
            Self::Stuck { memory, .. } | Self::StillAlive { memory, .. } => {
                *memory == Memory::Released
            }
            Self::Shared { .. } => false,
        }
    }
}

/// The private memory of a victim that has not exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Released by `process_mrelease`.
    Released,
    /// Still in use by the victim.
    Held,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released => "its memory is back",
            Self::Held => "it has its memory",
        })
    }
}

/// The state of a process: of its threads' states, the one that prevents its exit most. The main
/// thread may have exited long before, and then its state does not show that of the others. `None`:
/// the process has exited.
pub fn state_of(pid: u32) -> Option<u8> {
    /// Ordered from states that prevent an exit to those that do not.
    const KEEPERS: &[u8] = b"DtTRSIZX";
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
    let states = tids.filter_map(|tid| Some(status(tid)?.state));
    states.min_by_key(|state| KEEPERS.iter().position(|keeper| keeper == state))
}

/// A process's state as text, from the letter of `/proc/<pid>/stat`.
pub fn state_name(state: u8) -> &'static str {
    match state {
        b'D' => "in an uninterruptible sleep",
        b'R' => "running",
        b'S' | b'I' => "sleeping",
        b'T' => "stopped",
        b't' => "held by a debugger",
        b'Z' | b'X' => "a zombie",
        _ => "in an unknown state",
    }
}

/// Result of the signal for a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has exited.
    Gone,
    /// It could not be signalled.
    Refused(KillError),
    /// It has not exited.
    Remains(ReapError),
}

/// Report on one victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VictimReport {
    /// Pid, uid and start number.
    pub identity: Identity,
    /// Its memory before the kill; all 0 for a zombie.
    pub holdings: Holdings,
    /// Memory that was freed, bytes.
    pub bytes_back: u64,
    /// The result of `process_mrelease`, if it was called.
    pub mrelease: Option<Mrelease>,
    /// Number of threads with a raised priority.
    pub threads_raised: usize,
    /// It was moved out of a frozen control group.
    pub thawed: bool,
    /// The error if its priority could not be raised or it could not be thawed.
    pub boost_refused: Option<Errno>,
    /// Whether it has exited.
    pub end: End,
}
