//! Files on their way from client to client.
//!
//! A file is taken from its sender with `pidfd_getfd` when it sends ([`store`]). No system call
//! installs one in another process, so an unmodified receiver has to do that itself: when its ioctl
//! returns, its thread is stopped ([`tracee`]), made to receive the files over a socket of its own
//! ([`install`]), and let go on. Threads of ours do that ([`giver`]); the event loop hands a
//! delivery over and goes on. Who was started under a seccomp filter of ours needs no stopping
//! ([`trap`]).

mod alarm;
mod closing;
mod giver;
mod install;
mod placement;
#[cfg_attr(target_arch = "x86_64", path = "registers/x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "registers/other.rs")]
mod registers;
mod store;
mod tracee;
mod trap;

pub(crate) use closing::{Charge, ClientFile, Closers};
pub(crate) use giver::{Giver, Job, Outcome, Verdict};
pub(crate) use install::ReadRoom;
pub(crate) use store::Store;
pub(crate) use trap::{Outcome as TrapOutcome, Trap};

/// Why files cannot be passed here; `None` where they can.
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
