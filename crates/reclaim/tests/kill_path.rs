//! The kill path allocates nothing. Alone in its program: it replaces the allocator.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;

use reclaim::Victim;
use support::Holder;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps our contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the block came from alloc above, so from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations<T>(body: impl FnOnce() -> T) -> (u64, T) {
    let before = ALLOCATIONS.get();
    let result = body();
    (ALLOCATIONS.get() - before, result)
}

#[test]
fn killing_neither_allocates_nor_frees() {
    let (counted, _) = allocations(|| Box::new(1));
    assert_eq!(counted, 1, "the counter counts");

    let mut holder = Holder::start(1);
    let identity = holder.identity();
    let victim = Victim::open_as(identity).unwrap();
    let (counted, killed) = allocations(|| victim.send_kill());
    assert_eq!((counted, killed), (0, Ok(())));
    assert_eq!(holder.child.wait().unwrap().signal(), Some(9));
}

#[test]
fn opening_a_victim_allocates_its_shared_handle_and_nothing_else() {
    let holder = Holder::start(1);
    let identity = holder.identity();
    let (counted, victim) = allocations(|| Victim::open_as(identity));
    assert_eq!(counted, 1);
    victim.unwrap();
}
