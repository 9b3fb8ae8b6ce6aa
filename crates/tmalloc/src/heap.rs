//! The allocator: jemalloc, with the gate where it takes memory from the system.
//!
//! jemalloc gets address space without a grant and has to *commit* pages before it uses them: it
//! does so for a run of pages at a time, so a grant is needed once for many allocations, and never
//! for memory that is reused. Pages that it returns are decommitted: they leave the account first,
//! then the balance grows.

use std::ffi::{c_char, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use tikv_jemalloc_sys as jemalloc;

use crate::capi::set_errno;
use crate::gate::{self, Page};
use crate::link;

/// Maximum number of arenas (`arenas.narenas`) that get the hooks.
const MOST_ARENAS: usize = 1024;
/// jemalloc's index for all arenas together.
const ALL_ARENAS: usize = 4096;

/// Settings that jemalloc reads at its start. For large allocations (`oversize_threshold`) it would
/// otherwise create an arena later, without the hooks.
const SETTINGS: &std::ffi::CStr = c"oversize_threshold:0";

/// Read by jemalloc when it starts.
#[unsafe(no_mangle)]
static _rjem_malloc_conf: AtomicPtr<c_char> = AtomicPtr::new(SETTINGS.as_ptr().cast_mut());

const NEW: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
/// Ready, and the daemon has requested unused memory: the next allocation returns it, outside of
/// jemalloc's locks.
const RECALLED: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(NEW);
static STARTER: AtomicU32 = AtomicU32::new(0);

struct Hooks(jemalloc::extent_hooks_t);
// SAFETY: function pointers only, never changed.
unsafe impl Sync for Hooks {}

static HOOKS: Hooks = Hooks(jemalloc::extent_hooks_t {
    alloc: Some(reserve_addresses),
    // Address space is kept, and its pages are decommitted.
    dalloc: None,
    destroy: None,
    commit: Some(commit),
    decommit: Some(decommit),
    purge_lazy: None,
    purge_forced: None,
    split: Some(may_split),
    merge: Some(may_merge),
});

/// Reserves address space, uncommitted. jemalloc requires committed memory only after that was
/// refused.
unsafe extern "C" fn reserve_addresses(
    _: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _: c_uint,
) -> *mut c_void {
    // SAFETY: jemalloc passes valid pointers.
    unsafe {
        if *commit || !at.is_null() || STATE.load(Ordering::Acquire) < READY {
            return null_mut();
        }
        let found = map_aligned(size, alignment);
        if !found.is_null() {
            *zero = true;
        }
        found
    }
}

/// Maps address space that starts at a multiple of `alignment`.
fn map_aligned(size: usize, alignment: usize) -> *mut c_void {
    // The kernel's own alignment is its page, which has this size at least.
    const SMALLEST_PAGE: usize = 4096;
    let spare = alignment.saturating_sub(SMALLEST_PAGE);
    let Some(whole) = size.checked_add(spare) else { return null_mut() };
    // SAFETY: a fresh mapping, of which the excess is unmapped. By system call: the C functions may
    // be our own, gated ones.
    unsafe {
        let at = libc::syscall(
            libc::SYS_mmap,
            0usize,
            whole,
            (libc::PROT_READ | libc::PROT_WRITE) as usize,
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize,
            -1isize,
            0usize,
        );
        if at == -1 {
            return null_mut();
        }
        let start = at as usize;
        let first = start.next_multiple_of(alignment.max(SMALLEST_PAGE));
        let (before, after) = (first - start, start + whole - (first + size));
        if before > 0 {
            libc::syscall(libc::SYS_munmap, start, before);
        }
        if after > 0 {
            libc::syscall(libc::SYS_munmap, first + size, after);
        }
        // A huge page would populate memory that was not granted. A kernel without huge pages may
        // refuse this.
        libc::syscall(libc::SYS_madvise, first, size, libc::MADV_NOHUGEPAGE as usize);
        first as *mut c_void
    }
}

/// Checks whether the daemon has requested unused memory; called whenever memory is taken from the
/// system or returned to it.
fn note_recall() {
    if Page::current().take_recall() {
        let _ = STATE.compare_exchange(READY, RECALLED, Ordering::AcqRel, Ordering::Relaxed);
    }
}

unsafe extern "C" fn commit(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    length: usize,
    _: c_uint,
) -> bool {
    note_recall();
    STATE.load(Ordering::Acquire) < READY || gate::take(length as u64).is_err()
}

unsafe extern "C" fn decommit(
    _: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    length: usize,
    _: c_uint,
) -> bool {
    // SAFETY: jemalloc's own pages, which it does not use any more.
    let failed = unsafe {
        let start = at.byte_add(offset);
        libc::syscall(libc::SYS_madvise, start, length, libc::MADV_DONTNEED as usize) != 0
    };
    note_recall();
    if !failed && STATE.load(Ordering::Acquire) >= READY {
        gate::release(length as u64);
    }
    failed
}

unsafe extern "C" fn may_split(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

unsafe extern "C" fn may_merge(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

/// Installs the hooks before jemalloc's first allocation.
#[inline]
pub(crate) fn ready() {
    if STATE.load(Ordering::Acquire) != READY {
        start();
    }
}

/// The hooks are installed.
pub(crate) fn is_ready() -> bool {
    STATE.load(Ordering::Acquire) >= READY
}

#[cold]
fn start() {
    // SAFETY: takes nothing.
    let own = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    if STATE.compare_exchange(RECALLED, READY, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        purge();
        link::report_released();
        return;
    }
    match STATE.compare_exchange(NEW, STARTING, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        // Allocations of jemalloc or libc during the start.
        Err(STARTING) if STARTER.load(Ordering::Acquire) == own => return,
        Err(READY | RECALLED) => return,
        Err(_) => {
            while STATE.load(Ordering::Acquire) < READY {
                std::hint::spin_loop();
                // SAFETY: takes nothing.
                unsafe { libc::sched_yield() };
            }
            return;
        }
    }
    STARTER.store(own, Ordering::Release);
    // Read here, so that the linker keeps the symbol that jemalloc looks up.
    std::hint::black_box(_rjem_malloc_conf.load(Ordering::Relaxed));
    if link::is_switched_off() {
        link::be_plain();
    } else {
        // SAFETY: the function is safe to call in a forked child. A failure (no memory) leaves a
        // child that shares its parent's lease.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        install_hooks();
        give_up_head_start();
    }
    STATE.store(READY, Ordering::Release);
}

extern "C" fn after_fork_in_child() {
    gate::forget_after_fork();
    link::forget_after_fork();
}

/// First creates each arena with jemalloc's own hooks, which then serve its book-keeping; the gated
/// hooks serve the memory of allocations.
fn install_hooks() {
    // SAFETY: each value is of the type that jemalloc's manual gives for its name.
    unsafe {
        let mut count: c_uint = 0;
        let mut len = size_of::<c_uint>();
        let name = c"opt.narenas".as_ptr();
        jemalloc::mallctl(name, (&raw mut count).cast(), &mut len, null_mut(), 0);
        let mut mib = [0usize; 3];
        let mut mib_len = mib.len();
        let name = c"arena.0.extent_hooks".as_ptr();
        jemalloc::mallctlnametomib(name, mib.as_mut_ptr(), &mut mib_len);
        for arena in 0..(count as usize).clamp(1, MOST_ARENAS) {
            mib[1] = arena;
            let mut hooks: *mut jemalloc::extent_hooks_t = null_mut();
            let size = size_of_val(&hooks);
            let mut len = size;
            let pointer = (&raw mut hooks).cast();
            jemalloc::mallctlbymib(mib.as_ptr(), mib_len, pointer, &mut len, null_mut(), 0);
            jemalloc::mallctlbymib(mib.as_ptr(), mib_len, null_mut(), null_mut(), pointer, size);
            hooks = (&raw const HOOKS.0).cast_mut();
            let pointer = (&raw mut hooks).cast();
            jemalloc::mallctlbymib(mib.as_ptr(), mib_len, null_mut(), null_mut(), pointer, size);
        }
    }
}

/// Returns memory that jemalloc took before it had the hooks, and did not use. It is committed: the
/// next allocations would get it without a grant. During the start the hooks refuse all memory, so
/// all blocks that can be allocated are of that kind; freed and purged, they are decommitted.
fn give_up_head_start() {
    const LARGEST: usize = 8 << 20;
    const SMALLEST: usize = 16 << 10;
    let mut blocks = [null_mut::<c_void>(); 64];
    let mut count = 0;
    let flags = jemalloc::MALLOCX_TCACHE_NONE | jemalloc::MALLOCX_ARENA(0);
    let mut size = LARGEST;
    // SAFETY: blocks are freed once, the way they were allocated.
    unsafe {
        while size >= SMALLEST && count < blocks.len() {
            let block = jemalloc::mallocx(size, flags);
            if block.is_null() {
                // Neighbouring size classes differ by at most a quarter.
                size = (size - size / 8) & !4095;
            } else {
                blocks[count] = block;
                count += 1;
            }
        }
        for block in &blocks[..count] {
            jemalloc::dallocx(*block, flags);
        }
    }
    purge();
}

/// Returns all unused pages of the allocator to the system.
pub(crate) fn purge() {
    // SAFETY: takes no value.
    unsafe {
        let mut mib = [0usize; 3];
        let mut mib_len = mib.len();
        let name = c"arena.0.purge".as_ptr();
        jemalloc::mallctlnametomib(name, mib.as_mut_ptr(), &mut mib_len);
        mib[1] = ALL_ARENAS;
        jemalloc::mallctlbymib(mib.as_ptr(), mib_len, null_mut(), null_mut(), null_mut(), 0);
    }
}

/// `malloc`; returns `NULL` with `ENOMEM` if the memory is not granted, as the others do.
///
/// # Safety
/// As `malloc`: the block is uninitialised, and to be freed with [`free`] only.
#[inline]
pub unsafe fn malloc(size: usize) -> *mut c_void {
    ready();
    // SAFETY: the caller's.
    unsafe { or_after_purge(|| jemalloc::malloc(size)) }
}

/// `calloc`.
///
/// # Safety
/// As `calloc`.
#[inline]
pub unsafe fn calloc(count: usize, size: usize) -> *mut c_void {
    ready();
    // SAFETY: the caller's.
    unsafe { or_after_purge(|| jemalloc::calloc(count, size)) }
}

/// `realloc`.
///
/// # Safety
/// As `realloc`; the block must have been allocated by these functions.
#[inline]
pub unsafe fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    ready();
    // SAFETY: the caller's.
    unsafe {
        // With size 0 it frees the block, and NULL is not a refusal.
        match size {
            0 => jemalloc::realloc(block, 0),
            _ => or_after_purge(|| jemalloc::realloc(block, size)),
        }
    }
}

/// `aligned_alloc`; `alignment` is a power of two.
///
/// # Safety
/// As `aligned_alloc`.
#[inline]
pub unsafe fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    ready();
    // SAFETY: the caller's.
    unsafe { or_after_purge(|| jemalloc::aligned_alloc(alignment, size)) }
}

/// `free`.
///
/// # Safety
/// As `free`; the block must have been allocated by these functions.
#[inline]
pub unsafe fn free(block: *mut c_void) {
    // SAFETY: the caller's.
    unsafe { jemalloc::free(block) }
}

/// `free` of a block whose size and alignment are known: faster.
///
/// # Safety
/// As `free`; the block must have been allocated with that size and alignment.
#[inline]
pub unsafe fn free_sized(block: *mut c_void, size: usize, alignment: usize) {
    // SAFETY: the caller's.
    unsafe { jemalloc::sdallocx(block, size, align_flags(size, alignment)) }
}

/// The usable size of a block, bytes.
///
/// # Safety
/// The block must have been allocated by these functions, and not be freed.
pub unsafe fn usable_size(block: *mut c_void) -> usize {
    // SAFETY: the caller's.
    unsafe { jemalloc::malloc_usable_size(block) }
}

/// jemalloc's flags for an alignment; 0 if its size class is aligned anyway.
#[inline]
pub(crate) fn align_flags(size: usize, alignment: usize) -> i32 {
    if alignment <= 16 && alignment <= size { 0 } else { jemalloc::MALLOCX_ALIGN(alignment) }
}

/// The result of the first attempt, or of a second one after unused pages were returned.
#[inline]
pub(crate) fn or_after_purge(allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    let found = allocate();
    if found.is_null() { after_purge(allocate) } else { found }
}

#[cold]
fn after_purge(allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    purge();
    let found = allocate();
    if found.is_null() {
        set_errno(libc::ENOMEM);
    }
    found
}
