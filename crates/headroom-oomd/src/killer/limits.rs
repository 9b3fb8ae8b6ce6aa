//! A limit comes, changes, goes.

use control::oomd::{Explanation, Importance, Trigger};
use memory_ledger::{AccountId, Asker, Change, Limit, Phase, Process, Refusal, Source, Uid};
use memory_watch::{NotifierError, SlotLimit, UnarmedKills};

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
        account: AccountId,
        limit: Limit,
        source: Source,
        asker: Asker,
    ) -> Result<(), ChangeError> {
        let change = self.ledger.plan_set(account, limit, source, asker)?;
        Ok(self.put_into_force(change)?)
    }

    /// Clears a user's limit, or its own layer of it.
    pub fn clear_limit(&mut self, account: AccountId, asker: Asker) -> Result<(), ChangeError> {
        let change = self.ledger.plan_clear(account, asker)?;
        Ok(self.put_into_force(change)?)
    }

    pub(super) fn put_into_force(&mut self, change: Change) -> Result<(), NotifierError> {
        let account = change.account;
        let group = self.group_name(account);
        let Some(limit) = change.limit() else {
            // Our side first: whatever the watch says then, nobody is killed for this limit any more.
            self.ledger.apply(change);
            self.armed.remove(&account);
            self.helpless.remove(&account);
            tracing::info!(%account, group, "limit cleared");
            return self.watch.clear_limit(account);
        };
        let hard_pages = limit.hard_bytes() / self.page_bytes;
        // A soft limit of less than a page is one of a page.
        let soft_pages = (limit.soft_bytes() / self.page_bytes).max(1);
        let first = self.ledger.accounts().is_empty();
        self.say_what_is_charged(account, limit.count())?;
        self.watch.set_limit(account, SlotLimit { soft_pages, hard_pages })?;
        self.say_whether_to_spare(account)?;
        self.watch.remember(account, Origin::of(change.layers()).memo())?;
        self.ledger.apply(change);
        let (hard_bytes, soft_bytes) = (limit.hard_bytes(), limit.soft_bytes());
        tracing::info!(%account, group, hard_bytes, soft_bytes, "limit set");
        if first {
            self.next_scan_ns = 0;
        }
        self.helpless.remove(&account);
        match self.read(account) {
            Some(Phase::Broken) => drop(self.strike(account, Trigger::Request, None)),
            _ => self.arm_or_disarm(account),
        }
        Ok(())
    }

    /// With nobody armed the notifier ends whoever breaks the limit. The daemon may be one of this user's
    /// processes, and a rule may be about another: then it is the daemon that chooses.
    pub(super) fn say_whether_to_spare(&mut self, account: AccountId) -> Result<(), NotifierError> {
        let own_user = Uid(rustix::process::getuid().as_raw());
        let concerned = |user: Uid| user == own_user || self.stances.concern(user);
        let concern = match self.ledger.groups().get(account) {
            Some(group) => group.uids.iter().any(|user| concerned(*user)),
            None => account.user().is_some_and(concerned),
        };
        let kills = if concern { UnarmedKills::Forbidden } else { UnarmedKills::Allowed };
        self.watch.set_unarmed_kills(account, kills)
    }

    /// What users say of their own processes counts among those. Who shares a limit with others can offer a process of
    /// its own, but not have others' die in its place.
    pub(super) fn hear_own_words(&mut self, account: AccountId) {
        if let AccountId::User(user) = account {
            self.own_words.apply(user, &mut self.processes, false);
        } else if let Some(group) = self.ledger.groups().get(account) {
            for user in &group.uids {
                self.own_words.apply(*user, &mut self.processes, true);
            }
        }
    }

    /// Who would die if this user's limit were broken now, or the machine ran short. `None`: the user
    /// has no limit.
    pub fn explain_next(&mut self, account: Option<AccountId>) -> Option<Explanation> {
        let Some(account) = account else { return Some(self.explain_machine()) };
        if let AccountId::Cgroup(id) = account {
            return self.explain_cgroup(id);
        }
        self.read(account)?;
        self.look_at_processes();
        self.hear_own_words(account);
        let choice = self.ledger.prepare(account, &self.processes, &self.protected)?;
        let limited = self.ledger.account(account)?;
        let (used, hard) = (limited.reading().used_bytes >> 20, limited.limit().hard_bytes() >> 20);
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
            Asker::User(user) => process.uid == user,
        };
        // Whether another's process exists is nobody's business.
        let process = found.filter(own).ok_or_else(|| format!("you have no process {pid}"))?;
        self.own_words.say(&process, importance)?;
        self.arm_or_disarm(process.account);
        Ok(())
    }

    /// Looks now, at one user or at all, and kills where a limit is broken. Returns the decisions:
    /// new ones, and those about victims that are on their way out already.
    pub fn run(&mut self, only: Option<AccountId>) -> Vec<u64> {
        self.correct_accounts();
        self.take_events();
        let mut decisions = match only {
            None => self.run_in_cgroups(None),
            Some(AccountId::Cgroup(id)) => self.run_in_cgroups(Some(id)),
            Some(AccountId::User(_) | AccountId::Group(_)) => Vec::new(),
        };
        let wanted = |account: &AccountId| only.is_none_or(|only| only == *account);
        for account in self.accounts().into_iter().filter(wanted) {
            if self.read(account) != Some(Phase::Broken) {
                continue;
            }
            // Asked for explicitly: "nobody can be killed" is worth repeating.
            self.helpless.remove(&account);
            let new = self.strike(account, Trigger::Request, None);
            let mut dying = self.dying.iter().rev().filter(|dying| dying.account == account);
            decisions.extend(new.or_else(|| dying.find_map(|dying| dying.record)));
        }
        decisions
    }
}
