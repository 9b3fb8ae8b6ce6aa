//! Limits the work of the event loop in the memory maps of one owner's processes.
//!
//! The driver keeps a mapping once it was found, but the maps of a process without one are read for
//! each call to it, and may have 65,530 areas. An owner whose budget is used up is treated as if
//! its processes had no mapping. Root and the server's own user could stop the server anyway.
//!
//! Areas are counted instead of time: a lookup must not fail because the machine is busy.

use std::time::Instant;

use owners::{Owner, Rate, TokenBuckets, Uid};

use crate::maps::Lookup;

/// Number of areas after which a lookup is aborted. 40,000 were read in 20 ms.
pub(crate) const MAX_AREAS: u64 = 80_000;
/// Areas of a successful lookup that are not charged: it happens once per open.
const FREE_AREAS: u64 = 400;
/// Areas of its processes that are read for an owner. One token is one area.
const BUDGET: Rate = Rate { per_second: 4_000, burst: MAX_AREAS };

/// See the module's documentation.
pub(crate) struct LookupBudgets {
    begun: Instant,
    own: Owner,
    buckets: TokenBuckets<Owner>,
}

impl LookupBudgets {
    pub(crate) fn new() -> Self {
        let own = Owner::User(Uid(rustix::process::geteuid().as_raw()));
        Self { begun: Instant::now(), own, buckets: TokenBuckets::new(BUDGET) }
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Whether the owner has budget left.
    pub(crate) fn may_look(&mut self, owner: Owner) -> bool {
        let now_ns = self.now_ns();
        self.is_exempt(owner) || self.buckets.is_ready(owner, now_ns)
    }

    fn is_exempt(&self, owner: Owner) -> bool {
        owner.is_root() || owner == self.own
    }

    /// Charges a lookup.
    pub(crate) fn note(&mut self, owner: Owner, lookup: &Lookup) {
        let free = if lookup.mapping.is_some() { FREE_AREAS } else { 0 };
        let spent = lookup.areas.saturating_sub(free);
        if spent == 0 || self.is_exempt(owner) {
            return;
        }
        let now_ns = self.now_ns();
        self.buckets.charge(owner, now_ns, spent);
    }
}

#[cfg(test)]
mod tests {
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
        budgets.note(OTHER, &lookup(MAX_AREAS, None));
        assert!(!budgets.may_look(OTHER));
        assert!(budgets.may_look(Owner::User(Uid(4_000_000_001))));
        budgets.note(Owner::User(Uid::ROOT), &lookup(MAX_AREAS, None));
        assert!(budgets.may_look(Owner::User(Uid::ROOT)));
    }

    #[test]
    fn short_lists_with_the_mapping_cost_nothing() {
        let mut budgets = LookupBudgets::new();
        for _ in 0..1_000_000 {
            budgets.note(OTHER, &lookup(FREE_AREAS, Some(0)));
        }
        assert!(budgets.may_look(OTHER) && budgets.buckets.ready_at_ns(OTHER).is_none());
    }
}
