//! State that the detectors read and the executor changes.

use memory_ledger::{AccountId, ChargedAccount, Count, KillsInFlight};

use super::accounts::Accounts;
use super::process_snapshot::ProcessSnapshot;
use super::usage_monitor::UsageMonitor;
use crate::victim_details::VictimDetails;

/// Accounts, their actual usage, processes and kills in flight.
pub(super) struct SharedState {
    pub(super) accounts: Accounts,
    pub(super) usage: UsageMonitor,
    pub(super) snapshot: ProcessSnapshot,
    pub(super) kills: KillsInFlight,
    pub(super) details: VictimDetails,
}

impl SharedState {
    /// Scans all processes.
    pub(super) fn refresh_processes(&mut self) {
        self.snapshot.refresh(&self.accounts, &self.kills);
    }

    /// Sets the sizes of processes to what this counts, regardless of their accounts.
    pub(super) fn size_by(&mut self, count: Count) {
        self.snapshot.size_by(count, self.accounts.page_bytes());
    }

    /// A fresh reading of the account that a victim is charged to.
    pub(super) fn charged(&mut self, account: AccountId) -> ChargedAccount {
        self.accounts.read(account);
        let limited = self.accounts.ledger().account(account);
        let used_bytes = limited.map(|account| account.reading().used_bytes);
        ChargedAccount { account, used_bytes }
    }
}
