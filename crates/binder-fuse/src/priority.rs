//! Nice values of clients' threads.

use std::io;

use rustix::thread::CapabilitySet;

/// Whether they can be changed *and put back*: the latter is a raise, which takes `CAP_SYS_NICE`, and not that of a
/// user namespace.
pub(crate) fn can_change() -> bool {
    let capable = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE));
    let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    capable && maps_everybody(&users)
}

/// The first user namespace maps each user to himself.
fn maps_everybody(uid_map: &str) -> bool {
    uid_map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// A thread's nice value.
pub(crate) fn nice(tid: u32) -> Option<i32> {
    // SAFETY: a raw call with plain numbers. Unlike the C library's it returns 20 - nice, so that no value looks
    // like an error.
    let result = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, tid) };
    (result > 0).then(|| 20 - result as i32)
}

/// Gives a thread this nice value.
pub(crate) fn set_nice(tid: u32, nice: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, tid, nice) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a thread might give itself this nice value: a weaker one always, a stronger one with its own
/// `CAP_SYS_NICE` or as its `RLIMIT_NICE` says.
pub(crate) fn may_have(tid: u32, nice: i32) -> bool {
    let weaker = self::nice(tid).is_some_and(|own| nice >= own);
    weaker || within_limit(tid, nice) || is_privileged(tid)
}

fn within_limit(tid: u32, nice: i32) -> bool {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is live, and nothing is set.
    let result = unsafe {
        libc::prlimit64(tid as libc::pid_t, libc::RLIMIT_NICE, std::ptr::null(), &mut limit)
    };
    result == 0 && u64::try_from(20 - nice).is_ok_and(|needed| needed <= limit.rlim_cur)
}

fn is_privileged(tid: u32) -> bool {
    let pid = rustix::thread::Pid::from_raw(tid as i32);
    pid.is_some_and(|pid| {
        rustix::thread::capabilities(Some(pid))
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, whose value nobody else needs.
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
    fn a_user_namespace_has_a_map_that_tells_it() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        assert!(!maps_everybody("      1000       1000          1\n"));
        assert!(!maps_everybody(""));
    }

    #[test]
    fn nobody_has_less_than_what_he_has() {
        in_a_thread(|tid| {
            let own = nice(tid).unwrap();
            assert!(may_have(tid, own));
            assert!(may_have(tid, 19));
            if can_change() {
                assert!(may_have(tid, -20), "the privileged have any");
            }
        });
        assert_eq!(nice(u32::MAX / 2), None, "nobody there");
    }
}
