//! What each owner may cause per second: work of the event loop, and warnings.

use std::collections::BTreeMap;
use std::time::Instant;

use headroom_linux::clock;
use owners::bounds::{AREA_LOOKUPS, WARNING_TOKENS, WARNINGS};
use owners::{Owner, Rate, TokenBuckets, Uid};
use rustix::time::ClockId;

use crate::maps::Lookup;

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

/// Number of areas after which a lookup is aborted: above the kernel's default maximum, 65,530.
pub(crate) const MAX_AREAS: u64 = 80_000;
/// Areas of a successful lookup that are not charged: it happens once per open.
const FREE_AREAS: u64 = 400;
/// Areas of its processes that are read for an owner. One token is one area.
const LOOKUPS: Rate = AREA_LOOKUPS.of_an_owner();

/// Limits the work of the event loop in the memory maps of one owner's processes.
///
/// The driver keeps a mapping once it was found, but the maps of a process without one are read for
/// each call to it, and may have 65,530 areas. Calls to processes of an owner whose budget is used
/// up wait until it has some again.
pub(crate) struct LookupBudgets(OwnerBudgets);

impl LookupBudgets {
    pub(crate) fn new() -> Self {
        Self(OwnerBudgets::new(LOOKUPS, Exempt::RootAndServer))
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

/// Rate limit of warnings that a client can cause by opening a device again: a burst, then one a
/// minute per owner.
pub(crate) struct WarningLimits {
    begun: Instant,
    buckets: TokenBuckets<Owner>,
}

impl WarningLimits {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), buckets: TokenBuckets::new(WARNINGS.of_an_owner()) }
    }

    /// Whether a warning about a client of this owner may be logged; charges it if so.
    pub(crate) fn admit(&mut self, owner: Owner) -> bool {
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        if !self.buckets.is_ready(owner, now_ns) {
            return false;
        }
        self.buckets.charge(owner, now_ns, WARNING_TOKENS);
        true
    }
}

/// Nanoseconds since the machine has started, with the resolution of the kernel's timer tick: read
/// in a few nanoseconds.
pub(crate) fn coarse_now_ns() -> u64 {
    clock::now_ns(ClockId::MonotonicCoarse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::ClientMapping;

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

    fn lookup(areas: u64, address: Option<u64>) -> Lookup {
        let mapping = address.map(|address| ClientMapping { address, len: 4096, writable: false });
        Lookup { mapping, address_space: None, areas }
    }

    #[test]
    fn long_lists_use_up_the_budget_of_their_owner_only() {
        let mut budgets = LookupBudgets::new();
        budgets.note(USER, &lookup(LOOKUPS.burst + 1_000_000, None));
        assert!(!budgets.may_look(USER));
        assert!(budgets.may_look(OTHER));
        budgets.note(Owner::User(Uid::ROOT), &lookup(2 * LOOKUPS.burst, None));
        assert!(budgets.may_look(Owner::User(Uid::ROOT)));
    }

    #[test]
    fn short_lists_with_the_mapping_cost_nothing() {
        let mut budgets = LookupBudgets::new();
        for _ in 0..1_000_000 {
            budgets.note(USER, &lookup(FREE_AREAS, Some(0)));
        }
        assert!(budgets.may_look(USER) && budgets.balances().is_empty());
    }

    #[test]
    fn warnings_of_one_owner_are_bounded_and_do_not_suppress_those_of_another() {
        let mut limits = WarningLimits::new();
        let [first, second] = [1, 2].map(|uid| Owner::User(Uid(uid)));
        assert_eq!((0..1000).filter(|_| limits.admit(first)).count(), 5);
        assert!(limits.admit(second));
    }
}
