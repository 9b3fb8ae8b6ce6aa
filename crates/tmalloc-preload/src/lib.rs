//! tmalloc for unmodified programs: preloaded, it replaces the C library's `malloc` family, and its
//! `mmap` family for anonymous memory. Memory that is not granted is `NULL` or `MAP_FAILED` with
//! `ENOMEM`, in time.
//!
//! * [`malloc`](self::malloc): allocation functions;
//! * [`map`](self::map): mappings; [`ranges`]: state of the mapped ranges.
//!
//! Not gated: stacks of threads (the C library maps them by itself), mappings with `MAP_NORESERVE`,
//! shared files. Such memory counts as it is touched.

mod malloc;
mod map;
pub mod ranges;

/// Bytes of the machine's pages.
pub(crate) fn page_size() -> usize {
    // SAFETY: takes a number. The C library reads the size where the kernel has passed it at the
    // start.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

pub(crate) fn set_errno(errno: libc::c_int) {
    // SAFETY: the C library's own, always valid.
    unsafe { *libc::__errno_location() = errno };
}
