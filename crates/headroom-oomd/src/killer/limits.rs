//! A limit comes, changes, goes.

use control::oomd::{Explanation, Importance, Trigger};
use memory_ledger::{Asker, Change, Limit, Phase, Process, Refusal, Source, is_cgroup};
use memory_watch::{NotifierError, SlotLimit};

use super::Killer;
use super::inherit::Origin;
use super::machine::explanation;

/// Why a limit was not set or cleared.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The asker may not.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The watch could not.
    #[error(transparent)]
    Watch(#[from] NotifierError),
}

impl Killer {
    /// Sets a user's limit. One that is broken already takes effect at once.
    pub fn set_limit(
        &mut self,
        uid: u32,
        limit: Limit,
        source: Source,
        asker: Asker,
    ) -> Result<(), ChangeError> {
        let change = self.ledger.plan_set(uid, limit, source, asker)?;
        Ok(self.put_into_force(change)?)
    }

    /// Clears a user's limit, or its own layer of it.
    pub fn clear_limit(&mut self, uid: u32, asker: Asker) -> Result<(), ChangeError> {
        let change = self.ledger.plan_clear(uid, asker)?;
        Ok(self.put_into_force(change)?)
    }

    pub(super) fn put_into_force(&mut self, change: Change) -> Result<(), NotifierError> {
        let uid = change.uid;
        let group = self.group_name(uid);
        let Some(limit) = change.limit() else {
            // Our side first: whatever the watch says then, nobody is killed for this limit any more.
            self.ledger.apply(change);
            self.armed.remove(&uid);
            self.helpless.remove(&uid);
            tracing::info!(uid, group, "limit cleared");
            return self.watch.clear_limit(uid);
        };
        let hard_pages = limit.hard_bytes() / self.page_bytes;
        // A soft limit of less than a page is one of a page.
        let soft_pages = (limit.soft_bytes() / self.page_bytes).max(1);
        let first = self.ledger.accounts().is_empty();
        self.say_what_is_charged(uid, limit.count())?;
        self.watch.set_limit(uid, SlotLimit { soft_pages, hard_pages })?;
        self.say_whether_to_spare(uid)?;
        self.watch.remember(uid, Origin::of(change.layers()).memo())?;
        self.ledger.apply(change);
        let (hard_bytes, soft_bytes) = (limit.hard_bytes(), limit.soft_bytes());
        tracing::info!(uid, group, hard_bytes, soft_bytes, "limit set");
        if first {
            self.next_scan_ns = 0;
        }
        self.helpless.remove(&uid);
        match self.read(uid) {
            Some(Phase::Broken) => drop(self.strike(uid, Trigger::Request, None)),
            _ => self.arm_or_disarm(uid),
        }
        Ok(())
    }

    /// With nobody armed the notifier ends whoever breaks the limit. The daemon may be one of this user's
    /// processes, and a rule may be about another: then it is the daemon that chooses.
    pub(super) fn say_whether_to_spare(&mut self, uid: u32) -> Result<(), NotifierError> {
        let own_user = rustix::process::getuid().as_raw();
        let concerned = |uid: u32| uid == own_user || self.stances.concern(uid);
        let concern = match self.ledger.groups().get(uid) {
            Some(group) => group.uids.iter().any(|uid| concerned(*uid)),
            None => concerned(uid),
        };
        self.watch.spare_unarmed(uid, concern)
    }

    /// What users say of their own processes counts among those. Who shares a limit with others can offer a process of
    /// its own, but not have others' die in its place.
    pub(super) fn hear_own_words(&mut self, account: u32) {
        let Some(group) = self.ledger.groups().get(account) else {
            return self.own_words.apply(account, &mut self.processes, false);
        };
        for uid in &group.uids {
            self.own_words.apply(*uid, &mut self.processes, true);
        }
    }

    /// Who would die if this user's limit were broken now, or the machine ran short. `None`: the user
    /// has no limit.
    pub fn explain_next(&mut self, uid: Option<u32>) -> Option<Explanation> {
        let Some(uid) = uid else { return Some(self.explain_machine()) };
        if is_cgroup(uid) {
            return self.explain_cgroup(uid);
        }
        self.read(uid)?;
        self.look_at_processes();
        self.hear_own_words(uid);
        let choice = self.ledger.prepare(uid, &self.processes, &self.protected)?;
        let account = self.ledger.account(uid)?;
        let (used, hard) = (account.reading().used_bytes >> 20, account.limit().hard_bytes() >> 20);
        Some(explanation(format!("{used} MiB in use of {hard} MiB allowed"), choice))
    }

    /// Takes note of how a user sees one of its own processes. Who asks as root may speak of anybody's, for its owner.
    pub fn set_importance(
        &mut self,
        asker: Asker,
        pid: u32,
        importance: Importance,
    ) -> Result<(), String> {
        self.look_at_processes();
        let found = self.processes.iter().find(|process| process.id.pid == pid).copied();
        let own = |process: &Process| match asker {
            Asker::Root => true,
            Asker::User(uid) => process.uid == uid,
        };
        // Whether another's process exists is nobody's business.
        let process = found.filter(own).ok_or_else(|| format!("you have no process {pid}"))?;
        self.own_words.say(&process, importance)?;
        self.arm_or_disarm(process.account());
        Ok(())
    }

    /// Looks now, at one user or at all, and kills where a limit is broken. Returns the decisions:
    /// new ones, and those about victims that are on their way out already.
    pub fn run(&mut self, uid: Option<u32>) -> Vec<u64> {
        self.correct_accounts();
        self.take_events();
        let mut decisions = Vec::new();
        if uid.is_none_or(is_cgroup) {
            decisions = self.run_in_cgroups(uid);
        }
        for user in self.users().into_iter().filter(|user| uid.is_none_or(|uid| uid == *user)) {
            if self.read(user) != Some(Phase::Broken) {
                continue;
            }
            // Asked for explicitly: "nobody can be killed" is worth repeating.
            self.helpless.remove(&user);
            let new = self.strike(user, Trigger::Request, None);
            let on_the_way =
                || self.dying.iter().rev().filter(|d| d.uid == user).find_map(|d| d.record);
            decisions.extend(new.or_else(on_the_way));
        }
        decisions
    }
}
