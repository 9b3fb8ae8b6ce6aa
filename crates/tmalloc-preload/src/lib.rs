//! tmalloc for unmodified programs: preloaded, it replaces the C library's `malloc` family, and its
//! `mmap` family for anonymous memory. Memory that is not granted is `NULL` or `MAP_FAILED` with
//! `ENOMEM`, in time.
//!
//! The allocation functions are here; [`map`](self::map): mappings; [`ranges`]: state of the mapped
//! ranges.
//!
//! Not gated: stacks of threads (the C library maps them by itself), mappings with `MAP_NORESERVE`,
//! shared files. Such memory counts as it is touched.

mod map;
pub mod ranges;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use tmalloc::heap;

/// Bytes of the machine's pages.
fn page_size() -> usize {
    // SAFETY: takes a number. The C library reads the size where the kernel has passed it at the
    // start.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn set_errno(errno: c_int) {
    // SAFETY: the C library's own, always valid.
    unsafe { *libc::__errno_location() = errno };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { heap::malloc(size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { heap::calloc(count, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if !block.is_null() && size == 0 {
        // As the C library does it.
        // SAFETY: the caller's.
        unsafe { heap::free(block) };
        return null_mut();
    }
    // SAFETY: the caller's.
    unsafe { heap::realloc(block, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    // More than the address space has is refused like all that does not fit.
    // SAFETY: the caller's.
    unsafe { realloc(block, count.saturating_mul(size)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { heap::free(block) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(
    block: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    // SAFETY: the alignment is a power of two; `block` is the caller's to be written to.
    unsafe {
        let found = heap::aligned_alloc(alignment, size.max(1));
        if found.is_null() {
            return libc::ENOMEM;
        }
        block.write(found);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    if !alignment.is_power_of_two() {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: the alignment is a power of two.
    unsafe { heap::aligned_alloc(alignment, size.max(1)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    // Other alignments are rounded up, as the C library does.
    let Some(alignment) = alignment.max(1).checked_next_power_of_two() else {
        set_errno(libc::EINVAL);
        return null_mut();
    };
    // SAFETY: the alignment is a power of two.
    unsafe { heap::aligned_alloc(alignment, size.max(1)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { memalign(page_size(), size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let size = size.checked_next_multiple_of(page_size()).unwrap_or(usize::MAX);
    // SAFETY: the caller's.
    unsafe { memalign(page_size(), size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller's.
    unsafe { heap::usable_size(block) }
}
