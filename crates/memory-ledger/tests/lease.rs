//! Leases in a random simulation: reservations hold, whatever happens in between.

use memory_ledger::lease::{GRAIN_BYTES, RESERVE_BYTES};
use memory_ledger::{Book, Decision, Lease, Standing};
use proptest::prelude::*;

const LIMIT: u64 = 4096 * GRAIN_BYTES;

/// A client's actual state: memory that it was granted and has not taken, memory that it has taken,
/// and the resident part of that and of its other memory.
#[derive(Clone, Copy, Debug, Default)]
struct Truth {
    unspent: u64,
    spent: u64,
    touched: u64,
    beside: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Grow(u64, u64, u64),
    Take(u64, u64),
    Touch(u64, u64),
    TouchBeside(u64),
    Free(u64, u64),
    Collect(u64),
    Die(u64),
    Other(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (id, pages) = (1..6u64, 1..600u64);
    prop_oneof![
        4 => (id.clone(), pages.clone(), pages.clone()).prop_map(|(i, n, w)| Step::Grow(i, n, w)),
        4 => (id.clone(), pages.clone()).prop_map(|(i, n)| Step::Take(i, n)),
        4 => (id.clone(), pages.clone()).prop_map(|(i, n)| Step::Touch(i, n)),
        1 => id.clone().prop_map(Step::TouchBeside),
        2 => (id.clone(), pages.clone()).prop_map(|(i, n)| Step::Free(i, n)),
        1 => id.clone().prop_map(Step::Collect),
        1 => id.prop_map(Step::Die),
        1 => pages.prop_map(Step::Other),
    ]
}

#[derive(Default)]
struct World {
    book: Book,
    truth: std::collections::BTreeMap<u64, Truth>,
    /// Memory of the user outside of all leases.
    other: u64,
}

impl World {
    fn used(&self) -> u64 {
        self.other + self.truth.values().map(|t| t.touched + t.beside).sum::<u64>()
    }

    fn standing(&self) -> Standing {
        let soft_bytes = LIMIT / 10 * 9;
        Standing { hard_bytes: LIMIT, soft_bytes, used_bytes: self.used() }
    }

    fn look(&mut self) {
        for (id, truth) in &self.truth {
            let lease = self.book.lease_mut(*id).unwrap();
            lease.observe(truth.touched + truth.beside, truth.unspent);
        }
    }

    fn step(&mut self, step: &Step) {
        let page = GRAIN_BYTES;
        match *step {
            Step::Grow(id, need, wish) => {
                if self.book.lease(id).is_none() {
                    // The client starts with a few pages, if there is room for them.
                    self.look();
                    let free = self.book.headroom(&self.standing());
                    if free < RESERVE_BYTES + 4 * page {
                        return;
                    }
                    let lease =
                        Lease { base: 4 * page as i64, resident: 4 * page, ..Lease::default() };
                    self.book.insert(id, lease);
                    self.truth.insert(id, Truth { beside: 4 * page, ..Truth::default() });
                }
                self.look();
                let decision = self.book.decide(id, need * page, wish * page, &self.standing());
                if let Decision::Grant(bytes) = decision {
                    assert!(bytes >= need * page && bytes <= need.max(wish) * page);
                    self.book.lease_mut(id).unwrap().granted += bytes;
                    self.truth.get_mut(&id).unwrap().unspent += bytes;
                }
            }
            Step::Other(pages) => {
                // Only as far as nothing is reserved: a reservation cannot be kept while another
                // process allocates without a request.
                self.look();
                let free = self.book.headroom(&self.standing());
                self.other += (pages * page).min(free);
                self.other = if pages % 3 == 0 { 0 } else { self.other };
            }
            Step::Take(id, pages) => self.of(id, |truth, _| {
                let bytes = (pages * page).min(truth.unspent);
                truth.unspent -= bytes;
                truth.spent += bytes;
            }),
            Step::Touch(id, pages) => self.of(id, |truth, _| {
                truth.touched += (pages * page).min(truth.spent - truth.touched);
            }),
            // Once between two readings, and within the reserve.
            Step::TouchBeside(id) => {
                self.look();
                let free = self.book.headroom(&self.standing());
                self.of(id, |truth, _| truth.beside += if free >= page { page } else { 0 });
                self.look();
            }
            Step::Free(id, pages) => self.of(id, |truth, _| {
                let bytes = (pages * page).min(truth.spent);
                truth.spent -= bytes;
                truth.unspent += bytes;
                truth.touched = truth.touched.min(truth.spent);
            }),
            Step::Collect(id) => self.of(id, |truth, lease| {
                lease.granted -= truth.unspent;
                truth.unspent = 0;
            }),
            Step::Die(id) => {
                self.book.remove(id);
                self.truth.remove(&id);
            }
        }
    }

    fn of(&mut self, id: u64, f: impl FnOnce(&mut Truth, &mut Lease)) {
        if let (Some(truth), Some(lease)) = (self.truth.get_mut(&id), self.book.lease_mut(id)) {
            f(truth, lease);
        }
    }
}

proptest! {
    #[test]
    fn the_limit_holds_if_all_grants_are_touched(
        steps in proptest::collection::vec(step(), 1..200)
    ) {
        let mut world = World::default();
        for step in &steps {
            world.step(step);
            prop_assert!(world.used() <= LIMIT, "{step:?}: {} used", world.used());
            let then: u64 = world.other
                + world.truth.values().map(|t| t.beside + t.spent + t.unspent).sum::<u64>();
            prop_assert!(then <= LIMIT, "{step:?}: {then} if all is touched");
        }
    }

    #[test]
    fn a_reservation_shrinks_by_the_growth_of_the_account(
        steps in proptest::collection::vec(step(), 1..100)
    ) {
        let mut world = World::default();
        for step in &steps {
            world.step(step);
            world.look();
            for (id, truth) in &world.truth {
                let lease = world.book.lease(*id).unwrap();
                prop_assert!(lease.entitlement() >= truth.beside + truth.spent + truth.unspent);
                prop_assert_eq!(
                    lease.reserved() + lease.resident.min(lease.entitlement()),
                    lease.entitlement()
                );
            }
        }
    }
}

#[test]
fn near_the_limit_grants_shrink_until_the_last_page_can_be_used() {
    let mut book = Book::default();
    book.insert(1, Lease::default());
    let standing = Standing { hard_bytes: LIMIT, soft_bytes: LIMIT / 10 * 9, used_bytes: 0 };
    let mut largest = 0;
    while let Decision::Grant(bytes) = book.decide(1, GRAIN_BYTES, 1 << 20, &standing) {
        let lease = book.lease_mut(1).unwrap();
        if lease.granted > standing.soft_bytes {
            assert!(bytes <= 4 * GRAIN_BYTES, "{bytes} above the soft limit");
        }
        lease.granted += bytes;
        largest = largest.max(bytes);
    }
    assert_eq!(book.lease(1).unwrap().granted, LIMIT - RESERVE_BYTES);
    assert_eq!(largest, 1 << 20);
}

#[test]
fn a_forked_child_has_no_reservation_of_its_parent() {
    // 10 MiB taken by the allocator before the fork, of which 3 are resident.
    let mut child = Lease { base: (3 << 20) - (10 << 20), granted: 10 << 20, ..Lease::default() };
    child.observe(3 << 20, 0);
    assert_eq!(child.reserved(), RESERVE_BYTES);
    // Memory that the child touches after that counts outside of its lease.
    child.observe(5 << 20, 0);
    assert_eq!(child.reserved(), RESERVE_BYTES);
}

/// The published case: 16 MiB, and 4 or 8 processes that request 1 GB each.
#[test]
fn requests_above_the_limit_are_all_refused() {
    let hard_bytes = 16 << 20;
    let standing = Standing { hard_bytes, soft_bytes: hard_bytes / 10 * 9, used_bytes: 0 };
    for clients in [4, 8] {
        let mut book = Book::default();
        for id in 0..clients {
            book.insert(id, Lease::default());
        }
        let reserved = book.reserved();
        for id in 0..clients {
            assert_eq!(book.decide(id, 1_000_000_000, 1_000_000_000, &standing), Decision::Full);
        }
        assert_eq!(book.reserved(), reserved);
    }
}
