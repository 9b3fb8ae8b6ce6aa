//! What an earlier daemon has left: limits, accounts, and victims that still exit.
//!
//! Beside each account the kernel keeps a memo with the origin of the limit. From it, the next
//! daemon restores the limits that were set at runtime; limits of the configuration come from its
//! own configuration. Without pins, or with the pins of another version of the BPF programs, the
//! memos are those of the [file of limits](crate::limits_file).

use control::oomd::{Candidate, Outcome, Why};
use headroom_linux::clock::{epoch_micros, monotonic_ns};
use memory_ledger::{
    AccountId, Count, Groups, Limit, LimitError, LimitLayers, Process, Requester, Source,
};
use memory_watch::{Inherited, SlotLimit};
use serde::{Deserialize, Serialize};

use super::manager::OomManager;

/// The limit in force is the user's own, lower than that of the base.
const OWN: u64 = 1;
/// The base was set at runtime.
const RUNTIME: u64 = 2;
/// Unit of the base's hard limit, bytes. All limits are multiples of it. The base is stored above
/// the flags.
const UNIT_BYTES: u64 = 4096;
const BASE_SHIFT: u32 = 8;

/// The origin of a limit, as far as it does not follow from the limit's value: stored as a memo
/// beside the account in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// Hard limit that root set at runtime, bytes; 0: none.
    base_bytes: u64,
    runtime: bool,
    own: bool,
}

impl Origin {
    pub(super) fn of(layers: &LimitLayers) -> Self {
        let runtime = layers.layer(Source::Runtime);
        let base_bytes = runtime.map_or(0, |limit| limit.hard_bytes());
        // A grace does not outlive the daemon: the limit in force is neither of both then.
        let own = layers.own().is_some() && layers.grace().is_none();
        Self { base_bytes, runtime: runtime.is_some(), own }
    }

    pub(super) fn memo(self) -> u64 {
        let flag = |set, flag| if set { flag } else { 0 };
        let base = (self.base_bytes / UNIT_BYTES) << BASE_SHIFT;
        base | flag(self.own, OWN) | flag(self.runtime, RUNTIME)
    }

    pub(super) fn of_memo(memo: u64) -> Self {
        Self {
            base_bytes: (memo >> BASE_SHIFT).saturating_mul(UNIT_BYTES),
            runtime: memo & RUNTIME != 0,
            own: memo & OWN != 0,
        }
    }
}

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

/// Awaits the victims that still exit as if this daemon had killed them, so that their memory
/// counts, and their decisions get an outcome. That of the others is unknown.
pub(super) fn follow_earlier_kills(manager: &mut OomManager) {
    let OomManager { records, state, executor, system_monitor, .. } = manager;
    let dying = records.dying();
    if dying.is_empty() {
        return;
    }
    state.refresh_processes();
    for why in dying {
        let victim = state.snapshot.processes().iter().find(|it| is_victim(it, &why)).copied();
        let awaited = victim.and_then(|victim| {
            let ago_micros = epoch_micros().saturating_sub(why.at_micros);
            let at_ns = monotonic_ns().saturating_sub(ago_micros.saturating_mul(1000));
            let token = executor.follow_earlier(&victim, at_ns, state).ok()?;
            Some((token, victim.freed_bytes()))
        });
        match awaited {
            Some((token, bytes)) => {
                state.kills.set_record(token, why.id);
                system_monitor.credit(bytes);
            }
            None => records.finish(why.id, Outcome::Unknown),
        }
    }
}

/// A pid is not reused before its process has exited, and no signal depends on it here.
fn is_victim(process: &Process, why: &Why) -> bool {
    let named = |it: &Candidate| it.pid == process.id.pid && it.comm == process.comm.to_string();
    process.exiting && why.victim.as_ref().is_some_and(named)
}

#[cfg(test)]
mod tests {
    use memory_ledger::{AccountId, Limit, Requester, Uid};

    use super::*;

    #[test]
    fn where_a_limit_came_from_fits_into_a_memo() {
        for base_bytes in [0, 1 << 20, 3 << 40] {
            for (runtime, own) in [(false, false), (false, true), (true, false), (true, true)] {
                let origin = Origin { base_bytes, runtime, own };
                assert_eq!(Origin::of_memo(origin.memo()), origin);
            }
        }
    }

    #[test]
    fn a_users_own_limit_keeps_the_limit_of_root() {
        let limit = |mib: u64| Limit::new(mib << 20, None).unwrap();
        let of = |layers: LimitLayers| Origin::of_memo(Origin::of(&layers).memo());
        let (runtime, root, user) = (Source::Runtime, Requester::Root, Requester::User(Uid(7)));
        let config = LimitLayers::default()
            .with(AccountId::User(Uid(7)), limit(200), Source::Config, root)
            .unwrap();
        assert_eq!(of(config), Origin::default());
        let roots = config.with(AccountId::User(Uid(7)), limit(100), runtime, root).unwrap();
        let both = Origin { base_bytes: 100 << 20, runtime: true, own: true };
        assert_eq!(
            of(roots.with(AccountId::User(Uid(7)), limit(50), runtime, user).unwrap()),
            both
        );
        assert_eq!(of(roots), Origin { own: false, ..both });
        let own = Origin { own: true, ..Origin::default() };
        assert_eq!(
            of(config.with(AccountId::User(Uid(7)), limit(50), runtime, user).unwrap()),
            own
        );
    }
}
