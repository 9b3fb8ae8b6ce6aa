//! Limits the work of the event loop in the memory maps of one owner's processes.
//!
//! The driver keeps a mapping once it was found, but the maps of a process without one are read for
//! each call to it, and may have 65,530 areas. Calls to processes of an owner whose budget is used
//! up wait until it has some again.

use std::collections::BTreeMap;

use owners::bounds::AREA_LOOKUPS;
use owners::{Owner, Rate};

use crate::maps::Lookup;
use crate::owner_budgets::{Exempt, OwnerBudgets};

/// Number of areas after which a lookup is aborted: above the kernel's default maximum, 65,530.
pub(crate) const MAX_AREAS: u64 = 80_000;
/// Areas of a successful lookup that are not charged: it happens once per open.
const FREE_AREAS: u64 = 400;
/// Areas of its processes that are read for an owner. One token is one area.
const BUDGET: Rate = AREA_LOOKUPS.of_an_owner();

/// See the module's documentation.
pub(crate) struct LookupBudgets(OwnerBudgets);

impl LookupBudgets {
    pub(crate) fn new() -> Self {
        Self(OwnerBudgets::new(BUDGET, Exempt::RootAndServer))
    }

    /// The budgets that were used.
    pub(crate) fn balances(&self) -> BTreeMap<Owner, i64> {
        self.0.balances()
    }

    /// Continues with the budgets of another server.
    pub(crate) fn restore(&mut self, balances: BTreeMap<Owner, i64>) {
        self.0.restore(balances);
    }

    /// Whether the owner has budget left.
    pub(crate) fn may_look(&mut self, owner: Owner) -> bool {
        self.0.has_left(owner)
    }

    /// Charges a lookup.
    pub(crate) fn note(&mut self, owner: Owner, lookup: &Lookup) {
        let free = if lookup.mapping.is_some() { FREE_AREAS } else { 0 };
        self.0.charge(owner, lookup.areas.saturating_sub(free));
    }
}

#[cfg(test)]
mod tests {
    use owners::Uid;

    use super::*;
    use crate::maps::ClientMapping;

    const OTHER: Owner = Owner::User(Uid(4_000_000_000));

    fn lookup(areas: u64, address: Option<u64>) -> Lookup {
        let mapping = address.map(|address| ClientMapping { address, len: 4096, writable: false });
        Lookup { mapping, address_space: None, areas }
    }

    #[test]
    fn long_lists_use_up_the_budget_of_their_owner_only() {
        let mut budgets = LookupBudgets::new();
        budgets.note(OTHER, &lookup(BUDGET.burst + 1_000_000, None));
        assert!(!budgets.may_look(OTHER));
        assert!(budgets.may_look(Owner::User(Uid(4_000_000_001))));
        budgets.note(Owner::User(Uid::ROOT), &lookup(2 * BUDGET.burst, None));
        assert!(budgets.may_look(Owner::User(Uid::ROOT)));
    }

    #[test]
    fn short_lists_with_the_mapping_cost_nothing() {
        let mut budgets = LookupBudgets::new();
        for _ in 0..1_000_000 {
            budgets.note(OTHER, &lookup(FREE_AREAS, Some(0)));
        }
        assert!(budgets.may_look(OTHER) && budgets.balances().is_empty());
    }
}
