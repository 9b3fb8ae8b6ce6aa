//! malloc with reservation: memory is granted before it is used, or refused in time.
//!
//! A user with a memory limit gets no `NULL` from an ordinary `malloc`: it gets the memory, and a
//! process is killed when it touches too much of it. Here memory is taken from the system only
//! after headroom-oomd has granted it, so memory that [`try_alloc`] (or `tmalloc` in C) returns can
//! be touched, now or later, whatever other processes do; memory that cannot be granted is `NULL`
//! at once, and no process is killed.
//!
//! * [`TAlloc`]: a global allocator; [`try_alloc`]: one block;
//! * [`reserve`]: memory for later allocations;
//! * [`compat`]: the five calls of the course project that had this idea first;
//! * [`heap`]: `malloc` and its family, gated; [`raw`]: only the gate, for other allocators.
//!
//! Without a daemon, and for users without a limit, all this is a plain allocator (jemalloc); the
//! lack of a daemon is logged once on standard error. `HEADROOM_LEASE_SOCKET` sets another socket
//! than `/run/headroom/lease.sock`; `HEADROOM_TMALLOC=off` switches the gate off.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("tmalloc is for 64-bit programs only");

mod capi;
pub mod compat;
mod gate;
mod global;
pub mod heap;
mod lease;
mod link;
mod page;
pub mod raw;
mod sys;

use std::alloc::Layout;
use std::ptr::NonNull;

pub use control::lease::Status;
pub use gate::Refused;
pub use global::TAlloc;
pub use lease::{Lease, give_back, headroom, reserve, reserve_within};

/// Allocates one block, or returns `None` if it is not granted. To be freed with [`free`].
pub fn try_alloc(layout: Layout) -> Option<NonNull<u8>> {
    if layout.size() == 0 {
        return NonNull::new(std::ptr::without_provenance_mut(layout.align()));
    }
    // SAFETY: the layout's size is not 0.
    NonNull::new(unsafe { std::alloc::GlobalAlloc::alloc(&TAlloc, layout) })
}

/// Frees a block of [`try_alloc`].
///
/// # Safety
/// The block must come from [`try_alloc`] with this layout, and not be used any more.
pub unsafe fn free(block: NonNull<u8>, layout: Layout) {
    if layout.size() > 0 {
        // SAFETY: the caller's.
        unsafe { std::alloc::GlobalAlloc::dealloc(&TAlloc, block.as_ptr(), layout) }
    }
}
