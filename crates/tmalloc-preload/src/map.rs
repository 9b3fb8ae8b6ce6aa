//! The `mmap` family, gated where it makes anonymous memory writable.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, PROT_WRITE, off_t, size_t};

use crate::ranges::{Kind, Ranges};
use crate::{page_size, set_errno};

/// The ranges and their lock, which can be held across a fork.
struct Known {
    locked: AtomicBool,
    ranges: UnsafeCell<Ranges>,
}

// SAFETY: the ranges are used only by the thread that holds the lock.
unsafe impl Sync for Known {}

static KNOWN: Known =
    Known { locked: AtomicBool::new(false), ranges: UnsafeCell::new(Ranges::new()) };
static ASKED_TO_FORK: AtomicBool = AtomicBool::new(false);

fn lock() {
    while KNOWN.locked.swap(true, Ordering::Acquire) {
        // SAFETY: takes nothing.
        unsafe { libc::sched_yield() };
    }
}

extern "C" fn lock_for_fork() {
    lock();
}

extern "C" fn unlock() {
    KNOWN.locked.store(false, Ordering::Release);
}

fn with_ranges<R>(f: impl FnOnce(&mut Ranges) -> R) -> R {
    if !ASKED_TO_FORK.swap(true, Ordering::Relaxed) {
        // SAFETY: both functions are safe at a fork. A failure leaves forks of threaded programs at
        // risk.
        unsafe { libc::pthread_atfork(Some(lock_for_fork), Some(unlock), Some(unlock)) };
    }
    lock();
    // SAFETY: we hold the lock.
    let result = f(unsafe { &mut *KNOWN.ranges.get() });
    unlock();
    result
}

/// Returns the grants for these addresses, which are unmapped or mapped anew.
fn forget(start: usize, bytes: usize) {
    let granted = with_ranges(|ranges| ranges.set(start, start + bytes, None));
    if granted > 0 {
        tmalloc::raw::release(granted as u64);
    }
}

fn whole_pages(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(page_size())
}

fn fail(errno: c_int) -> *mut c_void {
    set_errno(errno);
    MAP_FAILED
}

/// The result of a raw system call, because the functions here replace the C library's.
fn system(result: libc::c_long) -> *mut c_void {
    // syscall() has set errno.
    if result == -1 { MAP_FAILED } else { result as *mut c_void }
}

/// Arguments of `mmap(2)`.
struct MapArguments {
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
}

unsafe fn map(arguments: MapArguments) -> *mut c_void {
    let MapArguments { at, len, prot, flags, fd, offset } = arguments;
    // SAFETY: the caller's.
    let really = || unsafe {
        let (prot, flags, fd) = (prot as usize, flags as usize, fd as isize);
        system(libc::syscall(libc::SYS_mmap, at, len, prot, flags, fd, offset))
    };
    let wanted = flags & (MAP_ANONYMOUS | MAP_NORESERVE) == MAP_ANONYMOUS;
    let anonymous = wanted && tmalloc::raw::is_ready();
    let Some(bytes) = whole_pages(len) else { return fail(libc::ENOMEM) };
    let gated = anonymous && prot & PROT_WRITE != 0 && bytes > 0;
    if gated && tmalloc::raw::take(bytes as u64).is_err() {
        return fail(libc::ENOMEM);
    }
    let found = really();
    if found == MAP_FAILED {
        if gated {
            tmalloc::raw::release(bytes as u64);
        }
        return found;
    }
    if flags & MAP_FIXED != 0 {
        forget(found as usize, bytes);
    }
    let kind = match (anonymous, gated) {
        (true, true) => Some(Kind::Granted),
        (true, false) => Some(Kind::Reserved),
        _ => None,
    };
    if kind.is_some() {
        let start = found as usize;
        with_ranges(|ranges| {
            if ranges.has_room() {
                ranges.set(start, start + bytes, kind);
            }
        });
    }
    found
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { map(MapArguments { at, len, prot, flags, fd, offset }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's; off_t has 64 bits on all machines we build for.
    unsafe { map(MapArguments { at, len, prot, flags, fd, offset }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(at: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller's.
    let done = unsafe { libc::syscall(libc::SYS_munmap, at, len) } as c_int;
    if done == 0
        && let Some(bytes) = whole_pages(len)
    {
        forget(at as usize, bytes);
    }
    done
}

/// Address space that becomes writable needs a grant, as if it were mapped now.
#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(at: *mut c_void, len: size_t, prot: c_int) -> c_int {
    // SAFETY: the caller's.
    let really = || unsafe { libc::syscall(libc::SYS_mprotect, at, len, prot as usize) } as c_int;
    let bytes = whole_pages(len).filter(|_| prot & PROT_WRITE != 0);
    let Some(bytes) = bytes else { return really() };
    let (start, end) = (at as usize, (at as usize).saturating_add(bytes));
    // The lock is not held during a request to the daemon.
    let new = with_ranges(|ranges| ranges.bytes(start, end, Kind::Reserved));
    if new == 0 {
        return really();
    }
    if tmalloc::raw::take(new as u64).is_err() {
        set_errno(libc::ENOMEM);
        return -1;
    }
    let done = really();
    let counted = with_ranges(|ranges| {
        let still = ranges.bytes(start, end, Kind::Reserved);
        if done == 0 && still == new && ranges.has_room() {
            grant_reserved(ranges, start, end);
            return true;
        }
        false
    });
    if !counted {
        tmalloc::raw::release(new as u64);
    }
    done
}

fn grant_reserved(ranges: &mut Ranges, start: usize, end: usize) {
    loop {
        let mut inside = ranges
            .as_slice()
            .iter()
            .filter(|range| range.kind == Kind::Reserved && range.start < end && range.end > start);
        let Some(range) = inside.next().copied() else { return };
        ranges.set(range.start.max(start), range.end.min(end), Some(Kind::Granted));
    }
}

/// As declared in the C library: `new_at` is used only with `MREMAP_FIXED`.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new_at: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's.
    let really = || unsafe {
        let flags = flags as usize;
        system(libc::syscall(libc::SYS_mremap, at, old_len, new_len, flags, new_at))
    };
    let (Some(old), Some(new)) = (whole_pages(old_len), whole_pages(new_len)) else {
        return fail(libc::ENOMEM);
    };
    let start = at as usize;
    let granted = with_ranges(|ranges| ranges.bytes(start, start + old, Kind::Granted));
    let gated = old > 0 && granted == old;
    let more = if gated { new.saturating_sub(old) } else { 0 };
    if more > 0 && tmalloc::raw::take(more as u64).is_err() {
        return fail(libc::ENOMEM);
    }
    let found = really();
    if found == MAP_FAILED {
        if more > 0 {
            tmalloc::raw::release(more as u64);
        }
        return found;
    }
    if flags & libc::MREMAP_FIXED != 0 {
        forget(new_at as usize, new);
    }
    let kept = with_ranges(|ranges| {
        ranges.set(start, start + old, None);
        let remember = gated && ranges.has_room();
        if remember {
            ranges.set(found as usize, found as usize + new, Some(Kind::Granted));
        }
        remember
    });
    let before = granted + more;
    let after = if kept { new } else { 0 };
    if before > after {
        tmalloc::raw::release((before - after) as u64);
    }
    found
}
