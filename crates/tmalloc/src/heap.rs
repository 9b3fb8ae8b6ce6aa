//! The allocator: jemalloc, with our gate where it takes memory from the system.
//!
//! jemalloc gets address space for nothing and has to *commit* pages before it uses them: it does
//! so for a run of pages at a time, so a grant is needed once for many allocations, and never for
//! memory that is used again. Pages that it gives back are decommitted: they leave the account
//! first, then the balance grows.

use std::ffi::{c_char, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use tikv_jemalloc_sys as jemalloc;

use crate::page::Page;
use crate::{gate, link};

/// `arenas.narenas` arenas at the most get our hooks.
const MOST_ARENAS: usize = 1024;
/// jemalloc's name for all arenas together.
const ALL_ARENAS: usize = 4096;

/// What jemalloc is built to be told at its start. One large arena of its own for large allocations
/// (`oversize_threshold`) would be made behind our back, without our hooks.
const SETTINGS: &std::ffi::CStr = c"oversize_threshold:0";

/// Read by jemalloc when it starts.
#[unsafe(no_mangle)]
static _rjem_malloc_conf: AtomicPtr<c_char> = AtomicPtr::new(SETTINGS.as_ptr().cast_mut());

const NEW: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
/// Ready, and asked for what is kept unused: done by the next allocation, outside of jemalloc's
/// locks.
const ASKED_BACK: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(NEW);
static STARTER: AtomicU32 = AtomicU32::new(0);

struct Hooks(jemalloc::extent_hooks_t);
// SAFETY: function pointers only, never changed.
unsafe impl Sync for Hooks {}

static HOOKS: Hooks = Hooks(jemalloc::extent_hooks_t {
    alloc: Some(reserve_addresses),
    // Address space is kept, and decommitted.
    dalloc: None,
    destroy: None,
    commit: Some(commit),
    decommit: Some(decommit),
    purge_lazy: None,
    purge_forced: None,
    split: Some(may_split),
    merge: Some(may_merge),
});

/// Address space, uncommitted. jemalloc insists on committed memory only where that was refused
/// before.
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
    let page = 4096;
    let spare = alignment.saturating_sub(page);
    let Some(whole) = size.checked_add(spare) else { return null_mut() };
    // SAFETY: a fresh mapping, of which we unmap what is too much. By system call: the C functions
    // may be our own, gated ones.
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
        let first = start.next_multiple_of(alignment.max(page));
        let (before, after) = (first - start, start + whole - (first + size));
        if before > 0 {
            libc::syscall(libc::SYS_munmap, start, before);
        }
        if after > 0 {
            libc::syscall(libc::SYS_munmap, first + size, after);
        }
        // A huge page would bring in what was not granted. Where there are none, that is fine, too.
        libc::syscall(libc::SYS_madvise, first, size, libc::MADV_NOHUGEPAGE as usize);
        first as *mut c_void
    }
}

/// Whether the daemon wants back what is kept unused; looked at whenever the system is asked for
/// memory.
fn note_recall() {
    if Page::current().is_asked_back() {
        let _ = STATE.compare_exchange(READY, ASKED_BACK, Ordering::AcqRel, Ordering::Relaxed);
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
        gate::give(length as u64);
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

/// Sees to it that jemalloc has our hooks before its first allocation.
#[inline]
pub(crate) fn ready() {
    if STATE.load(Ordering::Acquire) != READY {
        start();
    }
}

/// Whether the hooks are in place.
pub(crate) fn is_ready() -> bool {
    STATE.load(Ordering::Acquire) >= READY
}

#[cold]
fn start() {
    // SAFETY: takes nothing.
    let own = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    if STATE.compare_exchange(ASKED_BACK, READY, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        purge();
        link::tell_given_back();
        return;
    }
    match STATE.compare_exchange(NEW, STARTING, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        // What jemalloc or libc allocate while we start.
        Err(STARTING) if STARTER.load(Ordering::Acquire) == own => return,
        Err(READY | ASKED_BACK) => return,
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
    // Read through, so that the linker keeps what jemalloc looks for.
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

/// First each arena is made with jemalloc's own hooks, which then serve its book-keeping; ours
/// serve the memory that it hands out.
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

/// What jemalloc has taken for itself before it had our hooks, and not used, is committed: the next
/// allocations would get it without asking. While we start, our hooks give nothing, so all that can
/// be allocated is of that kind; freed and purged, it is decommitted.
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
                // Between two neighbouring size classes there is a quarter at the most.
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

/// Gives back all pages that the allocator keeps unused.
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

/// `malloc`; `NULL` when it is not granted.
///
/// # Safety
/// As `malloc`: what is returned is uninitialised, and given back by [`free`] only.
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
/// As `realloc`; the block must be of these functions.
#[inline]
pub unsafe fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    ready();
    // SAFETY: the caller's.
    unsafe {
        // Of size 0 it frees, and NULL is no refusal.
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
/// As `free`; the block must be of these functions.
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

/// How many bytes a block has.
///
/// # Safety
/// The block must be of these functions, and not be freed.
pub unsafe fn usable_size(block: *mut c_void) -> usize {
    // SAFETY: the caller's.
    unsafe { jemalloc::malloc_usable_size(block) }
}

/// jemalloc's flags for an alignment; none where its size classes have it anyway.
#[inline]
pub(crate) fn align_flags(size: usize, alignment: usize) -> i32 {
    if alignment <= 16 && alignment <= size { 0 } else { jemalloc::MALLOCX_ALIGN(alignment) }
}

/// What is allocated at the first try, or at a second one once unused pages were given back.
#[inline]
pub(crate) fn or_after_purge(allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    let found = allocate();
    if found.is_null() { after_purge(allocate) } else { found }
}

#[cold]
fn after_purge(allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    purge();
    allocate()
}
