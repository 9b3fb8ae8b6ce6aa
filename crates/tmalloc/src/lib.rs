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
pub mod heap;
mod lease;
mod link;
mod sys;

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

pub use control::lease::Status;
pub use gate::Refused;
pub use lease::{Lease, give_back, headroom, reserve, reserve_within};
use tikv_jemalloc_sys as jemalloc;

use crate::heap::{align_flags, free_sized, malloc, or_after_purge, ready};

/// Only the gate, for allocators that map memory themselves: take before the memory is made usable,
/// release after it was released to the system.
pub mod raw {
    pub use crate::gate::{release, take};

    /// Whether the gate is ready: it is not during the start of the allocator, and memory that is
    /// mapped then counts as it is touched.
    pub fn is_ready() -> bool {
        crate::heap::is_ready()
    }
}

/// The global allocator.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: tmalloc::TAlloc = tmalloc::TAlloc;
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TAlloc;

// SAFETY: jemalloc's own functions, called with the layout's size and alignment.
unsafe impl GlobalAlloc for TAlloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let flags = align_flags(layout.size(), layout.align());
        if flags == 0 {
            // SAFETY: of any size; freed by `dealloc`.
            return unsafe { malloc(layout.size()) }.cast();
        }
        ready();
        // SAFETY: the layout's size is not 0.
        let allocate = || unsafe { jemalloc::mallocx(layout.size(), flags) };
        or_after_purge(allocate).cast()
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ready();
        let flags = align_flags(layout.size(), layout.align()) | jemalloc::MALLOCX_ZERO;
        // SAFETY: the layout's size is not 0.
        let allocate = || unsafe { jemalloc::mallocx(layout.size(), flags) };
        or_after_purge(allocate).cast()
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: allocated here with this layout.
        unsafe { free_sized(block.cast(), layout.size(), layout.align()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let flags = align_flags(size, layout.align());
        // SAFETY: allocated here; the new size is not 0.
        let allocate = || unsafe { jemalloc::rallocx(block.cast(), size, flags) };
        or_after_purge(allocate).cast()
    }
}

/// Allocates one block, or returns `None` if it is not granted. To be freed with [`free`].
pub fn try_alloc(layout: Layout) -> Option<NonNull<u8>> {
    if layout.size() == 0 {
        return NonNull::new(std::ptr::without_provenance_mut(layout.align()));
    }
    // SAFETY: the layout's size is not 0.
    NonNull::new(unsafe { TAlloc.alloc(layout) })
}

/// Frees a block of [`try_alloc`].
///
/// # Safety
/// The block must come from [`try_alloc`] with this layout, and not be used any more.
pub unsafe fn free(block: NonNull<u8>, layout: Layout) {
    if layout.size() > 0 {
        // SAFETY: the caller's.
        unsafe { TAlloc.dealloc(block.as_ptr(), layout) }
    }
}
