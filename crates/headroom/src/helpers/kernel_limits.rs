//! Limits that a daemon which was killed has left in force in the kernel.

/// For an operator: the limits are enforced, and how they end.
pub const STILL_ENFORCED: &str =
    "limits that it has set are still enforced in the kernel; `headroom oom detach` ends them";

/// Whether there are such limits. `None`: only root sees them.
#[cfg(feature = "bpf")]
pub fn are_left() -> Option<bool> {
    let root = rustix::process::geteuid().is_root();
    root.then(|| memory_watch::enforces_without_daemon(std::path::Path::new(control::PINS_FOLDER)))
}

/// Whether there are such limits. The static program cannot use BPF.
#[cfg(not(feature = "bpf"))]
pub fn are_left() -> Option<bool> {
    None
}
