//! tmalloc for unmodified programs: preloaded, it stands in for the C library's `malloc` family and
//! for its `mmap` family where that maps anonymous memory. What is not granted is `NULL` or
//! `MAP_FAILED` with `ENOMEM`, in time.
//!
//! * [`malloc`](self::malloc): blocks;
//! * [`map`](self::map): mappings; [`ranges`]: which of them were granted.
//!
//! Not gated: stacks of threads (the C library maps them by itself), what is mapped with
//! `MAP_NORESERVE`, shared files. Such memory counts as it is touched.

mod malloc;
mod map;
pub mod ranges;

pub(crate) fn set_errno(errno: libc::c_int) {
    // SAFETY: the C library's own, always valid.
    unsafe { *libc::__errno_location() = errno };
}
