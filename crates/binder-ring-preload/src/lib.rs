//! Carries a binder client's `BINDER_WRITE_READ` over shared memory instead of FUSE, by
//! `LD_PRELOAD`: it replaces the C library's `ioctl`.
//!
//! A thread that calls often shares a ring with the daemon ([`binder_ring`]). Every other ioctl,
//! and each call that may differ there, is a system call as before.
//!
//! * [`calls`]: a call, from its submission to its result;
//! * [`threads`]: the rings of the threads, empty in a forked child;
//! * [`system`]: system calls, descriptors that the daemon sends, memory that may be missing.
//!
//! Nothing here allocates or locks, as a signal handler may call `ioctl`.

mod calls;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod seccomp;
mod system;
mod threads;

use std::ffi::{c_int, c_ulong, c_void};

use binder_uapi::ioctl::{BINDER_SET_CONTEXT_MGR, BINDER_WRITE_READ};

use self::calls::ZERO;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use self::seccomp::is_filtered;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn is_filtered() -> bool {
    false
}

/// `ioctl(2)`.
///
/// # Safety
///
/// As for the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let result = match request as u32 {
        // SAFETY: the caller's.
        BINDER_WRITE_READ if !is_filtered() => unsafe { calls::write_read(fd, argument as usize) },
        // The kernel's driver ignores this argument, and FUSE reads it.
        BINDER_SET_CONTEXT_MGR if argument.is_null() => {
            // SAFETY: the daemon has no effect on our memory by it.
            unsafe { system::ioctl(fd, BINDER_SET_CONTEXT_MGR, &raw const ZERO as usize) }
        }
        // SAFETY: the caller's.
        request => unsafe { system::ioctl(fd, request, argument as usize) },
    };
    match result {
        Ok(value) => value,
        Err(errno) => {
            // SAFETY: the C library's own, always valid.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}
