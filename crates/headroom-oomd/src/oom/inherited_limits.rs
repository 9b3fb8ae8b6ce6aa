//! Limits and accounts left by an earlier daemon.
//!
//! Beside each account the kernel keeps a memo with the origin of the limit. From it, the next
//! daemon restores the limits that were set at runtime; limits of the configuration come from its
//! own configuration. Without pins, or with the pins of another version of the BPF programs, the
//! memos are those of the [file of limits](crate::limits_file).

use memory_ledger::{AccountId, Count, Groups, Limit, LimitError, Requester, Source};
use memory_watch::{Inherited, SlotLimit};
use serde::{Deserialize, Serialize};

use super::manager::OomManager;
use super::origin::Origin;

/// A limit with its origin.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SavedLimit {
    account: AccountId,
    soft_pages: u64,
    hard_pages: u64,
    count: Count,
    memo: u64,
}

impl From<SavedLimit> for Inherited {
    fn from(saved: SavedLimit) -> Self {
        let SavedLimit { account, soft_pages, hard_pages, count, memo } = saved;
        Self { account, limit: SlotLimit { soft_pages, hard_pages }, count, memo }
    }
}

impl OomManager {
    /// The limits of users and groups in force.
    pub fn save(&self) -> Vec<SavedLimit> {
        let page_bytes = self.accounts().page_bytes();
        let accounts = self.accounts().ledger().accounts().iter();
        let save = |account: &memory_ledger::Account| {
            let limit = account.limit();
            SavedLimit {
                account: account.id,
                soft_pages: limit.soft_bytes() / page_bytes,
                hard_pages: limit.hard_bytes() / page_bytes,
                count: limit.count(),
                memo: Origin::of(&account.layers()).memo(),
            }
        };
        accounts.map(save).collect()
    }

    /// Limits of the daemon before this one: those that the watch has found in the kernel, or those
    /// of the file if it has found none.
    pub(super) fn inherited(&self) -> Vec<Inherited> {
        let found = self.accounts().watch().inherited();
        if found.is_empty() { self.filed_limits.clone() } else { found }
    }
}

/// Takes over the limits that root set at runtime. Must be called before the limits of the
/// configuration are applied, over which they take precedence. `groups` are those of the
/// configuration.
pub(super) fn inherit_runtime_limits(manager: &mut OomManager, groups: &Groups) {
    manager.state.accounts.ledger_mut().set_groups(groups.clone());
    for inherited in manager.inherited() {
        let origin = Origin::of_memo(inherited.memo);
        if !origin.runtime || origin.base_bytes == 0 {
            continue;
        }
        let page_bytes = manager.accounts().page_bytes();
        // Otherwise the user's own limit was in force, or the limit before a grace.
        let is_base = inherited.limit.hard_pages * page_bytes == origin.base_bytes;
        let soft_bytes =
            (is_base && !origin.own).then_some(inherited.limit.soft_pages * page_bytes);
        let limit = Limit::new(origin.base_bytes, soft_bytes);
        inherit(manager, &inherited, limit, Requester::Root);
    }
}

/// Takes over the limits that users set for themselves, and drops limits that are no longer in the
/// configuration. Must be called after the limits of the configuration are applied.
pub(super) fn inherit_own_limits(manager: &mut OomManager) {
    for inherited in manager.inherited() {
        let account = inherited.account;
        // Only users have limits of their own.
        if let Some(uid) = account.user()
            && Origin::of_memo(inherited.memo).own
        {
            let page_bytes = manager.accounts().page_bytes();
            let soft_bytes = Some(inherited.limit.soft_pages * page_bytes);
            let limit = Limit::new(inherited.limit.hard_pages * page_bytes, soft_bytes);
            inherit(manager, &inherited, limit, Requester::User(uid));
        }
    }
    for Inherited { account, .. } in manager.accounts().watch().inherited() {
        if manager.accounts().ledger().account(account).is_none()
            && let Err(error) = manager.state.accounts.watch_mut().clear_limit(account)
        {
            tracing::warn!(%account, "cannot drop a limit without a source: {error}");
        }
    }
}

fn inherit(
    manager: &mut OomManager,
    inherited: &Inherited,
    limit: Result<Limit, LimitError>,
    requester: Requester,
) {
    let Inherited { account, count, .. } = *inherited;
    let set = match limit {
        Ok(limit) => manager
            .set_limit(account, limit.counting(count), Source::Runtime, requester)
            .map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(why) = set {
        let hard_pages = inherited.limit.hard_pages;
        tracing::warn!(%account, hard_pages, "a limit of the last daemon is not taken over: {why}");
    }
}
