//! The grace of the first limits after the start: of users that are over them already. The daemon
//! was stopped with a limit that was raised at run time, or it is new on this machine.

use std::collections::{BTreeMap, BTreeSet};

use memory_ledger::{AccountId, Change, Count, Grace, Limit, Uid};
use memory_watch::NotifierError;

use super::accounts::after_seconds;
use super::charge::size_by;
use super::manager::OomManager;

/// What was in force, and in use, before the daemon was there.
#[derive(Debug)]
pub struct FirstGrace {
    /// Limits that the kernel goes on to enforce, or that an earlier program has passed.
    limits: BTreeMap<AccountId, Limit>,
    /// Sums of resident sets and swapped pages, bytes.
    used_bytes: BTreeMap<AccountId, u64>,
    /// End of the grace, nanoseconds, CLOCK_MONOTONIC.
    until_ns: u64,
}

impl FirstGrace {
    /// Looks at all processes. The groups of the configuration are known already.
    pub(super) fn new(manager: &mut OomManager, grace_s: u32) -> Self {
        let page_bytes = manager.accounts().page_bytes();
        let inherited = manager.inherited().into_iter().filter_map(|it| {
            Some((it.account, Limit::new(it.limit.hard_pages * page_bytes, None).ok()?))
        });
        let limits = inherited.collect();
        let (mut used_bytes, mut seen) = (BTreeMap::<AccountId, u64>::new(), BTreeSet::new());
        let groups = manager.accounts().ledger().groups().clone();
        for sample in manager.list_processes() {
            if sample.mm_id != 0 && !seen.insert(sample.mm_id) {
                continue;
            }
            let owner = Some(sample.namespace_owner).filter(|owner| *owner != Uid::ROOT);
            let size = size_by(Count::default(), sample, page_bytes);
            let used = used_bytes.entry(groups.account_of(owner.unwrap_or(sample.uid)));
            *used.or_default() += size.rss_bytes + size.swap_bytes;
        }
        Self { limits, used_bytes, until_ns: after_seconds(grace_s) }
    }

    /// Applies a limit. If its account is over it, and was within the one before, that one holds
    /// until the end of the grace, and the users are notified.
    pub(super) fn apply(
        &self,
        manager: &mut OomManager,
        change: Change,
    ) -> Result<(), NotifierError> {
        let account = change.account;
        let limit = self.limits.get(&account).copied().unwrap_or(Limit::NONE);
        let used_bytes = self.used_bytes.get(&account).copied().unwrap_or(0);
        let grace = Grace { limit, until_ns: self.until_ns };
        let change = manager.accounts().ledger().with_first_grace(change, grace, used_bytes);
        let has_grace = change.layers().grace().is_some();
        manager.apply_limit(change)?;
        if has_grace {
            manager.accounts_mut().read(account);
            manager.warn_of_grace(account);
        }
        Ok(())
    }
}
