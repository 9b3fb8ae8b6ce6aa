//! The kill path does not allocate. In a test program of its own, because it replaces the
//! allocator.

mod support;

use std::os::unix::process::ExitStatusExt;

use reclaim::Victim;
use support::Holder;
use test_support::allocations::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn count<T>(body: impl FnOnce() -> T) -> (u64, T) {
    let before = allocations();
    let result = body();
    (allocations() - before, result)
}

#[test]
fn killing_neither_allocates_nor_frees() {
    let (counted, _) = count(|| Box::new(1));
    assert_eq!(counted, 1, "the counter counts");

    let mut holder = Holder::start(1);
    let identity = holder.identity();
    let victim = Victim::open_as(identity).unwrap();
    let (counted, killed) = count(|| victim.send_kill());
    assert_eq!((counted, killed), (0, Ok(())));
    assert_eq!(holder.child.wait().unwrap().signal(), Some(9));
}

#[test]
fn opening_a_victim_allocates_its_shared_handle_and_nothing_else() {
    let holder = Holder::start(1);
    let identity = holder.identity();
    let (counted, victim) = count(|| Victim::open_as(identity));
    assert_eq!(counted, 1);
    victim.unwrap();
}
