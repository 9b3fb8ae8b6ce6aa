//! From the kill until the memory is back and the next one may die.

use std::os::fd::AsFd;

use control::oomd::{Outcome, Trigger};
use memory_ledger::{AccountId, CgroupId, InFlight, ProcessId, Settled};
use memory_watch::Backend;
use reclaim::{Done, Help, Mrelease, Progress, Reclaim, Victim};
use rustix::event::epoll;

use super::Killer;
use crate::clock::{NS_PER_MS, monotonic_ns};

/// How soon an account is read again when its victim is gone and it does not show it, milliseconds.
const REREAD_MS: u64 = 5;

/// A victim that was asked to end first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// When it is killed if it is still there, nanoseconds.
    until_ns: u64,
}

impl Asked {
    pub(super) fn until(until_ns: u64) -> Self {
        Self { until_ns }
    }
}

/// A victim that has been killed, or asked to end.
pub(super) struct Dying {
    pub(super) token: u64,
    /// The decision it died for; of a herd, the first one has it.
    pub(super) record: Option<u64>,
    pub(super) account: AccountId,
    pub(super) id: ProcessId,
    /// What it had; its grace follows from that.
    flight: InFlight,
    /// `None`: it was gone before it could be pinned.
    reclaim: Option<Reclaim>,
    progress: Progress,
    pub(super) asked: Option<Asked>,
    /// For whose limit it died, where that is a cgroup's.
    pub(super) cgroup: Option<CgroupId>,
}

impl Dying {
    pub(super) fn new(
        token: u64,
        account: AccountId,
        id: ProcessId,
        bytes: u64,
        used_bytes: u64,
        signalled_ns: u64,
        victim: Option<Victim>,
    ) -> Self {
        let flight =
            InFlight { id, bytes, used_bytes, signalled_ns, released_ns: None, gone_ns: None };
        let progress = if victim.is_some() { Progress::Pending } else { Progress::Gone };
        let reclaim = victim.map(|victim| Reclaim::new(victim, Help::default()));
        let (record, asked, cgroup) = (None, None, None);
        Self { token, record, account, id, flight, reclaim, progress, asked, cgroup }
    }

    /// The same, of one that was only asked.
    pub(super) fn asked(self, asked: Option<Asked>) -> Self {
        Self { asked, ..self }
    }

    /// The same, for the sake of a cgroup.
    pub(super) fn of_cgroup(self, cgroup: Option<CgroupId>) -> Self {
        Self { cgroup, ..self }
    }

    /// No more asking.
    fn kill(&mut self) {
        let Some(reclaim) = &self.reclaim else { return };
        self.asked = None;
        let victim = reclaim.victim().clone();
        // Gone is as good.
        let _ = victim.hold_and_kill();
        self.flight.signalled_ns = monotonic_ns();
        self.reclaim = Some(Reclaim::new(victim, Help::default()));
    }

    /// A reaper's result.
    pub(super) fn helped(&mut self, done: Done) {
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.helped(monotonic_ns(), done);
        }
    }

    fn mreleased(&self) -> bool {
        self.reclaim.as_ref().and_then(Reclaim::mrelease) == Some(Mrelease::Freed)
    }

    fn outcome(&self, settled: Settled) -> Outcome {
        match settled {
            Settled::Back { bytes_back, took_ns } => {
                let mreleased = self.mreleased();
                Outcome::Reclaimed { bytes_back, micros: took_ns / 1000, mreleased }
            }
            Settled::Stuck { took_ns } => Outcome::Stuck { reason: self.why_stuck(took_ns) },
        }
    }

    fn why_stuck(&self, took_ns: u64) -> String {
        let state = state_of(self.id.pid).unwrap_or("in an unknown state");
        let help = match self.reclaim.as_ref().and_then(Reclaim::mrelease) {
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
}

/// A process's state in words.
fn state_of(pid: u32) -> Option<&'static str> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|b| *b == b')')? + 2;
    Some(match stat.get(after_name)? {
        b'D' => "in an uninterruptible sleep",
        b'R' => "running",
        b'S' | b'I' => "sleeping",
        b'T' | b't' => "stopped",
        b'Z' | b'X' => "a zombie",
        _ => "in an unknown state",
    })
}

impl Killer {
    /// Begins to follow a victim, and to help it if it has its signal: the sooner, the less its own
    /// speed counts.
    pub(super) fn watch_over(&mut self, dying: Dying) {
        if let Some(reclaim) = &dying.reclaim {
            let word = epoll::EventData::new_u64(dying.token);
            if let Err(errno) =
                epoll::add(&self.epoll, reclaim.as_fd(), word, epoll::EventFlags::IN)
            {
                tracing::warn!("cannot watch the victim: {errno}; the timer looks after it");
            }
        }
        self.dying.push(dying);
        self.step(self.dying.len() - 1);
    }

    /// Takes every victim as far as it has come.
    pub(super) fn advance(&mut self) {
        if self.dying.is_empty() {
            return;
        }
        for at in 0..self.dying.len() {
            self.step(at);
        }
        // Backwards: what has ended is taken out.
        for at in (0..self.dying.len()).rev() {
            if let Some((settled, counted)) = self.settled(at) {
                let mut dying = self.dying.swap_remove(at);
                self.stop_watching(&dying);
                if let (Settled::Stuck { .. }, Some(reclaim)) = (settled, &mut dying.reclaim) {
                    reclaim.give_up();
                }
                if let Some(record) = dying.record {
                    self.records.finish(record, dying.outcome(settled));
                }
                self.remember_stuck(&dying, settled, counted);
                // The last one of a herd opens the way.
                if !self.dying.iter().any(|other| other.account == dying.account) {
                    self.let_the_next_one_die(dying.account, dying.record);
                }
            }
        }
    }

    fn step(&mut self, at: usize) {
        let Self { dying, reaper, ledger, cgroups, epoll, .. } = self;
        let dying = &mut dying[at];
        let now_ns = monotonic_ns();
        if dying.asked.is_some_and(|asked| now_ns >= asked.until_ns) {
            dying.kill();
        }
        let Some(reclaim) = &mut dying.reclaim else { return };
        let progress = match dying.asked {
            Some(_) if !reclaim.victim().has_exited() => Progress::Pending,
            _ => reclaim.step(now_ns, reaper, dying.token),
        };
        if progress == dying.progress {
            return;
        }
        dying.progress = progress;
        let account = ledger.account_mut(dying.account);
        match progress {
            Progress::Pending => {}
            Progress::Released => {
                account.into_iter().for_each(|account| account.released(dying.id, now_ns));
                cgroups.accounts.released(dying.id, now_ns);
            }
            Progress::Gone => {
                // A pidfd stays readable: out of the way of the event loop.
                let _ = epoll::delete(epoll, reclaim.as_fd());
                account.into_iter().for_each(|account| account.gone(dying.id, now_ns));
                cgroups.accounts.gone(dying.id, now_ns);
            }
        }
    }

    /// How the wait for this victim ended, if it has, and whether the user's next one waited for it.
    fn settled(&mut self, at: usize) -> Option<(Settled, bool)> {
        let (settled, counted) = self.settled_for_user(at)?;
        let settled = match self.dying[at].cgroup {
            Some(number) => self.settled_in_cgroup(at, number, settled)?,
            None => settled,
        };
        Some((settled, counted))
    }

    fn settled_for_user(&mut self, at: usize) -> Option<(Settled, bool)> {
        let Dying { account, id, flight, progress, .. } = self.dying[at];
        let awaited = self.ledger.account(account).and_then(|account| account.in_flight());
        if awaited.is_none_or(|awaited| awaited.id != id) {
            let asked = self.dying[at].asked.is_some();
            return settled_unaccounted(flight, progress, asked).map(|settled| (settled, false));
        }
        if progress != Progress::Pending && self.watch.backend() == Backend::ProcPolling {
            self.correct_accounts();
        }
        for correct in [progress != Progress::Pending, false] {
            self.read(account);
            let ended = self.ledger.account_mut(account)?.settle(monotonic_ns());
            if let Some((_, settled)) = ended {
                return Some((settled, true));
            }
            if !correct {
                break;
            }
            self.correct_accounts();
        }
        None
    }

    fn remember_stuck(&mut self, dying: &Dying, settled: Settled, counted: bool) {
        if let (Settled::Stuck { .. }, false, Some(watch)) = (settled, counted, &mut self.machine) {
            watch.stuck.push(dying.id);
        }
    }

    pub(super) fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Whoever was asked to end is killed: there is no time any more.
    pub(super) fn ask_no_longer(&mut self) {
        for dying in self.dying.iter_mut().filter(|dying| dying.asked.is_some()) {
            dying.kill();
        }
    }

    fn stop_watching(&self, dying: &Dying) {
        if let Some(reclaim) = &dying.reclaim
            && dying.progress != Progress::Gone
        {
            let _ = epoll::delete(&self.epoll, reclaim.as_fd());
        }
    }

    /// One victim's memory is back, or its grace over: what if that was not enough?
    fn let_the_next_one_die(&mut self, account: AccountId, record: Option<u64>) {
        // What the others of a herd had is back as well; an old look would cost somebody else.
        self.refresh_if_polling();
        // Armed before the latch opens: then the notifier has the right one at hand.
        self.read(account);
        self.arm_or_disarm(account);
        self.watch.release_latch(account);
        let trigger = record.and_then(|record| self.records.get(record)).map(|why| why.trigger);
        let trigger = trigger.filter(|trigger| !trigger.is_of_the_machine());
        let trigger = trigger.unwrap_or(Trigger::Timer);
        self.strike(account, trigger, None);
    }

    /// A latch that was taken while we know of no victim: the word of a kill was lost. Freed at the
    /// second look, so that word on its way has the time to arrive.
    pub(super) fn free_odd_latch(&mut self, account: AccountId) {
        let latched = self.watch.usage(account).is_some_and(|usage| usage.latched);
        let awaited =
            self.ledger.account(account).is_some_and(|account| account.in_flight().is_some());
        if !latched || awaited {
            self.odd_latches.remove(&account);
        } else if !self.odd_latches.insert(account) {
            tracing::warn!(%account, "the notifier killed a process and the word of it was lost");
            self.odd_latches.remove(&account);
            self.watch.release_latch(account);
        }
    }

    pub(super) fn aftermath_deadline_ns(&self) -> Option<u64> {
        let due = |dying: &Dying| match dying.progress {
            Progress::Pending if dying.asked.is_some() => {
                dying.asked.map_or(u64::MAX, |asked| asked.until_ns)
            }
            Progress::Pending => {
                let step = dying.reclaim.as_ref().and_then(Reclaim::next_deadline_ns);
                step.unwrap_or(u64::MAX).min(dying.flight.deadline_ns())
            }
            _ => monotonic_ns() + REREAD_MS * NS_PER_MS,
        };
        self.dying.iter().map(due).min()
    }
}

/// The end of a victim for which no account waits: its user's limit is gone, or another victim of
/// the same user is the one that is waited for.
fn settled_unaccounted(flight: InFlight, progress: Progress, asked: bool) -> Option<Settled> {
    let took_ns = monotonic_ns().saturating_sub(flight.signalled_ns);
    match progress {
        // Where no account tells, an empty victim is as good as none.
        Progress::Gone | Progress::Released => {
            Some(Settled::Back { bytes_back: flight.bytes, took_ns })
        }
        Progress::Pending if !asked && monotonic_ns() >= flight.deadline_ns() => {
            Some(Settled::Stuck { took_ns })
        }
        Progress::Pending => None,
    }
}
