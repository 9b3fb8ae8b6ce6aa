//! At the hard limit the victim dies, by the notifier's hand or ours.

use control::oomd::{Candidate, Killer as KilledBy, Outcome, Trigger, Why};
use memory_ledger::{Account, Cause, Choice, Phase, Process, ProcessId, RateLimit, Sake};
use memory_watch::Killed;
use reclaim::Victim;

use super::Killer;
use super::aftermath::{Asked, Dying};
use super::arm::{Unarmed, as_victim, identity};
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
    pub(super) uid: u32,
    /// The cgroup that it is for.
    pub(super) cgroup: Option<u32>,
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
        uid: u32,
        trigger: Trigger,
        crossing: Option<Crossing>,
    ) -> Option<u64> {
        if self.read(uid)? != Phase::Broken
            || self.ledger.account(uid)?.in_flight().is_some()
            || self.watch.usage(uid)?.latched
            || self.dying.iter().any(|dying| dying.uid == uid)
        {
            return None;
        }
        for _ in 0..TRIES {
            let hard_bytes = self.ledger.account(uid)?.limit().hard_bytes();
            // The notifier has the same victim in its slot: should it strike at this very moment,
            // it kills the same one. The latch, which needs a scan, can wait for the signal.
            if let Some(armed) = self.armed.get(&uid)
                && !armed.victim.has_exited()
                && self.told_before(&armed.choice.victim, trigger, hard_bytes)
                && armed.victim.send_kill().is_ok()
            {
                let signalled_ns = monotonic_ns();
                return self.struck(uid, trigger, crossing, signalled_ns);
            }
            if let Err(why) = self.try_arm(uid) {
                return self.record_helplessness(uid, trigger, &why);
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
        uid: u32,
        trigger: Trigger,
        crossing: Option<Crossing>,
        signalled_ns: u64,
    ) -> Option<u64> {
        let id = self.armed.get(&uid)?.choice.victim.id;
        self.tell_the_notifier(uid, id);
        let armed = self.armed.remove(&uid)?;
        let reading = self.ledger.account(uid)?.reading();
        Some(self.follow(Blow {
            uid,
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
    pub(super) fn tell_the_notifier(&mut self, account: u32, victim: ProcessId) {
        if let Err(error) = self.watch.take_latch(account, as_victim(victim)) {
            tracing::warn!(uid = account, "the notifier does not know of the victim: {error}");
        }
    }

    /// Takes over a victim that the notifier has killed.
    pub(super) fn adopt(&mut self, uid: u32, killed: Killed, crossing: Crossing) {
        let id = ProcessId { pid: killed.tgid, start_time: killed.start_time_ns };
        if self.dying.iter().any(|dying| dying.id == id) {
            return;
        }
        let armed = self.armed.remove(&uid).filter(|armed| armed.choice.victim.id == id);
        let (victim, mut choice, kept) = match armed {
            Some(armed) => (Some(armed.victim), armed.choice, armed.kept),
            None => {
                let victim = Victim::open_as(identity(id, killed.uid)).ok();
                (victim, self.explain(uid, killed.uid, id), String::new())
            }
        };
        // What the notifier counted at the kill is later and better than what was sampled before.
        let bytes = killed.pages * self.page_bytes;
        choice.victim.rss_bytes = bytes.saturating_sub(choice.victim.swap_bytes);
        self.follow(Blow {
            uid,
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
    fn explain(&mut self, uid: u32, owner: u32, id: ProcessId) -> Choice {
        self.look_at_processes();
        let known = self.processes.iter().find(|process| process.id == id).copied();
        let gone =
            Process { id, uid: owner, payer: Some(uid), exiting: true, ..Process::default() };
        let victim = known.unwrap_or(gone);
        self.processes.retain(|process| process.id != id);
        let next = self.ledger.prepare(uid, &self.processes, &self.protected).and_then(Result::ok);
        let considered = next.as_ref().map_or(0, |next| next.considered) + 1;
        let (runner_up, others) = (next.map(|next| next.victim), Vec::new());
        Choice { victim, others, runner_up, considered, cause: Cause::Growing }
    }

    /// Puts a kill on record and its victim among the dying.
    pub(super) fn follow(&mut self, blow: Blow) -> u64 {
        let Blow { uid, cgroup, mut choice, used_bytes, signalled_ns, .. } = blow;
        let (id, bytes) = (choice.victim.id, choice.victim.charged_bytes());
        self.helpless.remove(&uid);
        let account = self.ledger.account_mut(uid);
        let mut hard_bytes = account.as_ref().map_or(0, |account| account.limit().hard_bytes());
        if let Some(account) = account.filter(|account| account.in_flight().is_none()) {
            let own_bytes = account.reading().used_bytes;
            let used_bytes = if cgroup.is_some() { own_bytes } else { used_bytes };
            account.signalled(id, bytes, used_bytes, signalled_ns);
            if blow.victim.is_none() {
                account.gone(id, monotonic_ns());
            }
        }
        if let Some(account) = cgroup.and_then(|number| self.cgroups.accounts.account_mut(number)) {
            hard_bytes = account.limit().hard_bytes();
            account.signalled(id, bytes, used_bytes, signalled_ns);
        }
        let (asked, machine) = (blow.asked.is_some(), blow.trigger.is_of_the_machine());
        let token = self.new_token();
        let dying = Dying::new(token, uid, id, bytes, used_bytes, signalled_ns, blow.victim);
        self.watch_over(dying.asked(blow.asked).of_cgroup(cgroup));
        self.strike_others(&mut choice, asked, cgroup);
        let too_many = self.count_kill(blow.trigger, cgroup.unwrap_or(uid));
        let of_another = machine || cgroup.is_some();
        let ago_micros = monotonic_ns().saturating_sub(signalled_ns) / 1000;
        let record = self.records.add(Why {
            id: 0,
            at_micros: epoch_micros().saturating_sub(ago_micros),
            uid: if of_another { choice.victim.uid } else { uid },
            group: self.group_name(uid).filter(|_| !of_another),
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
    fn count_kill(&mut self, trigger: Trigger, account: u32) -> String {
        let machine = trigger.is_of_the_machine();
        let sake = if machine { Sake::Machine } else { Sake::User(account) };
        if !self.kill_rate.note(sake, monotonic_ns()) {
            self.too_many.remove(&sake);
            return String::new();
        }
        let RateLimit { most, within_ms } = self.kill_rate.limit();
        if self.too_many.insert(sake) && !machine {
            tracing::warn!(
                account,
                "more than {most} victims within {within_ms} ms: the limit is enforced all the same; \
                 does something start them again and again?"
            );
        }
        format!("; more than {most} victims within {within_ms} ms")
    }

    /// Puts on record that nobody can be killed, once until something changes.
    fn record_helplessness(&mut self, uid: u32, trigger: Trigger, why: &Unarmed) -> Option<u64> {
        if !self.helpless.insert(uid) {
            return None;
        }
        let account = self.ledger.account(uid)?;
        let considered = self.processes.iter().filter(|process| process.account() == uid).count();
        Some(self.records.add(Why {
            group: self.group_name(uid),
            rule: Cause::Growing.to_string(),
            ..helplessness(account, trigger, considered, why.to_string())
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
        uid: account.uid,
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
        uid: Some(process.uid),
        comm: process.comm.to_string(),
        rss_bytes: process.rss_bytes,
        swap_bytes: process.swap_bytes,
        grown_bytes: process.grown_bytes,
    }
}
