//! Carries out kills: the only code that sends signals and reclaims memory.
//!
//! * [`stopping`](self::stopping): further processes that are stopped before they are killed;
//! * [`reaping`](self::reaping): victims that are exiting, and the reaper threads that release
//!   their memory.

mod reaping;
mod stopping;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use control::oomd::{Outcome, Trigger};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{
    AccountId, Cause, ChargedAccount, InFlightKill, KillRate, KillToken, KillsInFlight,
    LatchAction, NS_PER_MS, NewKill, PressureTrigger, Process, RateLimit, Sake, Sender, Settled,
    Signal,
};
use reclaim::{Exiting, KillError, OpenError, Reaper, exiting};

use self::reaping::Reaping;
use self::stopping::{ForkBomb, KilledMember, Kin, ROUNDS, SharedMemory};
use super::accounts::Accounts;
use super::kill_plan::{CgroupScope, KillPlan, Method, Purpose, kill_record, open};
use super::shared_state::SharedState;
use crate::notifications::pre_kill_hook::PreKillInfo;
use crate::records::Records;
use crate::victim_details::VictimDetails;

/// Number of further victims of one kill from which on all are stopped before they are killed.
const STOPPED_FIRST: usize = 16;

/// Carries out kills, and tracks the victims until their memory is back.
pub(super) struct Executor {
    reaping: Reaping,
    pub(super) rate: RateMonitor,
}

/// The signal that was sent, and when.
struct Sent {
    signal: Signal,
    at_ns: u64,
}

impl Executor {
    /// `events`: another fd that makes this one readable.
    pub(super) fn new(reaper: Reaper, events: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { reaping: Reaping::new(reaper, events)?, rate: RateMonitor::default() })
    }

    /// Carries out a kill. Returns the number of its record. `None`: the victim could not be
    /// signalled, or the kernel program has killed meanwhile.
    ///
    /// Up to the signal of a plan with an armed victim nothing allocates, locks or logs, unless
    /// other processes use the victim's memory.
    pub(super) fn execute(
        &mut self,
        mut plan: KillPlan,
        state: &mut SharedState,
        records: &mut Records,
    ) -> Option<u64> {
        run_pre_kill_hook(&plan, records);
        let payer = plan.payer.account;
        let claim = Claim::of(&plan, &mut state.accounts)?;
        let shared = stop_shared(&plan, state);
        let Ok(sent) = send(&plan) else {
            if let Some(shared) = shared {
                shared.release();
            }
            if claim == Claim::Latch {
                state.accounts.watch_mut().release_latch(payer);
            }
            return None;
        };
        let cgroup = plan.purpose.cgroup().map(|scope| ChargedAccount {
            account: scope.account(),
            used_bytes: Some(plan.used_bytes),
        });
        let sender = match plan.method {
            Method::SentByKernel { .. } => Sender::KernelProgram,
            Method::Kill | Method::Terminate { .. } => Sender::Daemon,
        };
        let process = plan.choice.victim;
        let (token, latch) = state.kills.signalled(NewKill {
            victim: process.id,
            bytes: process.charged_bytes(),
            sender,
            signal: sent.signal,
            at_ns: sent.at_ns,
            payer: plan.payer,
            cgroup,
        });
        match claim {
            Claim::Latch => state.accounts.count_dying(payer, process.id),
            Claim::Nothing if latch == LatchAction::Take => {
                state.accounts.take_latch(payer, process.id);
            }
            Claim::Nothing => {}
        }
        match &plan.pinned {
            Some(pinned) => {
                self.reaping.add(token, pinned.victim.clone(), &mut state.kills);
            }
            // The victim had exited before it could be pinned.
            None => state.kills.gone(token, monotonic_ns()),
        }
        self.kill_others(&mut plan, &sent, state);
        let sharers = shared.map(SharedMemory::kill).unwrap_or_default();
        for sharer in sharers {
            plan.choice.others.push(sharer.process);
            self.track_other(sharer, &sent, plan.purpose.cgroup(), state);
        }
        let now_ns = monotonic_ns();
        for process in plan.choice.victims() {
            state.snapshot.on_killed(process, now_ns);
        }
        let record = self.record(plan, &sent, &mut state.details, records);
        state.kills.set_record(token, record);
        Some(record)
    }

    fn record(
        &mut self,
        plan: KillPlan,
        sent: &Sent,
        details: &mut VictimDetails,
        records: &mut Records,
    ) -> u64 {
        let account = plan.purpose.cgroup().map_or(plan.payer.account, CgroupScope::account);
        let remark = self.rate.count(plan.trigger, account);
        let victim = plan.choice.victim;
        let known = details.of(&victim);
        if known.is_none() {
            details.request(&victim);
        }
        let mut why = kill_record(plan, sent.at_ns, &remark);
        if let Some(victim) = &mut why.victim {
            victim.details = known.map(Box::new);
        }
        records.add(why)
    }

    /// Kills the further victims of a group kill. Those that cannot be signalled are removed from
    /// the list.
    fn kill_others(&mut self, plan: &mut KillPlan, sent: &Sent, state: &mut SharedState) {
        let mut others = std::mem::take(&mut plan.choice.others);
        let cgroup = plan.purpose.cgroup();
        let is_bomb = matches!(plan.choice.cause, Cause::Herd(herd) if herd.bomb);
        let kin = match others.len() {
            _ if is_bomb => Some(Kin::Family),
            // Killing them one by one takes a while, in which the others fork.
            STOPPED_FIRST.. => Some(Kin::Children),
            _ => None,
        };
        plan.choice.others = if let Some(kin) = kin
            && sent.signal == Signal::Kill
        {
            self.kill_stopped(ForkBomb::new(&plan.choice.victim, kin, cgroup), others, state)
        } else {
            others.retain(|process| self.kill_other(process, sent.signal, cgroup, state));
            others
        };
    }

    fn kill_other(
        &mut self,
        process: &Process,
        signal: Signal,
        cgroup: Option<&CgroupScope>,
        state: &mut SharedState,
    ) -> bool {
        let Ok(victim) = open(process) else { return false };
        let signal = if victim.handles_sigterm() { signal } else { Signal::Kill };
        let done = match signal {
            Signal::Terminate { .. } => victim.send_sigterm(),
            Signal::Kill => victim.send_kill(),
        };
        if done.is_err() {
            return false;
        }
        let sent = Sent { signal, at_ns: monotonic_ns() };
        self.track_other(KilledMember { process: *process, victim }, &sent, cgroup, state);
        true
    }

    /// Kills the members of a fork bomb or of a large herd, except the first, which was signalled
    /// already. Returns those that were signalled.
    fn kill_stopped(
        &mut self,
        mut bomb: ForkBomb<'_>,
        others: Vec<Process>,
        state: &mut SharedState,
    ) -> Vec<Process> {
        let mut found = others;
        for _ in 0..ROUNDS {
            let killed = bomb.stop_and_kill(found, state);
            let sent = Sent { signal: Signal::Kill, at_ns: monotonic_ns() };
            for member in killed {
                self.track_other(member, &sent, bomb.cgroup(), state);
            }
            found = bomb.relatives(state);
            if found.is_empty() {
                break;
            }
        }
        bomb.into_others()
    }

    /// Tracks a further victim. No account awaits its memory separately.
    fn track_other(
        &mut self,
        member: KilledMember,
        sent: &Sent,
        cgroup: Option<&CgroupScope>,
        state: &mut SharedState,
    ) {
        let KilledMember { process, victim } = member;
        let not_awaited = |account| ChargedAccount { account, used_bytes: None };
        let (token, _) = state.kills.signalled(NewKill {
            victim: process.id,
            bytes: process.charged_bytes(),
            sender: Sender::Daemon,
            signal: sent.signal,
            at_ns: sent.at_ns,
            payer: not_awaited(process.account),
            cgroup: cgroup.map(|scope| not_awaited(scope.account())),
        });
        self.reaping.add(token, victim, &mut state.kills);
    }

    /// Awaits a victim that an earlier daemon has sent SIGKILL at `at_ns`.
    pub(super) fn follow_earlier(
        &mut self,
        process: &Process,
        at_ns: u64,
        state: &mut SharedState,
    ) -> Result<KillToken, OpenError> {
        let victim = open(process)?;
        let account = process.account;
        let limited = state.accounts.ledger().account(account);
        let used_bytes = limited.map(|account| account.reading().used_bytes);
        let (token, latch) = state.kills.signalled(NewKill {
            victim: process.id,
            bytes: process.charged_bytes(),
            sender: Sender::Daemon,
            signal: Signal::Kill,
            at_ns,
            payer: ChargedAccount { account, used_bytes },
            cgroup: None,
        });
        if latch == LatchAction::Take {
            state.accounts.take_latch(account, process.id);
        }
        self.reaping.add(token, victim, &mut state.kills);
        Ok(token)
    }

    /// Sends SIGKILL to a victim that has not exited in time after SIGTERM.
    pub(super) fn kill_after_grace(
        &mut self,
        token: KillToken,
        latch: LatchAction,
        state: &mut SharedState,
    ) {
        let Some(kill) = state.kills.get(token).copied() else { return };
        // It does not matter if this fails because the process has exited.
        let _ = self.reaping.kill(token);
        if latch == LatchAction::Take {
            state.accounts.take_latch(kill.payer(), kill.victim);
        }
        self.reaping.step(token, &mut state.kills);
    }

    /// Advances the state of every victim.
    pub(super) fn step(&mut self, kills: &mut KillsInFlight) {
        self.reaping.step_all(kills);
        let now_ns = monotonic_ns();
        for (token, pid) in kills.to_look_at(now_ns) {
            match exiting(pid) {
                // The pid may have been another process's when it was read.
                _ if self.reaping.has_exited(token) => {}
                Exiting::HeldBy(_) => kills.held(token, now_ns),
                Exiting::Running => kills.runs(token, now_ns),
                Exiting::Waiting => {}
            }
        }
    }

    /// Ends the tracking of a settled kill. Returns its outcome, for the record.
    pub(super) fn finish(&mut self, kill: &InFlightKill, settled: Settled) -> Outcome {
        self.reaping.finish(kill, settled)
    }
}

/// Readable when a victim or a reaper has made progress, or `events` is readable.
impl AsFd for Executor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reaping.as_fd()
    }
}

/// Runs the pre-kill hook. Returns when the program has exited, or its budget is spent.
fn run_pre_kill_hook(plan: &KillPlan, records: &Records) {
    // The kernel program kills in a page fault, so no hook can run before.
    if let Method::SentByKernel { .. } = plan.method {
        return;
    }
    let victim = &plan.choice.victim;
    records.run_pre_kill_hook(PreKillInfo {
        pid: victim.id.pid,
        uid: victim.uid,
        owner: victim.account.user().unwrap_or(victim.uid),
        bytes: victim.charged_bytes(),
        hard_bytes: plan.hard_bytes,
        trigger: plan.trigger,
    });
}

fn stop_shared(plan: &KillPlan, state: &mut SharedState) -> Option<SharedMemory> {
    let shared = plan.choice.sharers > 0 && plan.method == Method::Kill;
    shared.then(|| SharedMemory::stop(plan, state))
}

fn send(plan: &KillPlan) -> Result<Sent, KillError> {
    let pid = plan.choice.victim.id.pid;
    let victim = plan.pinned.as_ref().map(|pinned| &pinned.victim).ok_or(KillError::Gone(pid));
    let signal = match plan.method {
        Method::SentByKernel { at_ns } => return Ok(Sent { signal: Signal::Kill, at_ns }),
        Method::Kill => {
            victim?.send_kill()?;
            Signal::Kill
        }
        Method::Terminate { grace_ms } => {
            let until_ns = monotonic_ns() + grace_ms * NS_PER_MS;
            victim?.send_sigterm()?;
            Signal::Terminate { until_ns }
        }
    };
    Ok(Sent { signal, at_ns: monotonic_ns() })
}

/// What is taken before a signal is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    Nothing,
    /// The latch of the account.
    Latch,
}

impl Claim {
    /// For the kill of an account that exceeds its limit. The choice of a victim and a hook take
    /// time, in which the kernel program may have killed another process: then `None`.
    fn of(plan: &KillPlan, accounts: &mut Accounts) -> Option<Self> {
        let Purpose::Limit(account) = plan.purpose else { return Some(Self::Nothing) };
        // The latch is taken for the victim that another process holds at its exit.
        let is_for_victim = matches!(plan.choice.cause, Cause::HoldsVictim(_));
        if plan.method != Method::Kill || is_for_victim {
            return Some(Self::Nothing);
        }
        match accounts.watch_mut().take_latch(account) {
            Ok(is_taken) => is_taken.then_some(Self::Latch),
            // The account has no limit any more.
            Err(_) => Some(Self::Nothing),
        }
    }
}

/// Recent decisions, by the account or system for which they were made; logs when the rate is too
/// high.
#[derive(Default)]
pub(super) struct RateMonitor {
    rate: KillRate,
    /// Accounts that exceed the rate limit; logged once until the rate has dropped.
    too_many: BTreeSet<Sake>,
}

impl RateMonitor {
    /// Sets the rate limit.
    pub(super) fn set_limit(&mut self, limit: RateLimit) {
        self.rate.set_limit(limit);
    }

    /// Counts a decision. Returns a note for its record if the rate limit is exceeded.
    pub(super) fn count(&mut self, trigger: Trigger, account: AccountId) -> String {
        let system = trigger.is_of_the_machine();
        let sake = if system { Sake::Machine } else { Sake::Account(account) };
        if !self.rate.note(sake, monotonic_ns()) {
            self.too_many.remove(&sake);
            return String::new();
        }
        let RateLimit { most, within_ms } = self.rate.limit();
        if self.too_many.insert(sake) && !system {
            tracing::warn!(
                %account,
                "more than {most} victims within {within_ms} ms: the limit is enforced all the \
                 same; does something start them again and again?"
            );
        }
        format!("; more than {most} victims within {within_ms} ms")
    }

    /// Whether a kill for the system should wait: the rate limit is used up without relief, and the
    /// pressure does not require a kill yet.
    pub(super) fn should_wait(&mut self, trigger: &PressureTrigger) -> bool {
        let spent = self.rate.is_spent(Sake::Machine, monotonic_ns());
        if !spent {
            self.too_many.remove(&Sake::Machine);
        }
        if !spent || !trigger.pressure.can_wait() {
            return false;
        }
        if self.too_many.insert(Sake::Machine) {
            let RateLimit { most, within_ms } = self.rate.limit();
            tracing::warn!(
                "{trigger}, and {most} victims within {within_ms} ms have not helped: only the \
                 hard level and the forecast kill until it is over; does something start them \
                 again and again?"
            );
        }
        true
    }
}
