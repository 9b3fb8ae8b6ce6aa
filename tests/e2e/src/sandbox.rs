//! A seccomp filter as programs with a sandbox have it.

use std::io;

const FORBIDDEN: [libc::c_long; 5] =
    [libc::SYS_socket, libc::SYS_socketpair, libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_dup3];
/// Offset of the call's number in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;

/// From now on sockets and `dup3` kill this process.
pub fn forbid_sockets() -> io::Result<()> {
    let step = |code: u32, jt: usize, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jt as u8,
        jf: 0,
        k,
    };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let give = libc::BPF_RET | libc::BPF_K;
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, NUMBER_AT)];
    let calls = FORBIDDEN.iter().enumerate();
    filter.extend(calls.map(|(at, call)| step(equal, FORBIDDEN.len() - at, *call as u32)));
    filter.push(step(give, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(step(give, 0, libc::SECCOMP_RET_KILL_PROCESS));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: plain numbers, and a filter that lives across the call, which copies it.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}
