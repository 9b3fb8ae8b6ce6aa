//! Work of the event loop that each owner may cause per second.

use std::collections::BTreeMap;
use std::time::Instant;

use owners::{Owner, Rate, TokenBuckets, Uid};

/// Owners without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exempt {
    /// None: the work delays other programs, whoever causes it.
    Nobody,
    /// Root and the server's own user, who could stop the server anyway.
    RootAndServer,
}

/// One token bucket per owner.
pub(crate) struct OwnerBudgets {
    begun: Instant,
    own: Owner,
    exempt: Exempt,
    buckets: TokenBuckets<Owner>,
}

impl OwnerBudgets {
    /// All full.
    pub(crate) fn new(rate: Rate, exempt: Exempt) -> Self {
        let own = Owner::User(Uid(rustix::process::geteuid().as_raw()));
        Self { begun: Instant::now(), own, exempt, buckets: TokenBuckets::new(rate) }
    }

    /// The budgets that were used.
    pub(crate) fn balances(&self) -> BTreeMap<Owner, i64> {
        self.buckets.balances(self.now_ns())
    }

    /// Continues with the budgets of another server.
    pub(crate) fn restore(&mut self, balances: BTreeMap<Owner, i64>) {
        self.buckets.restore(balances, self.now_ns());
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn is_exempt(&self, owner: Owner) -> bool {
        self.exempt == Exempt::RootAndServer && (owner.is_root() || owner == self.own)
    }

    /// Whether the owner has budget left.
    pub(crate) fn has_left(&mut self, owner: Owner) -> bool {
        let now_ns = self.now_ns();
        self.is_exempt(owner) || self.buckets.is_ready(owner, now_ns)
    }

    /// Charges work that was done or begins.
    pub(crate) fn charge(&mut self, owner: Owner, tokens: u64) {
        if tokens > 0 && !self.is_exempt(owner) {
            let now_ns = self.now_ns();
            self.buckets.charge(owner, now_ns, tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Owner = Owner::User(Uid(4_000_000_000));
    const OTHER: Owner = Owner::User(Uid(4_000_000_001));
    /// Refilled by one token in 32 years.
    const ONCE: Rate = Rate { per_second: 1, burst: 1_000_000_000 };

    #[test]
    fn an_owner_without_budget_does_not_affect_others() {
        let mut budgets = OwnerBudgets::new(ONCE, Exempt::RootAndServer);
        budgets.charge(USER, 2 * ONCE.burst);
        assert!(!budgets.has_left(USER));
        assert!(budgets.has_left(OTHER));
    }

    #[test]
    fn root_has_a_limit_where_nobody_is_exempt() {
        for (exempt, has_left) in [(Exempt::RootAndServer, true), (Exempt::Nobody, false)] {
            let mut budgets = OwnerBudgets::new(ONCE, exempt);
            budgets.charge(Owner::User(Uid::ROOT), 2 * ONCE.burst);
            assert_eq!(budgets.has_left(Owner::User(Uid::ROOT)), has_left, "{exempt:?}");
        }
    }

    #[test]
    fn no_work_costs_nothing() {
        let mut budgets = OwnerBudgets::new(ONCE, Exempt::RootAndServer);
        budgets.charge(USER, 0);
        assert!(budgets.buckets.is_unused());
    }
}
