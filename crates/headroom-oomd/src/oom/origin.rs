//! The origin of a limit, stored as a memo beside the account in the kernel.

use memory_ledger::{LimitLayers, Source};

/// The limit in force is the user's own, lower than that of the base.
const OWN: u64 = 1;
/// The base was set at runtime.
const RUNTIME: u64 = 2;
/// Unit of the base's hard limit, bytes. All limits are multiples of it. The base is stored above
/// the flags.
const UNIT_BYTES: u64 = 4096;
const BASE_SHIFT: u32 = 8;

/// The origin of a limit, as far as it does not follow from the limit's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// Hard limit that root set at runtime, bytes; 0: none.
    pub(super) base_bytes: u64,
    pub(super) runtime: bool,
    pub(super) own: bool,
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
