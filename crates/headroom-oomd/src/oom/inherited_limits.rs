//! Limits and accounts left by a daemon that was killed.
//!
//! Beside each account the kernel keeps a memo with the origin of the limit. From it, the next
//! daemon restores the limits that were set at runtime; limits of the configuration come from its
//! own configuration.

use memory_ledger::{Groups, Limit, LimitError, Requester, Source};
use memory_watch::Inherited;

use super::manager::OomManager;
use super::origin::Origin;

/// Takes over the limits that root set at runtime. Must be called before the limits of the
/// configuration are applied, over which they take precedence. `groups` are those of the
/// configuration.
pub(super) fn inherit_runtime_limits(manager: &mut OomManager, groups: &Groups) {
    manager.state.accounts.ledger_mut().set_groups(groups.clone());
    for inherited in manager.accounts().watch().inherited() {
        let origin = Origin::of_memo(inherited.memo);
        if !origin.runtime || origin.base_bytes == 0 {
            continue;
        }
        let soft_bytes = if origin.own {
            manager.accounts().soft_bytes(origin.base_bytes)
        } else {
            Some(inherited.limit.soft_pages * manager.accounts().page_bytes())
        };
        let limit = Limit::new(origin.base_bytes, soft_bytes);
        inherit(manager, &inherited, limit, Requester::Root);
    }
}

/// Takes over the limits that users set for themselves, and drops limits that are no longer in the
/// configuration. Must be called after the limits of the configuration are applied.
pub(super) fn inherit_own_limits(manager: &mut OomManager) {
    for inherited in manager.accounts().watch().inherited() {
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
