//! The seccomp filter.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use binder_uapi::ioctl::BINDER_WRITE_READ;
use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, c_ulong, sock_filter};

/// `AUDIT_ARCH_*` of this program's own calls; the filter ignores calls of other architectures.
const ARCHITECTURE: Option<u32> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64"))
{
    Some(0xc000_003e)
} else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
    Some(0xc000_00b7)
} else {
    None
};

/// Offsets in `struct seccomp_data`. The request of an ioctl is its second argument, of which the
/// kernel uses the lower half.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const REQUEST_AT: u32 = 24;

const fn load(offset: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Continues with the next instruction if the value is equal, else skips `skips` instructions.
const fn only(value: u32, skips: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: 0, jf: skips, k: value }
}

const fn answer(action: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: action }
}

/// Installs the filter in the calling thread and in everything that it starts; it cannot be
/// removed. Returns the listener, close-on-exec.
///
/// Requires `CAP_SYS_ADMIN` in the user namespace (or no-new-privileges, which the caller may set).
/// `EBUSY`: the thread already has a listener; `EINVAL`: the kernel supports none (before Linux
/// 5.5). Makes system calls only: may be called between `fork` and `exec`.
pub fn install() -> io::Result<OwnedFd> {
    let architecture = ARCHITECTURE.ok_or(io::ErrorKind::Unsupported)?;
    let mut program = [
        load(ARCHITECTURE_AT),
        only(architecture, 5),
        load(NUMBER_AT),
        only(libc::SYS_ioctl as u32, 3),
        load(REQUEST_AT),
        only(BINDER_WRITE_READ, 1),
        answer(libc::SECCOMP_RET_USER_NOTIF),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // A call is held for a short time. With this flag (Linux 5.19) only a fatal signal interrupts a
    // call that the listener has received; all other signals wait until the call proceeds.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let best = set_filter(&program, flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
    match best {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => set_filter(&program, flags),
        best => best,
    }
}

fn set_filter(program: &libc::sock_fprog, flags: c_ulong) -> io::Result<OwnedFd> {
    // SAFETY: the program and its instructions live across the call, which copies them; the
    // returned descriptor is new and has no other owner.
    unsafe {
        let operation = libc::SECCOMP_SET_MODE_FILTER;
        let fd = libc::syscall(libc::SYS_seccomp, operation, flags, std::ptr::from_ref(program));
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd as i32)) }
    }
}
