//! Limits and accounts that a daemon has left which was killed.
//!
//! Beside each account the kernel keeps a word of ours that says where the limit came from. With it, the next
//! daemon puts the configuration's limits into force as its own configuration has them, and those that were
//! set while running as they were.

use memory_ledger::{AccountId, Asker, Groups, Layers, Limit, Source};
use memory_watch::Inherited;

use super::Killer;

/// The limit in force is the user's own, lower than that of the base.
const OWN: u64 = 1;
/// The base was set while running.
const RUNTIME: u64 = 2;
/// The hard limit of the base, bytes, above the flags; all limits are whole multiples of it.
const UNIT_BYTES: u64 = 4096;
const BASE_SHIFT: u32 = 8;

/// Where a limit came from, in so far as its value does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// Hard limit that root has set while running, bytes; 0: none.
    base_bytes: u64,
    runtime: bool,
    own: bool,
}

impl Origin {
    pub(super) fn of(layers: &Layers) -> Self {
        let runtime = layers.layer(Source::Runtime);
        let base_bytes = runtime.map_or(0, |limit| limit.hard_bytes());
        Self { base_bytes, runtime: runtime.is_some(), own: layers.own().is_some() }
    }

    pub(super) fn memo(self) -> u64 {
        let flag = |set, flag| if set { flag } else { 0 };
        let base = (self.base_bytes / UNIT_BYTES) << BASE_SHIFT;
        base | flag(self.own, OWN) | flag(self.runtime, RUNTIME)
    }

    fn of_memo(memo: u64) -> Self {
        Self {
            base_bytes: (memo >> BASE_SHIFT).saturating_mul(UNIT_BYTES),
            runtime: memo & RUNTIME != 0,
            own: memo & OWN != 0,
        }
    }
}

impl Killer {
    /// Takes over the limits that root had set while running. To be called before the configuration's limits are
    /// put into force, which count less; but it is they that say which groups there are.
    pub fn inherit_runtime_limits(&mut self, groups: &Groups) {
        self.ledger.set_groups(groups.clone());
        for inherited in self.watch.inherited() {
            let origin = Origin::of_memo(inherited.memo);
            if !origin.runtime || origin.base_bytes == 0 {
                continue;
            }
            let soft_bytes = match origin.own {
                false => Some(inherited.limit.soft_pages * self.page_bytes),
                true => self.soft_bytes(origin.base_bytes),
            };
            self.inherit(&inherited, origin.base_bytes, soft_bytes, Asker::Root);
        }
    }

    /// Takes over the limits that users had set for themselves, and lets go of those that the configuration has no
    /// more. To be called when the configuration's limits are in force.
    pub fn inherit_own_limits(&mut self) {
        for inherited in self.watch.inherited() {
            let Inherited { account, limit, memo, .. } = inherited;
            if let (true, AccountId::User(owner)) = (Origin::of_memo(memo).own, account) {
                let soft_bytes = Some(limit.soft_pages * self.page_bytes);
                let hard_bytes = limit.hard_pages * self.page_bytes;
                self.inherit(&inherited, hard_bytes, soft_bytes, Asker::User(owner));
            }
            if self.ledger.account(account).is_none()
                && let Err(error) = self.watch.clear_limit(account)
            {
                tracing::warn!(%account, "cannot let go of a limit that nobody sets any more: {error}");
            }
        }
    }

    fn inherit(&mut self, inherited: &Inherited, hard: u64, soft: Option<u64>, asker: Asker) {
        let (account, count) = (inherited.account, inherited.count);
        let limit = Limit::new(hard, soft).map(|limit| limit.counting(count));
        let limit = limit.map_err(|e| e.to_string());
        let set = limit.and_then(|limit| {
            self.set_limit(account, limit, Source::Runtime, asker).map_err(|e| e.to_string())
        });
        if let Err(why) = &set {
            tracing::warn!(%account, hard, "a limit of the last daemon is not taken over: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use memory_ledger::Uid;

    use super::*;

    const ALICE: AccountId = AccountId::User(Uid(7));

    #[test]
    fn where_a_limit_came_from_fits_into_a_word() {
        for base_bytes in [0, 1 << 20, 3 << 40] {
            for (runtime, own) in [(false, false), (false, true), (true, false), (true, true)] {
                let origin = Origin { base_bytes, runtime, own };
                assert_eq!(Origin::of_memo(origin.memo()), origin);
            }
        }
    }

    #[test]
    fn a_users_own_limit_leaves_what_root_has_set_known() {
        let limit = |mib: u64| Limit::new(mib << 20, None).unwrap();
        let of = |layers: Layers| Origin::of_memo(Origin::of(&layers).memo());
        let (runtime, root, user) = (Source::Runtime, Asker::Root, Asker::User(Uid(7)));
        let config = Layers::default().with(ALICE, limit(200), Source::Config, root).unwrap();
        assert_eq!(of(config), Origin::default());
        let roots = config.with(ALICE, limit(100), runtime, root).unwrap();
        let both = Origin { base_bytes: 100 << 20, runtime: true, own: true };
        assert_eq!(of(roots.with(ALICE, limit(50), runtime, user).unwrap()), both);
        assert_eq!(of(roots), Origin { own: false, ..both });
        let own = Origin { own: true, ..Origin::default() };
        assert_eq!(of(config.with(ALICE, limit(50), runtime, user).unwrap()), own);
    }
}
