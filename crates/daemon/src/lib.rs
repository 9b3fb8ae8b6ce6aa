//! What keeps a daemon able to act when memory and CPU are short. Each step may be refused; the daemon goes on and
//! says what is lost, in its own words. And what else programs of ours have in common.

pub mod service;
mod settle;
pub mod user_database;

use std::io;

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};

pub use service::ServiceManager;
pub use settle::{forget_the_start, give_back_freed, keep_large_blocks_apart};

/// Locks all memory, present and future.
pub fn lock_memory() -> Result<(), Errno> {
    // What is there now is made present; what comes later (stacks, mostly) only as it is touched.
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}

/// Locks what is in memory now, and what will be, from its first use on. For those who have
/// [forgotten their start](forget_the_start) and used since what they need.
pub fn lock_memory_in_use() -> Result<(), Errno> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}

/// Puts the calling thread, and those that it will start, before all ordinary ones: `SCHED_FIFO` with this priority.
/// 1 is enough for that, and leaves those alone that somebody has tuned.
pub fn be_prompt(priority: i32) -> Result<(), Errno> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter is a valid sched_param for the length of the call; 0 is this thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameter) };
    if done == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Takes the process out of the kernel's own victim search.
pub fn be_spared_by_the_kernel() -> io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", "-1000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_thread_is_real_time_or_knows_that_it_is_not() {
        let policy = std::thread::spawn(|| {
            let done = be_prompt(1);
            // SAFETY: no pointers; 0 is this thread.
            (done, unsafe { libc::sched_getscheduler(0) })
        });
        match policy.join().unwrap() {
            (Ok(()), policy) => assert_eq!(policy, libc::SCHED_FIFO),
            (Err(errno), policy) => {
                assert_eq!((errno, policy), (Errno::PERM, libc::SCHED_OTHER));
            }
        }
    }
}
