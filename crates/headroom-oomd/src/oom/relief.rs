//! Requests for memory that can be released before any process is killed, and for what a kill has
//! freed.

use std::collections::BTreeSet;

use memory_ledger::AccountId;

use crate::per_cpu_lists::PerCpuLists;
use crate::shrink::Shrinker;

/// Requests to daemons and clients that hold such memory.
#[derive(Default)]
pub(super) struct Relief {
    /// Requests idle memory from other daemons.
    shrinker: Option<Shrinker>,
    /// Returns freed pages to where they count.
    per_cpu_lists: Option<PerCpuLists>,
    /// Accounts whose unused leases are to be taken back.
    pressed: BTreeSet<AccountId>,
}

impl Relief {
    pub(super) fn new(shrinker: Option<Shrinker>, per_cpu_lists: Option<PerCpuLists>) -> Self {
        Self { shrinker, per_cpu_lists, pressed: BTreeSet::new() }
    }

    /// Requests idle memory from other daemons. Returns at once, and allocates nothing.
    pub(super) fn shrink(&self) {
        if let Some(shrinker) = &self.shrinker {
            shrinker.shrink();
        }
    }

    /// Makes memory available that a victim has freed. Returns at once, and allocates nothing.
    pub(super) fn collect_freed(&self) {
        if let Some(lists) = &self.per_cpu_lists {
            lists.empty();
        }
    }

    /// Marks accounts whose unused leases are to be taken back.
    pub(super) fn press(&mut self, accounts: impl IntoIterator<Item = AccountId>) {
        self.pressed.extend(accounts);
    }

    pub(super) fn take_pressed(&mut self) -> BTreeSet<AccountId> {
        std::mem::take(&mut self.pressed)
    }

    /// Memory released by other daemons since the start, bytes.
    pub(super) fn given_bytes(&self) -> u64 {
        self.shrinker.as_ref().map_or(0, Shrinker::given_bytes)
    }
}
