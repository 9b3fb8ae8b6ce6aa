//! Scheduling policy and priority of a thread: `sched_getattr(2)`, `sched_setattr(2)`.

use std::io;

use rustix::io::Errno;
use rustix::process::Pid;

/// `struct sched_attr` in its first version, which every kernel accepts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedAttr {
    size: u32,
    /// `SCHED_OTHER`, `SCHED_FIFO`, ...
    pub policy: u32,
    /// `SCHED_FLAG_*`.
    pub flags: u64,
    /// -20 to 19; for ordinary policies.
    pub nice: i32,
    /// 1 to 99; for real-time policies.
    pub priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

impl SchedAttr {
    /// This policy, with everything else 0.
    pub const fn with_policy(policy: u32) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            policy,
            flags: 0,
            nice: 0,
            priority: 0,
            runtime_ns: 0,
            deadline_ns: 0,
            period_ns: 0,
        }
    }

    /// `SCHED_FIFO` with a priority from 1 to 99.
    pub const fn fifo(priority: u32) -> Self {
        Self { priority, ..Self::with_policy(libc::SCHED_FIFO as u32) }
    }

    /// `SCHED_OTHER` with a nice value from -20 to 19.
    pub const fn other(nice: i32) -> Self {
        Self { nice, ..Self::with_policy(libc::SCHED_OTHER as u32) }
    }

    /// The current attributes of a thread; `None` is the calling one.
    pub fn of(thread: Option<Pid>) -> Result<Self, Errno> {
        let mut attr = Self::with_policy(0);
        let size = size_of::<Self>();
        // SAFETY: the kernel writes at most `size` bytes into the structure, which is ours.
        let result = unsafe {
            libc::syscall(libc::SYS_sched_getattr, Pid::as_raw(thread), &raw mut attr, size, 0)
        };
        if result == 0 { Ok(attr) } else { Err(last_errno()) }
    }

    /// Applies them to a thread; `None` is the calling one.
    pub fn apply(&self, thread: Option<Pid>) -> Result<(), Errno> {
        // SAFETY: the kernel reads as many bytes of the structure as its field `size` gives.
        let result = unsafe {
            libc::syscall(libc::SYS_sched_setattr, Pid::as_raw(thread), &raw const *self, 0)
        };
        if result == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// The same, but children and new threads of the thread start as ordinary ones.
    pub const fn reset_on_fork(self) -> Self {
        Self { flags: self.flags | libc::SCHED_FLAG_RESET_ON_FORK as u64, ..self }
    }

    /// `SCHED_FIFO` or `SCHED_RR`.
    pub fn is_realtime(&self) -> bool {
        matches!(self.policy as i32, libc::SCHED_FIFO | libc::SCHED_RR)
    }
}

/// Runs a closure, during which children of the calling thread start with the ordinary policy and a
/// nice value of 0 even if the thread has a real-time priority.
pub fn with_ordinary_children<T>(run: impl FnOnce() -> T) -> T {
    let realtime = SchedAttr::of(None).ok().filter(SchedAttr::is_realtime);
    // Cannot fail: to give up what children inherit needs no privilege.
    let reset = realtime.filter(|attr| attr.reset_on_fork().apply(None).is_ok());
    let result = run();
    if let Some(attr) = reset {
        // Fails if the privilege for a real-time priority was dropped; the thread keeps its own.
        let _ = attr.apply(None);
    }
    result
}

/// Makes the calling thread an ordinary one with this nice value, or with 0 where the privilege for
/// a negative value is missing. Giving up a real-time priority is always permitted.
pub fn leave_realtime(nice: i32) {
    let set = |nice| SchedAttr::other(nice).apply(None);
    let _ = set(nice).or_else(|_| set(0));
}

/// Gives the session of this process precedence over other sessions, if it leads the session. With
/// autogroups (sched(7)) nice values count within a session only. Without them this has no effect.
pub fn raise_own_session(nice: i32) -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name may contain spaces; the state, the parent, the group and the session follow it.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
    let session = fields.and_then(|mut fields| fields.nth(3)).and_then(|text| text.parse().ok());
    if session != Some(std::process::id()) {
        return Ok(());
    }
    std::fs::write("/proc/self/autogroup", nice.to_string())
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_are_applied_are_read_back() {
        std::thread::spawn(|| {
            let before = SchedAttr::of(None).unwrap();
            // A higher nice value needs no privilege.
            let weaker = SchedAttr { nice: (before.nice + 1).min(19), ..before };
            weaker.apply(None).unwrap();
            assert_eq!(SchedAttr::of(Some(rustix::thread::gettid())), Ok(weaker));
            match SchedAttr::fifo(1).apply(None) {
                Ok(()) => assert!(SchedAttr::of(None).unwrap().is_realtime()),
                Err(errno) => assert_eq!(errno, Errno::PERM),
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn children_of_a_realtime_thread_are_ordinary_if_that_is_requested() {
        let sleep = || {
            let mut command = std::process::Command::new("sleep");
            command.arg("60").spawn().unwrap()
        };
        let policy_of = |mut child: std::process::Child| {
            let attr = SchedAttr::of(Some(Pid::from_child(&child))).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            attr
        };
        std::thread::spawn(move || {
            let realtime = SchedAttr::fifo(1).apply(None).is_ok();
            let before = SchedAttr::of(None).unwrap();
            assert_eq!(policy_of(sleep()).is_realtime(), realtime, "inherited otherwise");
            let child = policy_of(with_ordinary_children(sleep));
            assert!(!child.is_realtime(), "{child:?}");
            assert_eq!(SchedAttr::of(None), Ok(before));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_does_not_exist_has_no_attributes() {
        assert_eq!(SchedAttr::of(Pid::from_raw(i32::MAX)), Err(Errno::SRCH));
    }
}
