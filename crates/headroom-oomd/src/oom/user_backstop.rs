//! Keeps the backstop of each limited user in force, if the configuration has one.

use std::io;

use memory_ledger::{AccountId, Backstop, Limit};

use super::accounts::Accounts;
use crate::backstop_worker::{BackstopWorker, SYSTEMCTL};

/// Limits of the memory controller that follow users' limits.
#[derive(Default)]
pub(super) struct UserBackstop {
    /// `None`: switched off.
    worker: Option<BackstopWorker>,
}

impl UserBackstop {
    /// Whether users' limits have a backstop.
    pub(super) fn is_on(&self) -> bool {
        self.worker.is_some()
    }

    /// Sets the backstop of all limited users, now and at each change of a limit.
    pub(super) fn switch_on(&mut self, accounts: &Accounts) -> io::Result<()> {
        self.worker = Some(BackstopWorker::start(SYSTEMCTL)?);
        for account in accounts.ledger().accounts() {
            self.follow(account.id, Some(account.limit()));
        }
        Ok(())
    }

    /// Removes the backstop of all limited users.
    pub(super) fn switch_off(&mut self, accounts: &Accounts) {
        for account in accounts.ledger().accounts() {
            self.follow(account.id, None);
        }
        self.worker = None;
    }

    /// Follows a change of a limit; `None`: it has ended. An exempt user has no backstop.
    pub(super) fn follow(&self, account: AccountId, limit: Option<Limit>) {
        let limit = limit.filter(|limit| !limit.is_none());
        if let (Some(worker), Some(uid)) = (&self.worker, Backstop::user_of(account)) {
            worker.set(uid, limit.map(Backstop::of));
        }
    }

    /// The current degradation as a sentence.
    pub(super) fn degraded(&self) -> Option<String> {
        self.worker.as_ref()?.degraded()
    }
}
