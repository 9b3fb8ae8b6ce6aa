//! Passes files from client to client.
//!
//! A file is taken from its sender with `pidfd_getfd` when it sends ([`store`]). No system call
//! installs a file in another process, so an unmodified receiver has to receive it itself: when its
//! ioctl returns, its thread is stopped ([`tracee`]), made to receive the files over a socket of
//! its own ([`install`]), and resumed. Worker threads do that ([`fd_installer`]) and report to the
//! event loop. A receiver that was started under our seccomp filter is not stopped ([`trap`]).

mod fd_installer;
mod install;
pub(crate) mod ptrace;
#[cfg_attr(target_arch = "x86_64", path = "registers/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "registers/aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "registers/other.rs")]
mod registers;
mod seccomp;
mod store;
mod system_call;
mod tracee;
mod trap;

pub(crate) use client_files::{Charge, ClientFile, Closers, quota_of_descriptors};
pub(crate) use fd_installer::{Completion, FdInstaller, Job, Outcome};
pub(crate) use install::ReadRoom;
pub(crate) use store::{SavedFiles, Store};
pub(crate) use tracee::CallStop;
pub(crate) use trap::{Outcome as TrapOutcome, Trap};

/// The reason why files cannot be passed on this machine; `None` where they can.
pub(crate) fn lacking() -> Option<String> {
    if !registers::SUPPORTED {
        return Some(format!(
            "no file descriptors in transactions on {}: they are refused (EPERM)",
            std::env::consts::ARCH
        ));
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let restricted = scope.trim().parse().is_ok_and(|scope: u32| scope > 0);
    let trace = rustix::thread::CapabilitySet::SYS_PTRACE;
    let may_trace =
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(trace));
    (restricted && !may_trace).then(|| {
        "no file descriptors in transactions: kernel.yama.ptrace_scope is not 0, and \
         CAP_SYS_PTRACE is missing"
            .into()
    })
}
