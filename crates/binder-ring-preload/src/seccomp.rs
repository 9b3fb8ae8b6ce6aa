//! Programs that install a filter of system calls: from then on the library makes none of its own.
//!
//! A filter knows what the program calls, and nothing of rings. It is installed by `prctl` or, as
//! libseccomp does, by `syscall`, so both are replaced. A program that makes the system call by
//! itself is not noticed.

use std::arch::asm;
use std::ffi::{c_int, c_long, c_ulong};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// Arguments of a system call.
type Arguments = [usize; 6];
/// The largest errno: a system call returns it negated.
const MAX_ERRNO: usize = 4095;

static IS_FILTERED: AtomicBool = AtomicBool::new(false);

/// Whether all calls have to be those of the program.
pub(crate) fn is_filtered() -> bool {
    IS_FILTERED.load(Acquire)
}

/// `prctl(2)`.
///
/// # Safety
///
/// As for the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    let arguments = [second, third, fourth, fifth].map(|argument| argument as usize);
    let [second, third, fourth, fifth] = arguments;
    let arguments = [option as usize, second, third, fourth, fifth, 0];
    let call = || {
        // SAFETY: the caller's.
        unsafe { call(libc::SYS_prctl, arguments) }
    };
    let result = if option == libc::PR_SET_SECCOMP { filtered(call) } else { call() };
    returned(result) as c_int
}

/// `syscall(2)`.
///
/// # Safety
///
/// As for the system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    let arguments = [first, second, third, fourth, fifth, sixth];
    let call = || {
        // SAFETY: the caller's.
        unsafe { call(number, arguments) }
    };
    let sets_mode = [libc::SECCOMP_SET_MODE_STRICT, libc::SECCOMP_SET_MODE_FILTER];
    let is_filter = number == libc::SYS_seccomp && sets_mode.contains(&(first as u32));
    returned(if is_filter { filtered(call) } else { call() })
}

/// Leaves before the filter is there, and comes back if it is refused.
fn filtered(call: impl FnOnce() -> usize) -> usize {
    let before = IS_FILTERED.swap(true, AcqRel);
    let result = call();
    if errno(result).is_some() {
        IS_FILTERED.store(before, Release);
    }
    result
}

fn errno(result: usize) -> Option<c_int> {
    let negated = result.wrapping_neg();
    (1..=MAX_ERRNO).contains(&negated).then_some(negated as c_int)
}

/// The result as the C library returns it.
fn returned(result: usize) -> c_long {
    let Some(errno) = errno(result) else { return result as c_long };
    // SAFETY: the C library's own, always valid.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// # Safety
///
/// As for the system call.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: c_long, [first, second, third, fourth, fifth, sixth]: Arguments) -> usize {
    let result;
    // SAFETY: the caller's; the kernel changes these registers alone.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as usize => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// # Safety
///
/// As for the system call.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: c_long, [first, second, third, fourth, fifth, sixth]: Arguments) -> usize {
    let result;
    // SAFETY: the caller's; the kernel changes this register alone.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") first => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            in("x5") sixth,
            options(nostack),
        );
    }
    result
}
