//! In a cgroup that holds too much, somebody dies.

use control::oomd::{Explanation, Killer as KilledBy, Trigger, Why};
use memory_ledger::cgroup::owner_of;
use memory_ledger::{AccountId, CgroupId, Choice, NoVictim, Phase, Scope, Settled, choose};
use reclaim::Victim;

use super::Killer;
use super::arm::{identity, kept_by};
use super::machine::explanation;
use super::strike::{Blow, helplessness};
use crate::account_ref::to_ref;
use crate::clock::monotonic_ns;

/// How often another victim is tried when the chosen one turns out to be gone, or elsewhere.
const TRIES: u32 = 3;

impl Killer {
    /// Kills the cgroup's victim, unless somebody of it is dying already. Returns the decision, which can be that nobody
    /// can be killed. The reading has to be fresh.
    pub(super) fn strike_in_cgroup(&mut self, cgroup: CgroupId, trigger: Trigger) -> Option<u64> {
        let it = self.cgroups.accounts.get(cgroup)?;
        let account = it.account();
        if account.phase() != Phase::Broken
            || account.in_flight().is_some()
            || self.dying.iter().any(|dying| dying.cgroup == Some(cgroup))
        {
            return None;
        }
        let (path, hard_bytes) = (it.path().to_owned(), account.limit().hard_bytes());
        let used_bytes = account.reading().used_bytes;
        for _ in 0..TRIES {
            let choice = match self.choose_in_cgroup(cgroup, &path)? {
                Ok(choice) => choice,
                Err(nobody) => return self.record_helpless_cgroup(cgroup, trigger, nobody),
            };
            let (id, account) = (choice.victim.id, choice.victim.account);
            let Ok(victim) = Victim::open_as(identity(id, choice.victim.uid)) else { continue };
            let kept = kept_by(id.pid);
            // It is pinned now: where it is from here on is what counts.
            let still_there = self.members_of(&path)?.binary_search(&id.pid).is_ok();
            if !still_there || !self.told_before(&choice.victim, trigger, hard_bytes) {
                continue;
            }
            if victim.hold_and_kill().is_err() {
                continue;
            }
            let signalled_ns = monotonic_ns();
            // Its user may be over a limit as well: nobody else has to die for that meanwhile.
            if self.read(account).is_some() {
                self.tell_the_notifier(account, id);
            }
            return Some(self.follow(Blow {
                account,
                cgroup: Some(cgroup),
                trigger,
                state: String::new(),
                killer: KilledBy::Daemon,
                choice,
                kept,
                victim: Some(victim),
                asked: None,
                used_bytes,
                signalled_ns,
                decide_ns: None,
            }));
        }
        None
    }

    /// Who of a cgroup is to die; `None`: nobody yet, as one of it is on the way out for another's sake, or it is gone.
    fn choose_in_cgroup(
        &mut self,
        cgroup: CgroupId,
        path: &str,
    ) -> Option<Result<Choice, NoVictim>> {
        self.look_at_processes();
        let members = self.members_of(path)?;
        let of_it = |pid: u32| members.binary_search(&pid).is_ok();
        if self.dying.iter().any(|dying| of_it(dying.id.pid)) {
            return None;
        }
        let account = self.cgroups.accounts.get(cgroup)?.account();
        let (limit, used_bytes) = (account.limit(), account.reading().used_bytes);
        let passed_over = account.stuck().to_vec();
        self.size_by(limit.count());
        self.processes.retain(|process| of_it(process.id.pid));
        let need_bytes = Some(used_bytes.saturating_sub(limit.hard_bytes()));
        let scope = Scope { account: None, passed_over: &passed_over, need_bytes };
        Some(choose(&scope, &self.processes, &self.protected))
    }

    /// How the wait for a cgroup's victim ended, if it has; `otherwise`: it does not wait for this one.
    pub(super) fn settled_in_cgroup(
        &mut self,
        at: usize,
        cgroup: CgroupId,
        otherwise: Settled,
    ) -> Option<Settled> {
        let id = self.dying[at].id;
        let account = self.cgroups.accounts.get(cgroup).map(|it| it.account());
        let Some(account) = account.filter(|it| it.in_flight().is_some_and(|it| it.id == id))
        else {
            return Some(otherwise);
        };
        let used_bytes = account.reading().used_bytes;
        if self.read_cgroup(cgroup, &mut false).is_none() {
            // Then time alone tells.
            self.cgroups.accounts.read(cgroup, used_bytes, monotonic_ns());
        }
        let (_, settled) = self.cgroups.accounts.account_mut(cgroup)?.settle(monotonic_ns())?;
        self.cgroups.accounts.look_soon();
        Some(settled)
    }

    /// Puts on record that nobody can be killed, once until something changes.
    fn record_helpless_cgroup(
        &mut self,
        cgroup: CgroupId,
        trigger: Trigger,
        nobody: NoVictim,
    ) -> Option<u64> {
        if !self.cgroups.helpless.insert(cgroup) {
            return None;
        }
        let reason = match nobody {
            NoVictim::NoProcess => "there is no process in the cgroup".to_owned(),
            nobody => nobody.to_string(),
        };
        let it = self.cgroups.accounts.get(cgroup)?;
        Some(self.records.add(Why {
            account: to_ref(owner_of(it.path()).map_or(it.account().id, AccountId::User)),
            cgroup: Some(it.path().to_owned()),
            ..helplessness(it.account(), trigger, self.processes.len(), reason)
        }))
    }

    /// Looks now, at one cgroup or at all, and kills where a limit is broken. Returns the decisions.
    pub(super) fn run_in_cgroups(&mut self, only: Option<CgroupId>) -> Vec<u64> {
        self.search_cgroups(monotonic_ns());
        let mut listed = false;
        let mut decisions = Vec::new();
        for cgroup in self.cgroup_ids() {
            let wanted = only.is_none_or(|only| only == cgroup);
            let look = self.read_cgroup(cgroup, &mut listed).filter(|_| wanted);
            if look.is_none_or(|look| look.phase != Phase::Broken) {
                continue;
            }
            // Asked for explicitly: "nobody can be killed" is worth repeating.
            self.cgroups.helpless.remove(&cgroup);
            let new = self.strike_in_cgroup(cgroup, Trigger::Request);
            let mut dying = self.dying.iter().rev().filter(|it| it.cgroup == Some(cgroup));
            decisions.extend(new.or_else(|| dying.find_map(|it| it.record)));
        }
        decisions
    }

    /// Who would die if this cgroup's limit were broken now. `None`: it has none.
    pub(super) fn explain_cgroup(&mut self, cgroup: CgroupId) -> Option<Explanation> {
        self.read_cgroup(cgroup, &mut false)?;
        let it = self.cgroups.accounts.get(cgroup)?;
        let path = it.path().to_owned();
        let (reading, limit) = (it.account().reading(), it.account().limit());
        let (used, hard) = (reading.used_bytes >> 20, limit.hard_bytes() >> 20);
        let state = format!("{used} MiB in use of {hard} MiB allowed in {path}");
        match self.choose_in_cgroup(cgroup, &path) {
            Some(choice) => Some(explanation(state, choice)),
            None => {
                Some(explanation(format!("{state}; one of it is dying"), Err(NoVictim::NoProcess)))
            }
        }
    }
}
