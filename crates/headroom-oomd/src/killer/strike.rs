//! At the hard limit the victim dies, by the notifier's hand or ours.

use control::oomd::{AccountRef, Candidate, Killer as KilledBy, Outcome, Trigger, Why};
use memory_ledger::{
    Account, AccountId, Cause, CgroupId, Choice, Phase, Process, ProcessId, RateLimit, Sake, Uid,
};
use memory_watch::Killed;
use reclaim::Victim;

use super::Killer;
use super::aftermath::{Asked, Dying};
use super::arm::{Unarmed, identity};
use crate::account_ref::to_ref;
use crate::clock::{epoch_micros, monotonic_ns};
use crate::tell::before::Condemned;

/// How often another victim is tried when the chosen one turns out to be gone.
const TRIES: u32 = 3;

/// The moment a limit was broken, as the notifier saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crossing {
    pub(super) bytes: u64,
    pub(super) time_ns: u64,
}

/// A kill that has happened.
pub(super) struct Blow {
    /// The account that it is for, a user's or a group's; for the machine or a cgroup, that of the victim.
    pub(super) account: AccountId,
    /// The cgroup that it is for.
    pub(super) cgroup: Option<CgroupId>,
    pub(super) trigger: Trigger,
    /// What was wrong with the machine; empty for a limit.
    pub(super) state: String,
    pub(super) killer: KilledBy,
    pub(super) choice: Choice,
    /// What its death does not give back, in words.
    pub(super) kept: String,
    /// `None`: it is gone already.
    pub(super) victim: Option<Victim>,
    /// It was not killed, but asked to end.
    pub(super) asked: Option<Asked>,
    pub(super) used_bytes: u64,
    pub(super) signalled_ns: u64,
    pub(super) decide_ns: Option<u64>,
}

impl Killer {
    /// Kills the user's victim if its limit is broken and nobody is dying for it already. Returns
    /// the decision, which can be that nobody can be killed.
    ///
    /// With a victim armed, nothing up to the signal allocates, locks, or logs.
    pub(super) fn strike(
        &mut self,
        account: AccountId,
        trigger: Trigger,
        crossing: Option<Crossing>,
    ) -> Option<u64> {
        if self.read(account)? != Phase::Broken
            || self.ledger.account(account)?.in_flight().is_some()
            || self.watch.usage(account)?.latched
            || self.dying.iter().any(|dying| dying.account == account)
        {
            return None;
        }
        for _ in 0..TRIES {
            let hard_bytes = self.ledger.account(account)?.limit().hard_bytes();
            // The notifier has the same victim in its slot: should it strike at this very moment,
            // it kills the same one. The latch, which needs a scan, can wait for the signal.
            if let Some(armed) = self.armed.get(&account)
                && !armed.victim.has_exited()
                && self.told_before(&armed.choice.victim, trigger, hard_bytes)
                && armed.victim.send_kill().is_ok()
            {
                let signalled_ns = monotonic_ns();
                return self.struck(account, trigger, crossing, signalled_ns);
            }
            if let Err(why) = self.try_arm(account) {
                return self.record_helplessness(account, trigger, &why);
            }
        }
        None
    }

    /// The program before a kill, if there is one, has had its time. Always true.
    pub(super) fn told_before(&self, victim: &Process, trigger: Trigger, hard_bytes: u64) -> bool {
        self.records.before_kill(Condemned {
            pid: victim.id.pid,
            uid: victim.uid,
            bytes: victim.charged_bytes(),
            hard_bytes,
            trigger,
        });
        true
    }

    fn struck(
        &mut self,
        account: AccountId,
        trigger: Trigger,
        crossing: Option<Crossing>,
        signalled_ns: u64,
    ) -> Option<u64> {
        let id = self.armed.get(&account)?.choice.victim.id;
        self.tell_the_notifier(account, id);
        let armed = self.armed.remove(&account)?;
        let reading = self.ledger.account(account)?.reading();
        Some(self.follow(Blow {
            account,
            cgroup: None,
            trigger,
            state: String::new(),
            asked: None,
            killer: KilledBy::Daemon,
            choice: armed.choice,
            kept: armed.kept,
            victim: Some(armed.victim),
            used_bytes: crossing.map_or(reading.used_bytes, |crossing| crossing.bytes),
            signalled_ns,
            decide_ns: crossing.map(|crossing| signalled_ns.saturating_sub(crossing.time_ns)),
        }))
    }

    /// The victim was not killed by the notifier, which is to wait for it all the same.
    pub(super) fn tell_the_notifier(&mut self, account: AccountId, victim: ProcessId) {
        if let Err(error) = self.watch.take_latch(account, victim) {
            tracing::warn!(%account, "the notifier does not know of the victim: {error}");
        }
    }

    /// Takes over a victim that the notifier has killed.
    pub(super) fn adopt(&mut self, account: AccountId, killed: Killed, crossing: Crossing) {
        let id = killed.id;
        if self.dying.iter().any(|dying| dying.id == id) {
            return;
        }
        let armed = self.armed.remove(&account).filter(|armed| armed.choice.victim.id == id);
        let (victim, mut choice, kept) = match armed {
            Some(armed) => (Some(armed.victim), armed.choice, armed.kept),
            None => {
                let victim = Victim::open_as(identity(id, killed.uid)).ok();
                (victim, self.explain(account, killed.uid, id), String::new())
            }
        };
        // What the notifier counted at the kill is later and better than what was sampled before.
        let bytes = killed.pages * self.page_bytes;
        choice.victim.rss_bytes = bytes.saturating_sub(choice.victim.swap_bytes);
        self.follow(Blow {
            account,
            cgroup: None,
            trigger: Trigger::Notifier,
            state: String::new(),
            asked: None,
            killer: KilledBy::Kernel,
            choice,
            kept,
            victim,
            used_bytes: crossing.bytes,
            signalled_ns: crossing.time_ns,
            decide_ns: Some(0),
        });
    }

    /// The choice that the notifier made on its own, as far as it can still be seen.
    fn explain(&mut self, account: AccountId, owner: Uid, id: ProcessId) -> Choice {
        self.look_at_processes();
        let known = self.processes.iter().find(|process| process.id == id).copied();
        let gone = Process { account: account, id, exiting: true, ..Process::of(owner) };
        let victim = known.unwrap_or(gone);
        self.processes.retain(|process| process.id != id);
        let next =
            self.ledger.prepare(account, &self.processes, &self.protected).and_then(Result::ok);
        let considered = next.as_ref().map_or(0, |next| next.considered) + 1;
        let (runner_up, others) = (next.map(|next| next.victim), Vec::new());
        Choice { victim, others, runner_up, considered, cause: Cause::Growing }
    }

    /// Puts a kill on record and its victim among the dying.
    pub(super) fn follow(&mut self, blow: Blow) -> u64 {
        let Blow { account, cgroup, mut choice, used_bytes, signalled_ns, .. } = blow;
        let (id, bytes) = (choice.victim.id, choice.victim.charged_bytes());
        self.helpless.remove(&account);
        let limited = self.ledger.account_mut(account);
        let mut hard_bytes = limited.as_ref().map_or(0, |limited| limited.limit().hard_bytes());
        if let Some(limited) = limited.filter(|limited| limited.in_flight().is_none()) {
            let own_bytes = limited.reading().used_bytes;
            let used_bytes = if cgroup.is_some() { own_bytes } else { used_bytes };
            limited.signalled(id, bytes, used_bytes, signalled_ns);
            if blow.victim.is_none() {
                limited.gone(id, monotonic_ns());
            }
        }
        if let Some(limited) = cgroup.and_then(|cgroup| self.cgroups.accounts.account_mut(cgroup)) {
            hard_bytes = limited.limit().hard_bytes();
            limited.signalled(id, bytes, used_bytes, signalled_ns);
        }
        let (asked, machine) = (blow.asked.is_some(), blow.trigger.is_of_the_machine());
        let token = self.new_token();
        let dying = Dying::new(token, account, id, bytes, used_bytes, signalled_ns, blow.victim);
        self.watch_over(dying.asked(blow.asked).of_cgroup(cgroup));
        self.strike_others(&mut choice, asked, cgroup);
        let too_many = self.count_kill(blow.trigger, cgroup.map_or(account, AccountId::Cgroup));
        let of_another = machine || cgroup.is_some();
        let ago_micros = monotonic_ns().saturating_sub(signalled_ns) / 1000;
        let record = self.records.add(Why {
            id: 0,
            at_micros: epoch_micros().saturating_sub(ago_micros),
            account: if of_another {
                AccountRef::user(choice.victim.uid.0)
            } else {
                to_ref(account)
            },
            group: self.group_name(account).filter(|_| !of_another),
            cgroup: cgroup.and_then(|it| Some(self.cgroups.accounts.get(it)?.path().to_owned())),
            trigger: blow.trigger,
            state: blow.state,
            killer: Some(blow.killer),
            hard_bytes: if machine { 0 } else { hard_bytes },
            used_bytes,
            victim: Some(candidate(&choice.victim)),
            others: choice.others.iter().map(candidate).collect(),
            runner_up: choice.runner_up.as_ref().map(candidate),
            considered: choice.considered,
            rule: format!("{}{too_many}", choice.cause),
            kept: blow.kept,
            decide_micros: blow.decide_ns.map(|ns| ns / 1000),
            outcome: Outcome::Dying,
        });
        if let Some(dying) = self.dying.iter_mut().find(|dying| dying.token == token) {
            dying.record = Some(record);
        }
        record
    }

    /// Counts a decision to kill. Text for the record if that was one too many of late, which is said in
    /// the log once until it is over.
    fn count_kill(&mut self, trigger: Trigger, account: AccountId) -> String {
        let machine = trigger.is_of_the_machine();
        let sake = if machine { Sake::Machine } else { Sake::Account(account) };
        if !self.kill_rate.note(sake, monotonic_ns()) {
            self.too_many.remove(&sake);
            return String::new();
        }
        let RateLimit { most, within_ms } = self.kill_rate.limit();
        if self.too_many.insert(sake) && !machine {
            tracing::warn!(
                %account,
                "more than {most} victims within {within_ms} ms: the limit is enforced all the same; \
                 does something start them again and again?"
            );
        }
        format!("; more than {most} victims within {within_ms} ms")
    }

    /// Puts on record that nobody can be killed, once until something changes.
    fn record_helplessness(
        &mut self,
        account: AccountId,
        trigger: Trigger,
        why: &Unarmed,
    ) -> Option<u64> {
        if !self.helpless.insert(account) {
            return None;
        }
        let limited = self.ledger.account(account)?;
        let considered = self.processes.iter().filter(|process| process.account == account).count();
        Some(self.records.add(Why {
            group: self.group_name(account),
            rule: Cause::Growing.to_string(),
            ..helplessness(limited, trigger, considered, why.to_string())
        }))
    }
}

/// The record of a limit that is broken while nobody can be killed.
pub(super) fn helplessness(
    account: &Account,
    trigger: Trigger,
    considered: usize,
    reason: String,
) -> Why {
    Why {
        id: 0,
        at_micros: epoch_micros(),
        account: to_ref(account.id),
        group: None,
        cgroup: None,
        trigger,
        killer: None,
        hard_bytes: account.limit().hard_bytes(),
        used_bytes: account.reading().used_bytes,
        state: String::new(),
        victim: None,
        others: Vec::new(),
        runner_up: None,
        considered: considered as u32,
        rule: String::new(),
        kept: String::new(),
        decide_micros: None,
        outcome: Outcome::NoVictim { reason },
    }
}

pub(super) fn candidate(process: &Process) -> Candidate {
    Candidate {
        pid: process.id.pid,
        uid: Some(process.uid.0),
        comm: process.comm.to_string(),
        rss_bytes: process.rss_bytes,
        swap_bytes: process.swap_bytes,
        grown_bytes: process.grown_bytes,
    }
}
