//! Privileges that let a daemon act when memory and CPU time are short.
//!
//! Each may be refused. The daemon then works without it, and reports what was refused together
//! with the consequence, which is different for each daemon.

use std::io;

use headroom_linux::descriptors;
use headroom_linux::sched::SchedAttr;
use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use thiserror::Error;

/// A privilege that was refused.
#[derive(Debug, Error)]
pub enum PrivilegeError {
    /// [`set_realtime`].
    #[error("no real-time priority ({0})")]
    Realtime(Errno),
    /// [`lock_memory`], [`lock_resident_memory`].
    #[error("cannot lock the daemon's memory ({0})")]
    LockedMemory(Errno),
    /// [`prepare_descriptors`].
    #[error("no room for many file descriptors ({0})")]
    Descriptors(Errno),
    /// [`exempt_from_oom_killer`].
    #[error("cannot lower oom_score_adj ({0})")]
    OomScore(io::Error),
}

impl PrivilegeError {
    /// The message for the daemon's status: what was refused, and what follows from it.
    pub fn with_consequence(&self, consequence: &str) -> String {
        format!("{self}: {consequence}")
    }
}

/// Sets `SCHED_FIFO` for the calling thread and for the threads that it starts. Priority 1 precedes
/// all ordinary threads, and is preceded by the real-time threads that an administrator has set up.
pub fn set_realtime(priority: u32) -> Result<(), PrivilegeError> {
    SchedAttr::fifo(priority).apply(None).map_err(PrivilegeError::Realtime)
}

/// Locks all memory, present and future. Present pages are read in; later ones (stacks, mostly)
/// only when they are first touched.
pub fn lock_memory() -> Result<(), PrivilegeError> {
    mlockall(MlockAllFlags::CURRENT)
        .and_then(|()| mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT))
        .map_err(PrivilegeError::LockedMemory)
}

/// Locks the pages that are resident now, and later ones from their first use. For programs that
/// have [paged out their startup](crate::page_out::page_out_startup).
pub fn lock_resident_memory() -> Result<(), PrivilegeError> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        .map_err(PrivilegeError::LockedMemory)
}

/// Makes room for so many file descriptors, before other threads are started; see
/// [`descriptors::prepare`].
pub fn prepare_descriptors(count: u32) -> Result<(), PrivilegeError> {
    descriptors::prepare(count).map_err(PrivilegeError::Descriptors)
}

/// Exempts the process from the kernel's OOM killer.
pub fn exempt_from_oom_killer() -> Result<(), PrivilegeError> {
    std::fs::write("/proc/self/oom_score_adj", "-1000").map_err(PrivilegeError::OomScore)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_real_time_or_the_refusal_is_reported() {
        let after = std::thread::spawn(|| (set_realtime(1), SchedAttr::of(None).unwrap()));
        match after.join().unwrap() {
            (Ok(()), attr) => assert!(attr.is_realtime()),
            (Err(PrivilegeError::Realtime(Errno::PERM)), attr) => assert!(!attr.is_realtime()),
            (Err(other), _) => panic!("{other}"),
        }
    }
}
