//! Limits and accounts that a daemon has left which was killed.
//!
//! Beside each account the kernel keeps a word of ours that says where the limit came from. With it, the next
//! daemon puts the configuration's limits into force as its own configuration has them, and those that were
//! set while running as they were.

use std::collections::{BTreeMap, BTreeSet};

use memory_ledger::{Asker, Limit, Source};
use memory_watch::Inherited;

use super::Killer;

/// The limit in force is the user's own, lower than that of the base.
const OWN: u64 = 1;
/// The base was set while running.
const RUNTIME: u64 = 2;
/// The hard limit of the base, bytes, above the flags; all limits are whole multiples of it.
const UNIT_BYTES: u64 = 4096;
const BASE_SHIFT: u32 = 8;

/// Where limits came from, in so far as their values do not tell.
#[derive(Debug, Default)]
pub(super) struct Origins(BTreeMap<u32, Origin>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Origin {
    /// Hard limit of the base, bytes; 0: there is only the user's own.
    base_bytes: u64,
    runtime: bool,
    own: bool,
}

impl Origin {
    fn memo(self) -> u64 {
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

impl Origins {
    pub(super) fn set(&mut self, uid: u32, limit: Limit, source: Source, asker: Asker) {
        let origin = self.0.entry(uid).or_default();
        match asker {
            Asker::Root => {
                let runtime = source == Source::Runtime;
                *origin = Origin { base_bytes: limit.hard_bytes(), runtime, own: false };
            }
            Asker::User(_) => origin.own = true,
        }
    }

    pub(super) fn clear(&mut self, uid: u32, asker: Asker) {
        match (asker, self.0.get_mut(&uid)) {
            (Asker::User(_), Some(origin)) => origin.own = false,
            _ => drop(self.0.remove(&uid)),
        }
    }

    pub(super) fn memo(&self, uid: u32) -> u64 {
        self.0.get(&uid).copied().unwrap_or_default().memo()
    }
}

impl Killer {
    /// Takes over the limits that root had set while running. To be called before the configuration's limits are
    /// put into force, which do not count for these users.
    pub fn inherit_runtime_limits(&mut self) -> BTreeSet<u32> {
        let mut taken = BTreeSet::new();
        for inherited in self.watch.inherited() {
            let origin = Origin::of_memo(inherited.memo);
            if !origin.runtime || origin.base_bytes == 0 {
                continue;
            }
            let soft_bytes = match origin.own {
                false => Some(inherited.limit.soft_pages * self.page_bytes),
                true => self.soft_bytes(origin.base_bytes),
            };
            if self.inherit(inherited.uid, origin.base_bytes, soft_bytes, Asker::Root) {
                taken.insert(inherited.uid);
            }
        }
        taken
    }

    /// Takes over the limits that users had set for themselves, and lets go of those that the configuration has no
    /// more. To be called when the configuration's limits are in force.
    pub fn inherit_own_limits(&mut self) {
        for Inherited { uid, limit, memo } in self.watch.inherited() {
            if Origin::of_memo(memo).own {
                let soft_bytes = Some(limit.soft_pages * self.page_bytes);
                let hard_bytes = limit.hard_pages * self.page_bytes;
                self.inherit(uid, hard_bytes, soft_bytes, Asker::User(uid));
            }
            if self.ledger.account(uid).is_none()
                && let Err(error) = self.watch.clear_limit(uid)
            {
                tracing::warn!(uid, "cannot let go of a limit that nobody sets any more: {error}");
            }
        }
    }

    fn inherit(&mut self, uid: u32, hard: u64, soft: Option<u64>, asker: Asker) -> bool {
        let limit = Limit::new(hard, soft).map_err(|e| e.to_string());
        let set = limit.and_then(|limit| {
            self.set_limit(uid, limit, Source::Runtime, asker).map_err(|e| e.to_string())
        });
        if let Err(why) = &set {
            tracing::warn!(uid, hard, "a limit of the last daemon is not taken over: {why}");
        }
        set.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_users_own_limit_leaves_the_base_known_until_root_speaks_again() {
        let limit = |mib: u64| Limit::new(mib << 20, None).unwrap();
        let mut origins = Origins::default();
        origins.set(7, limit(100), Source::Runtime, Asker::Root);
        origins.set(7, limit(50), Source::Runtime, Asker::User(7));
        let both = Origin { base_bytes: 100 << 20, runtime: true, own: true };
        assert_eq!(Origin::of_memo(origins.memo(7)), both);
        origins.clear(7, Asker::User(7));
        assert_eq!(Origin::of_memo(origins.memo(7)), Origin { own: false, ..both });
        origins.set(7, limit(60), Source::Config, Asker::Root);
        let config = Origin { base_bytes: 60 << 20, runtime: false, own: false };
        assert_eq!(Origin::of_memo(origins.memo(7)), config);
        origins.clear(7, Asker::Root);
        assert_eq!(origins.memo(7), 0);
    }
}
