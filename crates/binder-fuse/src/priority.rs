//! Priorities of clients' threads.

use std::collections::HashMap;
use std::io;

use binder_driver::{Policy, Priority};
use headroom_linux::features;
use headroom_linux::sched::SchedAttr;
use rustix::process::Pid;
use rustix::thread::CapabilitySet;

/// Whether priorities can be changed *and restored*: the latter raises a priority, which requires
/// `CAP_SYS_NICE` in the initial user namespace.
pub(crate) fn can_change() -> bool {
    let capable = features::has_capability(CapabilitySet::SYS_NICE);
    let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    capable && maps_all_users(&users)
}

/// Whether this is the initial user namespace, which maps each user to itself.
fn maps_all_users(uid_map: &str) -> bool {
    uid_map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Priorities that were read in the current tick of the coarse clock, by tid.
#[derive(Debug, Default)]
pub(crate) struct RecentPriorities {
    tick_ns: u64,
    read: HashMap<u32, Option<Priority>>,
}

impl RecentPriorities {
    /// A thread's priority, read in the tick that starts at `tick_ns`.
    pub(crate) fn of(&mut self, tid: u32, tick_ns: u64) -> Option<Priority> {
        if self.tick_ns != tick_ns {
            self.tick_ns = tick_ns;
            self.read.clear();
        }
        *self.read.entry(tid).or_insert_with(|| of(tid))
    }

    /// The server changes a thread's priority.
    pub(crate) fn forget(&mut self, tid: u32) {
        self.read.remove(&tid);
    }
}

/// `SCHED_FLAG_RESET_ON_FORK`.
const RESET_ON_FORK: u64 = 1;
const FIFO: u32 = libc::SCHED_FIFO as u32;
const ROUND_ROBIN: u32 = libc::SCHED_RR as u32;

/// A thread's priority; `None` for `SCHED_DEADLINE`.
pub(crate) fn of(tid: u32) -> Option<Priority> {
    let found = SchedAttr::of(thread(tid)).ok()?;
    let level = found.priority.min(99) as u8;
    let (policy, nice) = match found.policy {
        FIFO => (Policy::Fifo(level), nice(tid)?),
        ROUND_ROBIN => (Policy::RoundRobin(level), nice(tid)?),
        deadline if deadline == libc::SCHED_DEADLINE as u32 => return None,
        fair => (Policy::Fair(fair), found.nice),
    };
    Some(Priority { nice, policy, reset_on_fork: found.flags & RESET_ON_FORK != 0 })
}

/// Gives a thread this priority.
pub(crate) fn set(tid: u32, priority: Priority) -> io::Result<()> {
    set_nice(tid, priority.nice)?;
    let (policy, level) = match priority.policy {
        Policy::Fair(policy) => (policy, 0),
        Policy::Fifo(level) => (FIFO, level.into()),
        Policy::RoundRobin(level) => (ROUND_ROBIN, level.into()),
    };
    let flags = if priority.reset_on_fork { RESET_ON_FORK } else { 0 };
    let now = SchedAttr::of(thread(tid))?;
    // Usually only the nice value changes; the other attributes stay as they are.
    if (now.policy, now.priority, now.flags & RESET_ON_FORK) == (policy, level, flags) {
        return Ok(());
    }
    let mut wanted = SchedAttr::with_policy(policy);
    (wanted.flags, wanted.nice, wanted.priority) = (flags, priority.nice, level);
    Ok(wanted.apply(thread(tid))?)
}

/// The CPU time that a thread has had so far, nanoseconds: the first number of its `schedstat`.
/// `None`: there is no such thread, or the kernel does not count.
pub(crate) fn run_time_ns(tid: u32) -> Option<u64> {
    let file = std::fs::File::open(format!("/proc/{tid}/schedstat")).ok()?;
    let mut bytes = [0; 64];
    let len = rustix::io::read(&file, &mut bytes).ok()?;
    let text = std::str::from_utf8(&bytes[..len]).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn thread(tid: u32) -> Option<Pid> {
    Pid::from_raw(tid as i32)
}

/// A thread's nice value.
fn nice(tid: u32) -> Option<i32> {
    // SAFETY: a raw call with plain numbers. Unlike the C library's function it returns 20 - nice,
    // so that no value looks like an error.
    let result = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, tid) };
    (result > 0).then(|| 20 - result as i32)
}

fn set_nice(tid: u32, nice: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, tid, nice) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The part of this priority that a thread may set itself: a weaker nice value always, anything
/// else with its own `CAP_SYS_NICE` or within its `RLIMIT_NICE` and `RLIMIT_RTPRIO`. A nice value
/// and a real-time priority are reduced to the allowed ones.
pub(crate) fn allowed(tid: u32, priority: Priority) -> Option<Priority> {
    let mut nice = priority.nice.clamp(-20, 19);
    let own = of(tid)?;
    if is_privileged(tid) {
        return Some(Priority { nice, ..priority });
    }
    if nice < own.nice {
        // The limit is 20 - nice: 1 to 40; 0 allows nothing.
        let strongest = 20 - limit(tid, libc::RLIMIT_NICE).min(40) as i32;
        nice = nice.max(strongest).min(own.nice);
    }
    if priority.policy == own.policy {
        return Some(Priority { nice, ..priority });
    }
    let most = limit(tid, libc::RLIMIT_RTPRIO).min(99) as u8;
    let policy = match priority.policy {
        Policy::Fifo(level) if most > 0 => Policy::Fifo(level.min(most)),
        Policy::RoundRobin(level) if most > 0 => Policy::RoundRobin(level.min(most)),
        Policy::Fifo(_) | Policy::RoundRobin(_) => return None,
        fair => fair,
    };
    Some(Priority { nice, policy, ..priority })
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

fn limit(tid: u32, resource: Resource) -> u64 {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is live, and no limit is set.
    let result =
        unsafe { libc::prlimit64(tid as libc::pid_t, resource, std::ptr::null(), &mut limit) };
    if result == 0 { limit.rlim_cur } else { 0 }
}

fn is_privileged(tid: u32) -> bool {
    thread(tid).is_some_and(|pid| {
        rustix::thread::capabilities(Some(pid))
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the test in a thread of its own, because it changes the nice value.
    fn in_a_thread<T: Send>(test: impl FnOnce(u32) -> T + Send) -> T {
        std::thread::scope(|scope| {
            let run = || test(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            scope.spawn(run).join().unwrap()
        })
    }

    #[test]
    fn a_threads_nice_value_is_its_own() {
        let before = nice(std::process::id()).unwrap();
        in_a_thread(|tid| {
            let weaker = (nice(tid).unwrap() + 1).min(19);
            set_nice(tid, weaker).unwrap();
            assert_eq!(nice(tid), Some(weaker));
        });
        assert_eq!(nice(std::process::id()), Some(before));
    }

    #[test]
    fn a_priority_is_read_once_per_tick_and_after_a_change_by_the_server() {
        in_a_thread(|tid| {
            let mut recent = RecentPriorities::default();
            let own = recent.of(tid, 1).unwrap();
            let weaker = (own.nice + 1).min(19);
            set_nice(tid, weaker).unwrap();
            assert_eq!(recent.of(tid, 1), Some(own));
            assert_eq!(recent.of(tid, 2), Some(Priority { nice: weaker, ..own }));
            set_nice(tid, 19).unwrap();
            recent.forget(tid);
            assert_eq!(recent.of(tid, 2), Some(Priority { nice: 19, ..own }));
        });
    }

    #[test]
    fn a_user_namespace_is_detected_by_its_map() {
        assert!(maps_all_users("         0          0 4294967295\n"));
        assert!(!maps_all_users("      1000       1000          1\n"));
        assert!(!maps_all_users(""));
    }

    #[test]
    fn a_thread_may_have_its_own_priority_or_a_weaker_one() {
        in_a_thread(|tid| {
            let own = of(tid).unwrap();
            assert_eq!(allowed(tid, own), Some(own));
            let weakest = Priority { nice: 19, ..own };
            assert_eq!(allowed(tid, weakest), Some(weakest));
            if can_change() {
                let any = Priority { nice: -20, policy: Policy::Fifo(1), reset_on_fork: true };
                assert_eq!(allowed(tid, any), Some(any), "the privileged have any");
            }
        });
        assert_eq!(of(u32::MAX / 2), None, "no such thread");
    }

    #[test]
    fn a_thread_gets_a_real_time_policy_and_all_of_its_own_back() {
        if !can_change() {
            return test_support::skip("needs CAP_SYS_NICE");
        }
        in_a_thread(|tid| {
            let batch = Policy::Fair(libc::SCHED_BATCH as u32);
            let own = Priority { nice: 3, policy: batch, reset_on_fork: false };
            set(tid, own).unwrap();
            for policy in [Policy::Fifo(1), Policy::RoundRobin(2)] {
                let other = Priority { nice: -1, policy, reset_on_fork: true };
                set(tid, other).unwrap();
                assert_eq!(of(tid), Some(other));
                set(tid, own).unwrap();
                assert_eq!(of(tid), Some(own));
            }
        });
    }
}
