//! The bankers' check against brute force, and the scenario that it is there for.

use memory_ledger::bankers::{Claimant, is_safe, is_safe_after};
use memory_ledger::{Book, Decision, Lease, Standing};
use proptest::prelude::*;

/// Tries every order.
fn some_order_exists(free: u64, claimants: &[Claimant]) -> bool {
    claimants.is_empty()
        || (0..claimants.len()).any(|next| {
            let Claimant { held, need } = claimants[next];
            let mut rest = claimants.to_vec();
            rest.remove(next);
            need <= free && some_order_exists(free + held, &rest)
        })
}

fn sorted(mut claimants: Vec<Claimant>) -> Vec<Claimant> {
    claimants.sort_by_key(|claimant| claimant.need);
    claimants
}

/// All systems of `left` more claimants that hold and need less than `most` each.
fn all_systems(left: usize, most: u64, system: &mut Vec<Claimant>, f: &mut dyn FnMut(&[Claimant])) {
    f(system);
    if left == 0 {
        return;
    }
    for held in 0..most {
        for need in 0..most {
            system.push(Claimant { held, need });
            all_systems(left - 1, most, system, f);
            system.pop();
        }
    }
}

#[test]
fn on_all_small_systems_the_check_says_what_trying_every_order_says() {
    // Up to three with 5 x 5 states each; four and five with fewer, so that all of them are seen.
    for (clients, most) in [(3, 5), (4, 4), (5, 3)] {
        let mut systems = 0u64;
        all_systems(clients, most, &mut Vec::new(), &mut |system| {
            for free in 0..most + 1 {
                let by_need = sorted(system.to_vec());
                assert_eq!(
                    is_safe(free, &by_need),
                    some_order_exists(free, system),
                    "{free} {system:?}"
                );
                systems += 1;
            }
        });
        println!("{clients} clients: {systems} systems");
    }
}

fn claimants() -> impl Strategy<Value = Vec<Claimant>> {
    let one = (0..40u64, 0..40u64).prop_map(|(held, need)| Claimant { held, need });
    proptest::collection::vec(one, 1..6).prop_map(sorted)
}

proptest! {
    #[test]
    fn a_grant_is_safe_when_the_system_after_it_is(
        free in 0..60u64, claimants in claimants(), requester in 0..5usize, bytes in 0..50u64
    ) {
        let requester = requester % claimants.len();
        let fits = bytes <= free && bytes <= claimants[requester].need;
        let expected = fits && {
            let mut then = claimants.clone();
            then[requester].held += bytes;
            then[requester].need -= bytes;
            some_order_exists(free - bytes, &then)
        };
        prop_assert_eq!(is_safe_after(free, &claimants, requester, bytes), expected);
    }
}

const PAGE: u64 = 4096;
const LIMIT: u64 = 1000 * PAGE;

fn standing() -> Standing {
    Standing { hard_bytes: LIMIT, soft_bytes: LIMIT, used_bytes: 0 }
}

/// Two clients of one user, each of which will want 600 of 1000 pages, and holds what it says.
fn two_clients(claims: bool) -> Book {
    let mut book = Book::default();
    for id in [1, 2] {
        let claim = claims.then_some(600 * PAGE);
        // Without the reserve for what comes beside the grants, to keep the numbers round.
        let base = -(memory_ledger::lease::RESERVE_BYTES as i64);
        book.insert(id, Lease { base, claim, ..Lease::default() });
    }
    book
}

/// Both take turns asking for 100 pages until they have 600, and give all back when they do. Returns
/// whether both came to their end.
fn both_finish(mut book: Book) -> bool {
    let mut finished = [false; 2];
    for _round in 0..100 {
        for id in [1, 2] {
            if finished[id as usize - 1] {
                continue;
            }
            let Decision::Grant(bytes) = book.decide(id, 100 * PAGE, 100 * PAGE, &standing())
            else {
                continue;
            };
            let lease = book.lease_mut(id).unwrap();
            lease.granted += bytes;
            if lease.granted == 600 * PAGE {
                book.remove(id);
                finished[id as usize - 1] = true;
            }
        }
    }
    finished == [true; 2]
}

#[test]
fn two_that_take_turns_deadlock_with_a_naive_coordinator_and_not_with_claims() {
    assert!(!both_finish(two_clients(false)), "each has 500 and waits for the other");
    assert!(both_finish(two_clients(true)));
}

#[test]
fn a_claim_that_cannot_be_met_is_refused_and_earlier_ones_are_kept() {
    let book = two_clients(true);
    assert!(book.may_claim(1, 1000 * PAGE, &standing()));
    assert!(!book.may_claim(1, 1001 * PAGE, &standing()));
    assert_eq!(book.decide(1, 601 * PAGE, 601 * PAGE, &standing()), Decision::OverClaim);
}

#[test]
fn who_has_claimed_nothing_cannot_take_what_the_claims_of_others_rest_on() {
    let mut book = two_clients(true);
    book.lease_mut(1).unwrap().granted = 300 * PAGE;
    book.lease_mut(2).unwrap().claim = None;
    // Client 1 needs 300 more of the 700 that are left.
    assert!(matches!(book.decide(2, 400 * PAGE, 0, &standing()), Decision::Grant(_)));
    assert_eq!(book.decide(2, 401 * PAGE, 0, &standing()), Decision::Unsafe);
    assert_eq!(book.decide(2, 701 * PAGE, 0, &standing()), Decision::Full);
}
