//! Detects exceeded limits of users and groups. Above the soft limit a victim is armed.

use std::collections::{BTreeMap, BTreeSet};

use control::oomd::Trigger;
use memory_ledger::{
    AccountId, Cause, ChargedAccount, Choice, Latch, NoVictim, Phase, Process, ProcessId, Scope,
};
use memory_watch::Killed;
use reclaim::holder_of;

use super::kill_plan::{Decision, KillPlan, Method, PinnedVictim, Purpose, Unarmed, kept_by, open};
use super::shared_state::SharedState;

/// Attempts with another victim if the chosen one has exited before it is pinned.
const TRIES: u32 = 3;

/// The reason for checking an account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alert {
    pub(super) trigger: Trigger,
    /// `None`: the notifier did not report it.
    pub(super) crossing: Option<Crossing>,
}

impl Alert {
    pub(super) fn by(trigger: Trigger) -> Self {
        Self { trigger, crossing: None }
    }
}

/// The moment a limit was crossed, as reported by the notifier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crossing {
    pub(super) bytes: u64,
    pub(super) time_ns: u64,
}

struct Armed {
    account: AccountId,
    pinned: PinnedVictim,
    choice: Choice,
    /// The name of the account's group, kept here so that the kill path does not allocate.
    group: Option<String>,
}

impl Armed {
    fn is(&self, id: ProcessId) -> bool {
        self.choice.victim.id == id
    }
}

/// The detector of exceeded limits of users and groups.
#[derive(Default)]
pub(super) struct UserLimits {
    /// Sorted by account. A vector, since an entry is removed without an allocation.
    armed: Vec<Armed>,
    /// Accounts over their limit without a possible victim; recorded once.
    no_victim: BTreeSet<AccountId>,
    /// Accounts over their limit by usage that has to be measured first, with the trigger.
    unconfirmed: BTreeMap<AccountId, Trigger>,
}

impl UserLimits {
    /// Whether a victim is armed for this account.
    pub(super) fn is_armed(&self, account: AccountId) -> bool {
        self.position(account).is_ok()
    }

    fn position(&self, account: AccountId) -> Result<usize, usize> {
        self.armed.binary_search_by_key(&account, |armed| armed.account)
    }

    fn take(&mut self, account: AccountId) -> Option<Armed> {
        self.position(account).ok().map(|at| self.armed.remove(at))
    }

    /// Decides whether to kill for an account. With a victim armed this does not allocate, lock or
    /// log.
    pub(super) fn plan(
        &mut self,
        account: AccountId,
        alert: Alert,
        state: &mut SharedState,
    ) -> Decision {
        if !is_exceeded(account, state) {
            return Decision::Nothing;
        }
        if !state.usage.may_kill(account, &state.accounts) {
            self.unconfirmed.entry(account).or_insert(alert.trigger);
            return Decision::Nothing;
        }
        self.unconfirmed.remove(&account);
        // A victim that was sent SIGTERM has no time left: its SIGKILL is due now.
        if state.kills.end_grace_of(account) {
            return Decision::Nothing;
        }
        let ready = self.take(account).filter(|armed| !armed.pinned.victim.has_exited());
        let armed = match ready {
            Some(armed) => armed,
            None => match self.arm(account, state).map(|()| self.take(account)) {
                Ok(Some(armed)) => armed,
                Ok(None) => return Decision::Nothing,
                // The kernel program may have killed the only process meanwhile.
                Err(_) if !is_exceeded(account, state) => return Decision::Nothing,
                Err(why) => return Decision::NoVictim(why),
            },
        };
        let Some(it) = state.accounts.ledger().account(account) else { return Decision::Nothing };
        let crossing = alert.crossing;
        let used_bytes = crossing.map_or(it.reading().used_bytes, |crossing| crossing.bytes);
        Decision::Kill(KillPlan {
            purpose: Purpose::Limit(account),
            trigger: alert.trigger,
            method: Method::Kill,
            choice: armed.choice,
            payer: ChargedAccount { account, used_bytes: Some(used_bytes) },
            group: armed.group,
            pinned: Some(armed.pinned),
            used_bytes,
            hard_bytes: it.limit().hard_bytes(),
            state: String::new(),
            noticed_ns: crossing.map(|crossing| crossing.time_ns),
        })
    }

    /// Plans SIGTERM for the armed victim of an account that is above its soft limit, if its limit
    /// has this signal and no kill is in flight for it. Not for a victim that shares its memory
    /// with other processes: its exit would free nothing.
    pub(super) fn plan_at_soft(
        &self,
        account: AccountId,
        state: &mut SharedState,
    ) -> Option<KillPlan> {
        let it = state.accounts.ledger().account(account)?;
        let grace_ms = it.limit().terminate_ms()?;
        let (used_bytes, soft_bytes) = (it.reading().used_bytes, it.limit().soft_bytes());
        let armed = &self.armed[self.position(account).ok()?];
        let may_kill = it.phase() == Phase::AboveSoft
            && armed.choice.sharers == 0
            && state.kills.may_kill(account)
            && state.accounts.latch(account) == Latch::Free
            && state.usage.is_surely_above_soft(account, &state.accounts);
        let pinned = &armed.pinned;
        may_kill.then(|| KillPlan {
            purpose: Purpose::Limit(account),
            trigger: Trigger::SoftLimit,
            method: Method::Terminate { grace_ms: grace_ms.into() },
            choice: armed.choice.clone(),
            payer: ChargedAccount { account, used_bytes: Some(used_bytes) },
            group: armed.group.clone(),
            pinned: Some(PinnedVictim { victim: pinned.victim.clone(), kept: pinned.kept.clone() }),
            used_bytes,
            hard_bytes: soft_bytes,
            state: String::new(),
            noticed_ns: None,
        })
    }

    /// The plan of a kill that the kernel program carried out. `None`: it is known already.
    pub(super) fn plan_of_kernel(
        &mut self,
        account: AccountId,
        killed: Killed,
        crossing: Crossing,
        state: &mut SharedState,
    ) -> Option<KillPlan> {
        let id = killed.id;
        if state.kills.joins(id, crossing.time_ns) {
            return None;
        }
        let (pinned, mut choice) = match self.take(account).filter(|armed| armed.is(id)) {
            Some(armed) => (Some(armed.pinned), armed.choice),
            None => {
                let choice = reconstruct(account, killed, state);
                let victim = open(&choice.victim).ok();
                let pinned = victim.map(|victim| PinnedVictim { victim, kept: String::new() });
                (pinned, choice)
            }
        };
        // The count of the kernel program at the kill is later and more accurate than the sample.
        let bytes = killed.pages * state.accounts.page_bytes();
        choice.victim.rss_bytes = bytes.saturating_sub(choice.victim.swap_bytes);
        let shared_bytes = state.usage.shared_bytes(account, &state.accounts);
        let limited = state.accounts.ledger().account(account);
        Some(KillPlan {
            purpose: Purpose::Limit(account),
            trigger: Trigger::Notifier,
            method: Method::SentByKernel { at_ns: crossing.time_ns },
            choice,
            payer: ChargedAccount { account, used_bytes: limited.map(|_| crossing.bytes) },
            group: state.accounts.group_name(account),
            pinned,
            used_bytes: crossing.bytes.saturating_sub(shared_bytes),
            hard_bytes: limited.map_or(0, |account| account.limit().hard_bytes()),
            state: String::new(),
            noticed_ns: Some(crossing.time_ns),
        })
    }

    /// Plans the kill of the process that prevents a victim from exiting, if it is charged to the
    /// same account, which is over its limit, and may be killed.
    pub(super) fn plan_for_tracer(
        &self,
        victim: ProcessId,
        account: AccountId,
        state: &mut SharedState,
    ) -> Option<KillPlan> {
        if state.accounts.read(account) != Some(Phase::Broken) {
            return None;
        }
        let pid = holder_of(victim.pid)?;
        state.refresh_processes();
        state.snapshot.retain(|process| process.id.pid == pid);
        let mut choice = state.snapshot.choose(&scope(account, state)).ok()?;
        choice.cause = Cause::HoldsVictim(victim.pid);
        let it = state.accounts.ledger().account(account)?;
        let used_bytes = it.reading().used_bytes;
        Some(KillPlan {
            purpose: Purpose::Limit(account),
            trigger: Trigger::Timer,
            method: Method::Kill,
            payer: ChargedAccount { account, used_bytes: Some(used_bytes) },
            group: state.accounts.group_name(account),
            pinned: Some(PinnedVictim::open(&choice.victim).ok()?),
            choice,
            used_bytes,
            hard_bytes: it.limit().hard_bytes(),
            state: String::new(),
            noticed_ns: None,
        })
    }

    /// Chooses the account's victim, pins it and arms the watch. On failure no victim is armed.
    pub(super) fn arm(
        &mut self,
        account: AccountId,
        state: &mut SharedState,
    ) -> Result<(), Unarmed> {
        // The process that was sent SIGTERM at the soft limit is the victim at the hard limit, too.
        if let Ok(at) = self.position(account)
            && state.kills.is_terminating(self.armed[at].choice.victim.id)
        {
            return Ok(());
        }
        let mut failed = None;
        for _ in 0..TRIES {
            let choice = match choose(account, state) {
                Ok(choice) => choice,
                Err(none) => {
                    self.disarm(account, state);
                    return Err(none.into());
                }
            };
            let id = choice.victim.id;
            state.details.request(&choice.victim);
            if let Ok(at) = self.position(account)
                && self.armed[at].is(id)
                && !self.armed[at].pinned.victim.has_exited()
            {
                let armed = &mut self.armed[at];
                armed.choice = choice;
                armed.pinned.kept = kept_by(id.pid);
                armed.group = state.accounts.group_name(account);
                return Ok(());
            }
            match PinnedVictim::open(&choice.victim) {
                Ok(pinned) => {
                    if let Err(error) = state.accounts.arm(account, Some(id)) {
                        tracing::warn!(
                            %account,
                            "cannot arm the notifier: {error}; the daemon will kill"
                        );
                    }
                    let group = state.accounts.group_name(account);
                    let armed = Armed { account, pinned, choice, group };
                    match self.position(account) {
                        Ok(at) => self.armed[at] = armed,
                        Err(at) => self.armed.insert(at, armed),
                    }
                    return Ok(());
                }
                Err(error) => failed = Some(error),
            }
        }
        self.disarm(account, state);
        Err(failed.map_or(NoVictim::NoProcess.into(), Unarmed::Open))
    }

    /// Disarms the account, here and in the notifier.
    pub(super) fn disarm(&mut self, account: AccountId, state: &mut SharedState) {
        self.take(account);
        if state.accounts.ledger().account(account).is_some()
            && let Err(error) = state.accounts.arm(account, None)
        {
            tracing::warn!(%account, "cannot disarm the notifier: {error}");
        }
    }

    /// Drops the state of an account whose limit is gone.
    pub(super) fn forget(&mut self, account: AccountId) {
        self.take(account);
        self.no_victim.remove(&account);
        self.unconfirmed.remove(&account);
    }

    /// Returns the trigger of an exceeded limit that was waiting for the account's measurement.
    pub(super) fn take_unconfirmed(&mut self, account: AccountId) -> Option<Trigger> {
        self.unconfirmed.remove(&account)
    }

    /// Makes the next lack of victims be recorded again.
    pub(super) fn forget_no_victim(&mut self, account: AccountId) {
        self.no_victim.remove(&account);
    }

    /// Notes that no process can be killed for this account. `true`: not noted before.
    pub(super) fn is_news(&mut self, account: AccountId) -> bool {
        self.no_victim.insert(account)
    }
}

/// The victim if the account's limit were enforced now.
pub(super) fn choose(account: AccountId, state: &mut SharedState) -> Result<Choice, NoVictim> {
    state.refresh_processes();
    // A user's preferences must not select one victim after the other without effect.
    if !state.kills.has_unhelpful(account) {
        let groups = state.accounts.ledger().groups();
        state.snapshot.apply_user_preferences(account, groups);
    }
    if state.accounts.ledger().account(account).is_none() {
        return Err(NoVictim::NoProcess);
    }
    state.snapshot.choose(&scope(account, state))
}

/// Whether the account is over its limit, and no process was sent SIGKILL for that yet.
fn is_exceeded(account: AccountId, state: &mut SharedState) -> bool {
    state.accounts.read(account) == Some(Phase::Broken)
        && state.kills.may_enforce(account)
        && state.accounts.latch(account) == Latch::Free
}

/// A scope for one victim at a time, see [`Scope::need_bytes`].
fn scope(account: AccountId, state: &SharedState) -> Scope<'_> {
    let passed_over = state.kills.stuck();
    let common_bytes = state.accounts.sum(account).map_or(0, |(sum, _)| sum.common_bytes());
    Scope { account: Some(account), common_bytes, passed_over, ..Scope::default() }
}

/// Reconstructs the choice of the kernel program, as far as the victim is still visible.
fn reconstruct(account: AccountId, killed: Killed, state: &mut SharedState) -> Choice {
    let Killed { id, uid, comm, .. } = killed;
    state.refresh_processes();
    let known = state.snapshot.processes().iter().find(|process| process.id == id).copied();
    let gone = Process { id, uid, account, comm, exiting: true, ..Process::default() };
    let victim = known.unwrap_or(gone);
    state.snapshot.retain(|process| process.id != id);
    let next = match state.accounts.ledger().account(account) {
        Some(_) => state.snapshot.choose(&scope(account, state)).ok(),
        None => None,
    };
    let considered = next.as_ref().map_or(0, |next| next.considered) + 1;
    let (runner_up, others) = (next.map(|next| next.victim), Vec::new());
    Choice { victim, others, sharers: 0, runner_up, considered, cause: Cause::Growing }
}
