//! Kills processes and reclaims their memory in one call, to wait for or to poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::end::{End, ReapError, VictimReport};
use crate::family::{self, Relative, Scope};
use crate::holdings::Holdings;
use crate::mrelease::Mrelease;
use crate::reclaim::{Progress, Reclaim};
use crate::victim::{KillError, Victim};

/// The word of the timer among those of the victims.
const TIMER: u64 = u64::MAX;

/// What a deadline beyond all clocks amounts to.
const FOREVER: Duration = Duration::from_secs(1 << 32);

/// How to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a process that handles SIGTERM may take to end by itself; zero: no time.
    pub grace: Duration,
    /// Who dies with the victim.
    pub scope: Scope,
    /// How long is waited after SIGKILL for all to be gone.
    pub deadline: Duration,
    /// What is shared with others is measured before the kill, which takes 10 ms a GiB.
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

/// How far a kill has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// How many are killed.
    pub victims: usize,
    /// How many of them are gone.
    pub gone: usize,
    /// What they had that can come back, bytes.
    pub bytes: u64,
    /// What of it is back, bytes; of a victim that frees its memory itself only known when it is
    /// gone.
    pub bytes_back: u64,
    /// When the last memory was back, from the beginning on. `None`: some is not.
    pub memory_back: Option<Duration>,
    /// There is nothing more to wait for: all are gone, or the deadline has passed.
    pub done: bool,
}

impl Victim {
    /// Kills it, and whoever [`Options::scope`] adds; the memory comes back while the result is
    /// [waited for](Reap::wait) or [advanced](Reap::advance). The error is about this process;
    /// others that cannot be killed are in the [reports](Reap::reports).
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

/// One who dies.
struct Member {
    victim: Victim,
    holdings: Option<Holdings>,
    /// It was asked to end, and is killed then.
    asked_until: Option<Instant>,
    refused: Option<KillError>,
    reclaim: Option<Reclaim>,
    /// Seen last; memory that it has let go of may be on its way only.
    left_bytes: u64,
    back_at: Option<Instant>,
    gone: bool,
}

/// A kill on its way.
///
/// Either call [`wait`](Reap::wait), or watch the fd and call [`advance`](Reap::advance) whenever
/// it is readable. Dropped early, it leaves the victims to their death.
pub struct Reap {
    members: Vec<Member>,
    epoll: OwnedFd,
    timer: OwnedFd,
    begun: Instant,
    deadline: Instant,
    given_up: bool,
}

impl Reap {
    /// Signals all of them, then releases the memory of each from this thread, which blocks for 0.1
    /// µs a page. An error means that no process was signalled; processes that cannot be killed are
    /// in the [reports](Reap::reports).
    pub fn begin(victims: Vec<Victim>, options: &Options) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
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
            // Who is asked must be able to run, who is refused has a right to.
            if member.reclaim.is_none() {
                relative.release();
            }
        }
        members.iter_mut().for_each(Member::reap);
        let mut reap = Self { members, epoll, timer, begun, deadline, given_up: false };
        reap.advance();
        Ok(reap)
    }

    /// Does what is due. To be called whenever the fd is readable.
    pub fn advance(&mut self) -> Status {
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        for member in &mut self.members {
            member.advance();
            if member.gone || member.refused.is_some() {
                // A pidfd stays readable, also of one who was refused and ends: out of the way of
                // the event loop.
                let _ = epoll::delete(&self.epoll, member.victim.as_fd());
            }
        }
        self.given_up |= Instant::now() >= self.deadline;
        let status = self.status();
        self.set_timer(&status);
        status
    }

    /// How far it has come, as of the last [`advance`](Reap::advance).
    pub fn status(&self) -> Status {
        let struck = || self.members.iter().filter(|member| member.refused.is_none());
        let bytes = struck().map(Member::bytes).sum();
        let back = struck().map(|member| member.back_at.map(|at| at - self.begun));
        let all_over = struck().all(|member| member.gone);
        Status {
            victims: struck().count(),
            gone: struck().filter(|member| member.gone).count(),
            bytes,
            bytes_back: struck().map(Member::bytes_back).sum(),
            memory_back: back
                .clone()
                .all(|at| at.is_some())
                .then(|| back.flatten().max())
                .flatten(),
            done: all_over || self.given_up,
        }
    }

    /// What has become of each, as of the last [`advance`](Reap::advance).
    pub fn reports(&self) -> Vec<VictimReport> {
        self.members.iter().map(Member::report).collect()
    }

    /// Waits until all are gone or the deadline has passed; the error is the first one that
    /// remains.
    pub fn wait(&mut self) -> Result<Status, ReapError> {
        self.wait_and_tell(Duration::MAX, |_| {})
    }

    /// The same, and tells how far it has come at least every so often.
    pub fn wait_and_tell(
        &mut self,
        every: Duration,
        mut tell: impl FnMut(Status),
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
            tell(status);
            let timeout = Timespec::try_from(every).ok();
            let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Without poll there is no waiting; what is due is done at leisure.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn set_timer(&self, status: &Status) {
        let due = self.members.iter().filter(|member| !member.gone);
        let due = due.filter_map(|member| member.asked_until);
        let due = due.chain((!status.done).then_some(self.deadline)).min();
        // A time of zero would stop the timer instead of being over at once.
        let left = due
            .map(|due| due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1)));
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let left = left.and_then(|left| Timespec::try_from(left).ok()).unwrap_or(zero);
        let time = Itimerspec { it_interval: zero, it_value: left };
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time);
    }
}

/// Becomes readable when there is something to [`advance`](Reap::advance).
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
            asked_until: None,
            refused: None,
            reclaim: None,
            left_bytes: holdings.map_or(0, |holdings| holdings.freeable_bytes()),
            back_at: None,
            gone: false,
        }
    }

    fn signal(&mut self, options: &Options) {
        let ask = !options.grace.is_zero() && self.victim.can_be_asked();
        let done = if ask { self.victim.ask_to_end() } else { self.victim.send_kill() };
        match done {
            Ok(()) if ask => self.asked_until = Some(Instant::now() + options.grace),
            Ok(()) => self.reclaim = Some(Reclaim::new(self.victim.clone())),
            // It has ended before.
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
        if self.asked_until.is_some_and(|until| Instant::now() >= until) {
            self.asked_until = None;
            // Gone is as good.
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
            // Whoever shares the memory still has it.
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
