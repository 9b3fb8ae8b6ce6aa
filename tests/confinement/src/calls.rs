//! System calls by name.

macro_rules! calls {
    ($($name:ident)*) => { [$((stringify!($name), libc::$name)),*] };
}

/// The system calls that units list; a missing one must be added here.
const CALLS: &[(&str, libc::c_long)] = &calls! {
    SYS_accept4 SYS_access SYS_arch_prctl SYS_bind SYS_bpf SYS_brk SYS_capget SYS_chdir SYS_chmod
    SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_clone SYS_clone3 SYS_close
    SYS_close_range SYS_connect SYS_dup SYS_dup2 SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl
    SYS_epoll_pwait SYS_epoll_wait SYS_eventfd2 SYS_execve SYS_execveat SYS_exit SYS_exit_group
    SYS_faccessat SYS_faccessat2 SYS_fadvise64
    SYS_fallocate SYS_fchmod SYS_fchmodat SYS_fcntl SYS_flock SYS_fork SYS_fsconfig
    SYS_fsmount SYS_fsopen SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_futex SYS_getcwd
    SYS_getdents SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid SYS_getpeername SYS_getpgid
    SYS_getpgrp SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom SYS_getrlimit SYS_getsockname
    SYS_getsockopt SYS_gettid SYS_gettimeofday SYS_getuid SYS_getxattr SYS_inotify_add_watch
    SYS_inotify_init1 SYS_inotify_rm_watch SYS_ioctl SYS_kcmp SYS_kill SYS_listen SYS_lseek
    SYS_lstat
    SYS_madvise SYS_membarrier SYS_memfd_create SYS_mkdir SYS_mkdirat SYS_mlock SYS_mlockall
    SYS_mmap SYS_mount SYS_mprotect SYS_mremap SYS_munlock SYS_munlockall SYS_munmap SYS_nanosleep
    SYS_newfstatat SYS_open SYS_openat SYS_pause SYS_perf_event_open SYS_pidfd_getfd SYS_pidfd_open
    SYS_pidfd_send_signal SYS_pipe SYS_pipe2 SYS_poll SYS_ppoll SYS_prctl SYS_pread64 SYS_preadv
    SYS_prlimit64 SYS_process_madvise SYS_process_mrelease SYS_process_vm_readv
    SYS_process_vm_writev SYS_pselect6 SYS_ptrace SYS_pwrite64 SYS_pwritev SYS_read SYS_readlink
    SYS_readlinkat SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_rename SYS_renameat SYS_renameat2
    SYS_restart_syscall SYS_rmdir SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_rt_sigsuspend SYS_rt_sigtimedwait SYS_sched_getaffinity SYS_sched_getattr SYS_sched_getparam
    SYS_sched_getscheduler SYS_sched_setaffinity SYS_sched_setattr SYS_sched_setscheduler
    SYS_sched_yield SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_robust_list SYS_set_tid_address
    SYS_setpgid SYS_setpriority SYS_setresuid SYS_setsid SYS_setsockopt SYS_setxattr SYS_shutdown
    SYS_sigaltstack SYS_signalfd4 SYS_socket SYS_socketpair SYS_stat SYS_statfs SYS_statx
    SYS_symlink SYS_symlinkat SYS_sysinfo SYS_tgkill SYS_timer_create SYS_timer_delete
    SYS_timer_settime SYS_timerfd_create SYS_timerfd_settime SYS_tkill SYS_umask
    SYS_umount2 SYS_uname SYS_unlink SYS_unlinkat SYS_unshare SYS_vfork SYS_wait4
    SYS_waitid SYS_write SYS_writev
};

/// The number of a system call with a name like `read`.
pub(crate) fn number(of: &str) -> Option<u32> {
    // libc does not have it; the number is that of all architectures.
    if of == "cachestat" {
        return Some(451);
    }
    let found = CALLS.iter().find(|(name, _)| name.strip_prefix("SYS_") == Some(of));
    found.map(|(_, number)| *number as u32)
}
