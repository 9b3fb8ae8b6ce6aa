//! tmalloc as the global allocator of a Rust program.

use std::alloc::{GlobalAlloc, Layout};

use tikv_jemalloc_sys as jemalloc;

use crate::heap::{align_flags, free_sized, malloc, or_after_purge, ready};

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
