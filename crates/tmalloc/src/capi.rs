//! The C interface, as `include/tmalloc.h` declares it.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::gate::Refused;
use crate::{Lease, heap};

/// Maximum number of leases that a process may hold through the C interface at a time.
const MOST_LEASES: usize = 1024;
/// A lease's number is its index, with the use count of that index above these bits.
const PLACE_BITS: u32 = 10;
/// An entry has its use count in the bits above, and the number of its pages plus 1 below.
const PAGES_BITS: u32 = 40;

static LEASES: [AtomicU64; MOST_LEASES] = [const { AtomicU64::new(0) }; MOST_LEASES];

thread_local! {
    static WHY: Cell<&'static CStr> = const { Cell::new(c"") };
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library's own, always valid.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets `errno` and stores the reason for `tm_why`.
pub(crate) fn fail(refused: Refused) {
    use control::lease::Status;
    let (why, errno) = match refused {
        Refused::Unreachable => (c"the user is limited, and headroom-oomd is gone", libc::ENOMEM),
        Refused::By(Status::Full) => (c"it does not fit below the user's limit", libc::ENOMEM),
        Refused::By(Status::TimedOut) => (c"it did not become free in time", libc::ETIMEDOUT),
        Refused::By(Status::Short) => (c"the machine itself is short of memory", libc::ENOMEM),
        Refused::By(_) => (c"headroom-oomd refuses", libc::ENOMEM),
    };
    set_errno(errno);
    let _ = WHY.try_with(|it| it.set(why));
}

/// `malloc`; returns `NULL` with `ENOMEM` if the memory is not granted.
///
/// # Safety
/// As `malloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tmalloc(size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { heap::malloc(size) }
}

/// `calloc`; returns `NULL` with `ENOMEM` if the memory is not granted.
///
/// # Safety
/// As `calloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tcalloc(count: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { heap::calloc(count, size) }
}

/// `realloc`; returns `NULL` with `ENOMEM` if the memory is not granted, and keeps the block.
///
/// # Safety
/// As `realloc`; the block must have been allocated by these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trealloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { heap::realloc(block, size) }
}

/// `free`.
///
/// # Safety
/// As `free`; the block must have been allocated by these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tfree(block: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { heap::free(block) }
}

/// Reserves memory; waits up to `wait_ms` for other processes to return some. Returns the number of
/// the lease; 0 with `errno` if refused.
#[unsafe(no_mangle)]
pub extern "C" fn tm_reserve(bytes: usize, wait_ms: c_uint) -> u64 {
    match crate::reserve_within(bytes, Duration::from_millis(wait_ms.into())) {
        Ok(lease) => keep(lease),
        Err(refused) => {
            fail(refused);
            0
        }
    }
}

fn keep(lease: Lease) -> u64 {
    let held = (lease.bytes() / 4096 + 1) & ((1 << PAGES_BITS) - 1);
    for (place, word) in LEASES.iter().enumerate() {
        let before = word.load(Ordering::Acquire);
        let used = before >> PAGES_BITS;
        let empty = before & ((1 << PAGES_BITS) - 1) == 0;
        let then = (used + 1) << PAGES_BITS | held;
        let swapped = empty
            && word.compare_exchange(before, then, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if swapped {
            std::mem::forget(lease);
            return (used + 1) << PLACE_BITS | place as u64;
        }
    }
    drop(lease);
    set_errno(libc::EMFILE);
    0
}

/// Removes the lease with this number from the table.
fn take(number: u64) -> Option<Lease> {
    let place = (number & ((1 << PLACE_BITS) - 1)) as usize;
    let word = LEASES.get(place)?;
    let before = word.load(Ordering::Acquire);
    let (used, held) = (before >> PAGES_BITS, before & ((1 << PAGES_BITS) - 1));
    if held == 0 || used << PLACE_BITS != number & !((1 << PLACE_BITS) - 1) {
        set_errno(libc::EINVAL);
        return None;
    }
    let empty = used << PAGES_BITS;
    if word.compare_exchange(before, empty, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        set_errno(libc::EINVAL);
        return None;
    }
    Some(Lease::of((held - 1) * 4096))
}

/// Assigns a lease to the allocator. Returns -1 with `EINVAL` if the lease does not exist (any
/// more).
#[unsafe(no_mangle)]
pub extern "C" fn tm_commit(lease: u64) -> c_int {
    take(lease).map_or(-1, |lease| {
        lease.commit();
        0
    })
}

/// Returns a lease to the daemon. Returns -1 with `EINVAL` if the lease does not exist (any more).
#[unsafe(no_mangle)]
pub extern "C" fn tm_release(lease: u64) -> c_int {
    take(lease).map_or(-1, |lease| {
        lease.release();
        0
    })
}

/// Memory that could be granted to this process now, bytes; 0 with `errno` if the daemon is
/// unreachable.
#[unsafe(no_mangle)]
pub extern "C" fn tm_headroom() -> usize {
    match crate::headroom() {
        Ok(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
        Err(refused) => {
            fail(refused);
            0
        }
    }
}

/// Reason why this thread's last `tm_` or `transaction_` call was refused; "" if none was.
#[unsafe(no_mangle)]
pub extern "C" fn tm_why() -> *const c_char {
    WHY.try_with(Cell::get).unwrap_or(c"").as_ptr()
}
