//! A counting allocator. A test program installs it with `#[global_allocator]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator. Counts each thread's allocations and releases.
pub struct CountingAllocator;

// SAFETY: all calls are forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller observes this function's contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the block came from alloc above, so from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Allocations and releases of the calling thread so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}
