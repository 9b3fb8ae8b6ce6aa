//! What keeps the daemon able to act when memory and CPU are short.

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};

/// Real-time priority of the reapers. Any is above all ordinary tasks; the lowest leaves those
/// real-time tasks alone that somebody has tuned.
const REAPER_FIFO_PRIORITY: i32 = 1;
/// The event loop goes before its reapers, which can be busy for hundreds of milliseconds.
const DAEMON_FIFO_PRIORITY: i32 = 2;

/// Locks all memory, present and future. Returns what is lost when that is refused.
pub fn lock_memory() -> Result<(), String> {
    // What is there now is made present; what comes later (stacks, mostly) only as it is touched.
    mlockall(MlockAllFlags::CURRENT)
        .and_then(|()| mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT))
        .map_err(|errno| {
            format!(
                "cannot lock the daemon's memory ({errno}): under heavy swapping a kill may be late"
            )
        })
}

/// The scheduling of threads that are started now, so of the reapers.
pub fn be_reaper() -> Result<(), String> {
    set_fifo(REAPER_FIFO_PRIORITY)
}

/// The scheduling of the event loop.
pub fn be_daemon() -> Result<(), String> {
    set_fifo(DAEMON_FIFO_PRIORITY)
}

fn set_fifo(priority: i32) -> Result<(), String> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter is a valid sched_param for the length of the call; 0 is this thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) };
    if done == 0 {
        return Ok(());
    }
    let errno = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    Err(format!(
        "no real-time priority ({errno}): on a busy machine a kill may be milliseconds late"
    ))
}

/// Takes the daemon out of the kernel's own victim search.
pub fn be_spared_by_the_kernel() -> Result<(), String> {
    std::fs::write("/proc/self/oom_score_adj", "-1000").map_err(|e| {
        format!(
            "cannot lower oom_score_adj ({e}): the kernel's own OOM killer may choose the daemon"
        )
    })
}
