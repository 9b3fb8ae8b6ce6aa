//! What the coordinator of leases reads here, and what it tells: whom memory was promised.

use std::collections::BTreeSet;

use memory_ledger::{AccountId, ProcessId, Stance, Standing};
use memory_watch::{Backend, Precision, ProcessSample};

use super::Killer;

impl Killer {
    /// Where a limited user stands now. `None`: it has no limit.
    pub fn standing(&mut self, account: AccountId) -> Option<Standing> {
        self.read(account)?;
        let limited = self.ledger.account(account)?;
        Some(Standing {
            hard_bytes: limited.limit().hard_bytes(),
            soft_bytes: limited.limit().soft_bytes(),
            // A victim's memory is promised to others when it is back, not before.
            used_bytes: limited.reading().used_bytes,
        })
    }

    /// Changes of a user's account so far: the same number before and after a look means that
    /// nothing has moved meanwhile.
    pub fn account_changes(&self, account: AccountId) -> u64 {
        self.watch.usage(account).map_or(0, |usage| usage.events)
    }

    /// How exact a user's account is to be: [`Precision::Exact`] for a promise that may be the last one to fit. Its limit
    /// may be gone by now: then there is nothing to keep.
    pub fn set_precision(&mut self, account: AccountId, precision: Precision) {
        if self.ledger.account(account).is_none() {
            return;
        }
        if let Err(error) = self.watch.set_precision(account, precision) {
            tracing::warn!(%account, "cannot keep the account exact: {error}");
        }
    }

    /// Accounts are as old as the last scan: one is due before a promise near the limit.
    pub fn refresh_if_polling(&mut self) {
        if self.watch.backend() == Backend::ProcPolling {
            self.correct_accounts();
        }
    }

    /// What one process of a limited user has, and whose account that is in, bytes.
    pub fn resident(&self, process: &ProcessSample) -> Option<(AccountId, u64)> {
        match self.watch.charged(process) {
            Ok(charged) => charged.map(|it| (it.account, it.pages * self.page_bytes)),
            Err(error) => {
                tracing::warn!(pid = process.tgid, "cannot read an account: {error}");
                None
            }
        }
    }

    /// A process as the watch knows it.
    pub fn find_process(&mut self, pid: u32) -> Option<ProcessSample> {
        if let Err(error) = self.watch.processes(&mut self.samples) {
            tracing::warn!("cannot list processes: {error}");
            return None;
        }
        self.samples.iter().find(|sample| sample.tgid == pid).copied()
    }

    /// All processes as the watch knows them.
    pub fn all_processes(&mut self) -> &[ProcessSample] {
        if let Err(error) = self.watch.processes(&mut self.samples) {
            tracing::warn!("cannot list processes: {error}");
            self.samples.clear();
        }
        &self.samples
    }

    /// So much was promised to a process altogether; `None`: nothing (any more). While it stays
    /// within that, others of its user die before it.
    pub fn entitle(&mut self, id: ProcessId, bytes: Option<u64>) {
        match bytes {
            Some(bytes) => drop(self.entitled.insert(id, bytes)),
            None => drop(self.entitled.remove(&id)),
        }
    }

    /// What can still be promised to anybody before the machine reaches its soft level, bytes, as of the
    /// last look at it. `None`: that level is far, or not watched.
    pub fn machine_room(&self) -> Option<u64> {
        self.machine.as_ref().and_then(|watch| watch.room)
    }

    /// Whoever holds promised memory in reserve is to be asked for it.
    pub(super) fn press_everybody(&mut self) {
        self.pressed.extend(self.ledger.accounts().iter().map(|account| account.id));
    }

    /// Users that have crossed their soft limit since the last call, all when the machine nears its:
    /// whoever holds promised memory of theirs in reserve is to be asked for it.
    pub fn take_pressed(&mut self) -> BTreeSet<AccountId> {
        std::mem::take(&mut self.pressed)
    }

    /// Spares who stays within what it was promised.
    pub(super) fn spare_the_entitled(&mut self) {
        if self.entitled.is_empty() {
            return;
        }
        for process in &mut self.processes {
            let entitled = self.entitled.get(&process.id);
            if process.stance == Stance::Ordinary
                && entitled.is_some_and(|bytes| process.charged_bytes() <= *bytes)
            {
                process.stance = Stance::Avoid;
            }
        }
    }
}
