//! Victims that are exiting, and the reaper threads that release their memory.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use control::oomd::Outcome;
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{InFlightKill, KillToken, KillsInFlight, NS_PER_MS, Settled};
use reclaim::{KillError, Mrelease, Progress, Reaper, Reclaim, Victim};
use rustix::event::{Timespec, epoll};

/// Victims whose exit is noted in one step; the others' fds stay readable.
const EXITS: usize = 64;
/// Values of `epoll_event.data`. Victims have their tokens, from 1 on.
const EVENTS: u64 = 0;
const REAPER: u64 = u64::MAX;

struct ExitingVictim {
    token: KillToken,
    reclaim: Reclaim,
    progress: Progress,
    watched: Watched,
}

/// Whether the exit of a victim makes the set of fds readable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    Yes,
    No,
}

/// All victims in flight with their pidfds.
pub(super) struct Reaping {
    reaper: Reaper,
    epoll: OwnedFd,
    victims: Vec<ExitingVictim>,
}

impl Reaping {
    /// `events`: another fd that makes this one readable.
    pub(super) fn new(reaper: Reaper, events: BorrowedFd<'_>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        add(&epoll, events, EVENTS)?;
        add(&epoll, reaper.as_fd(), REAPER)?;
        Ok(Self { reaper, epoll, victims: Vec::new() })
    }

    /// Tracks a victim that was signalled. After SIGKILL the reapers release its memory: the sooner
    /// they start, the less depends on how fast the victim exits.
    pub(super) fn add(&mut self, token: KillToken, victim: Victim, kills: &mut KillsInFlight) {
        let watched = match add(&self.epoll, victim.as_fd(), token.0) {
            Ok(()) => Watched::Yes,
            Err(errno) => {
                tracing::warn!("cannot watch the victim: {errno}; the timer looks after it");
                Watched::No
            }
        };
        let reclaim = Reclaim::new(victim);
        self.victims.push(ExitingVictim { token, reclaim, progress: Progress::Pending, watched });
        self.step(token, kills);
    }

    /// Sends SIGKILL to a victim that was sent SIGTERM before.
    pub(super) fn kill(&mut self, token: KillToken) -> Result<(), KillError> {
        let Some(entry) = self.victims.iter_mut().find(|entry| entry.token == token) else {
            return Ok(());
        };
        let victim = entry.reclaim.victim().clone();
        let done = victim.send_kill();
        entry.reclaim = Reclaim::new(victim);
        done
    }

    /// Advances the state of the victims that have exited, or that a reaper has helped, and of
    /// those that cannot be watched.
    pub(super) fn step_all(&mut self, kills: &mut KillsInFlight) {
        let Self { reaper, victims, epoll } = self;
        let mut changed = Vec::new();
        reaper.drain(|token, done| {
            if let Some(entry) = victims.iter_mut().find(|entry| entry.token.0 == token) {
                entry.reclaim.helped(done);
                changed.push(token);
            }
        });
        let mut events = [const { MaybeUninit::uninit() }; EXITS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Ok((ready, _)) = epoll::wait(&*epoll, &mut events, Some(&now)) {
            changed.extend(ready.iter().map(|event| event.data.u64()));
        }
        changed.sort_unstable();
        for entry in victims {
            if entry.watched == Watched::No || changed.binary_search(&entry.token.0).is_ok() {
                entry.step(reaper, epoll, kills);
            }
        }
    }

    /// Advances the state of one victim.
    pub(super) fn step(&mut self, token: KillToken, kills: &mut KillsInFlight) {
        let Self { reaper, victims, epoll } = self;
        if let Some(entry) = victims.iter_mut().find(|entry| entry.token == token) {
            entry.step(reaper, epoll, kills);
        }
    }

    /// Whether the victim has exited, so that its pid may be another process's. `true` for a victim
    /// that is not tracked.
    pub(super) fn has_exited(&self, token: KillToken) -> bool {
        let entry = self.victims.iter().find(|entry| entry.token == token);
        entry.is_none_or(|entry| entry.reclaim.victim().has_exited())
    }

    /// Ends the tracking of a settled kill. Returns its outcome.
    pub(super) fn finish(&mut self, kill: &InFlightKill, settled: Settled) -> Outcome {
        let at = self.victims.iter().position(|entry| entry.token == kill.token);
        let entry = at.map(|at| self.victims.swap_remove(at));
        if let Some(entry) = &entry
            && entry.progress != Progress::Gone
        {
            let _ = epoll::delete(&self.epoll, entry.reclaim.as_fd());
        }
        let mrelease = entry.and_then(|entry| entry.reclaim.mrelease());
        match settled {
            Settled::Back { bytes_back, took_ns } => {
                let mreleased = mrelease == Some(Mrelease::Freed);
                Outcome::Reclaimed { bytes_back, micros: took_ns / 1000, mreleased }
            }
            Settled::Stuck { took_ns } => {
                Outcome::Stuck { reason: why_stuck(kill.victim.pid, mrelease, took_ns) }
            }
        }
    }
}

impl AsFd for Reaping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl ExitingVictim {
    fn step(&mut self, reaper: &Reaper, epoll: &OwnedFd, kills: &mut KillsInFlight) {
        let now_ns = monotonic_ns();
        let terminating = kills.get(self.token).is_some_and(InFlightKill::is_terminating);
        // The memory of a victim that was only sent SIGTERM is not released before it has exited.
        if terminating && !self.reclaim.victim().has_exited() {
            return;
        }
        let progress = self.reclaim.step(reaper, self.token.0);
        if progress == self.progress {
            return;
        }
        self.progress = progress;
        match progress {
            Progress::Pending => {}
            Progress::Released => kills.released(self.token, now_ns),
            Progress::Gone => {
                // A pidfd stays readable, so it is removed from the epoll set.
                let _ = epoll::delete(epoll, self.reclaim.as_fd());
                kills.gone(self.token, now_ns);
            }
        }
    }
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>, data: u64) -> rustix::io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(data), epoll::EventFlags::IN)
}

fn why_stuck(pid: u32, mrelease: Option<Mrelease>, took_ns: u64) -> String {
    let state = state_of(pid).unwrap_or("in an unknown state");
    let help = match mrelease {
        Some(Mrelease::Freed) => "process_mrelease freed what is private",
        Some(Mrelease::Busy) => "process_mrelease found its memory busy",
        Some(Mrelease::LettingGo) => "its exit is freeing its memory",
        Some(Mrelease::NotDying) => "it shares its memory with a process that is not dying",
        Some(Mrelease::Unsupported) => "this kernel has no process_mrelease",
        Some(Mrelease::Failed(_)) => "process_mrelease failed",
        None => "process_mrelease was not called",
    };
    format!("{} ms after SIGKILL it is still {state}; {help}", took_ns / NS_PER_MS)
}

/// The state of a process's main thread as text.
fn state_of(pid: u32) -> Option<&'static str> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let state = status.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"State:\t"))?;
    Some(match state.first()? {
        b'D' => "in an uninterruptible sleep",
        b'R' => "running",
        b'S' | b'I' => "sleeping",
        b'T' | b't' => "stopped",
        b'Z' | b'X' => "a zombie",
        _ => "in an unknown state",
    })
}
