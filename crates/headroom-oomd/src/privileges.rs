//! What keeps the daemon able to act when memory and CPU are short, and what is lost without it.

/// Real-time priority of the reapers. Any is above all ordinary tasks; the lowest leaves those
/// real-time tasks alone that somebody has tuned.
const REAPER_FIFO_PRIORITY: i32 = 1;
/// The event loop goes before its reapers, which can be busy for hundreds of milliseconds.
const DAEMON_FIFO_PRIORITY: i32 = 2;

/// Locks what is in memory, and later what comes into it. Returns what is lost when that is refused.
pub fn lock_memory() -> Result<(), String> {
    daemon::lock_memory_in_use().map_err(|errno| {
        format!(
            "cannot lock the daemon's memory ({errno}): under heavy swapping a kill may be late"
        )
    })
}

/// The scheduling of threads that are started now, so of the reapers.
pub fn be_reaper() -> Result<(), String> {
    be_prompt(REAPER_FIFO_PRIORITY)
}

/// The scheduling of the event loop.
pub fn be_daemon() -> Result<(), String> {
    be_prompt(DAEMON_FIFO_PRIORITY)
}

fn be_prompt(priority: i32) -> Result<(), String> {
    daemon::be_prompt(priority).map_err(|errno| {
        format!(
            "no real-time priority ({errno}): on a busy machine a kill may be milliseconds late"
        )
    })
}

/// Takes the daemon out of the kernel's own victim search.
pub fn be_spared_by_the_kernel() -> Result<(), String> {
    daemon::be_spared_by_the_kernel().map_err(|e| {
        format!(
            "cannot lower oom_score_adj ({e}): the kernel's own OOM killer may choose the daemon"
        )
    })
}
