//! How a thread is scheduled, and on which CPUs.

use headroom_linux::sched::SchedAttr;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::victim::last_errno;

/// Room for as many CPUs as glibc's `cpu_set_t` has.
const CPU_WORDS: usize = 16;

/// A set of CPUs as the system calls take it.
pub(crate) type Cpus = [u64; CPU_WORDS];
/// Any CPU: the kernel takes those that exist and that the thread's cpuset allows.
pub(crate) const ANY_CPU: Cpus = [u64::MAX; CPU_WORDS];

/// The CPU that the caller runs on, alone. `None`: it has too high a number.
pub(crate) fn this_cpu() -> Option<Cpus> {
    // SAFETY: takes nothing.
    let cpu = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
    let mut cpus = [0; CPU_WORDS];
    *cpus.get_mut(cpu / 64)? = 1 << (cpu % 64);
    Some(cpus)
}

/// Lets a thread run there only; 0 is the calling one.
pub(crate) fn run_on(tid: u32, cpus: &Cpus) -> Result<(), Errno> {
    // SAFETY: the kernel reads the array, which is ours.
    let moved = unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, tid, size_of::<Cpus>(), cpus.as_ptr())
    };
    if moved < 0 { Err(last_errno()) } else { Ok(()) }
}

/// A thread's policy, priority and CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    attr: SchedAttr,
    cpus: Cpus,
}

impl Schedule {
    /// As a thread has it; 0 is the calling one.
    pub(crate) fn of(tid: u32) -> Result<Self, Errno> {
        let attr = SchedAttr::of(Pid::from_raw(tid as i32))?;
        let mut cpus = [0; CPU_WORDS];
        let room = size_of::<Cpus>();
        // SAFETY: the kernel writes at most `room` bytes into the array, which is ours.
        let done =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, room, cpus.as_mut_ptr()) };
        if done < 0 {
            return Err(last_errno());
        }
        Ok(Self { attr, cpus })
    }

    /// Ordinary threads do not get the CPU beside it.
    pub(crate) fn is_real_time(&self) -> bool {
        self.attr.is_realtime()
    }

    /// The same, but free to run there.
    pub(crate) fn on(self, cpus: Cpus) -> Self {
        Self { cpus, ..self }
    }

    /// Where it may run.
    pub(crate) fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    /// At the lowest real-time priority on these CPUs. A thread of a higher priority keeps that.
    pub(crate) fn raised(&self, cpus: Cpus) -> Self {
        let policy = self.attr.policy as i32;
        let attr = match policy {
            libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE => self.attr,
            _ => SchedAttr::fifo(1),
        };
        Self { attr, cpus }
    }

    /// The best that is not real-time: for a control group without real-time share.
    pub(crate) fn raised_a_little(&self, cpus: Cpus) -> Self {
        Self { attr: SchedAttr::other(-20), cpus }
    }

    /// As most threads are, unless it is better off already.
    pub(crate) fn ordinary(&self, cpus: Cpus) -> Self {
        let nice = match self.attr.policy as i32 {
            libc::SCHED_OTHER => self.attr.nice.min(0),
            _ => 0,
        };
        let ordinary = SchedAttr::other(nice);
        let better = matches!(
            self.attr.policy as i32,
            libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE
        );
        Self { attr: if better { self.attr } else { ordinary }, cpus }
    }

    /// Gives it to a thread. The CPUs come first: once it has the priority it runs where it may.
    pub(crate) fn apply(&self, tid: u32) -> Result<(), Errno> {
        let Self { attr, cpus } = self;
        let moved = run_on(tid, cpus);
        attr.apply(Pid::from_raw(tid as i32))?;
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_ordinary_only_the_worse_are_raised_to_where_most_are() {
        let (other, idle) = (libc::SCHED_OTHER as u32, libc::SCHED_IDLE as u32);
        for (policy, nice, expected) in
            [(other, 19, 0), (other, 0, 0), (other, -7, -7), (idle, 0, 0)]
        {
            let mut attr = SchedAttr::with_policy(policy);
            attr.nice = nice;
            let raised = Schedule { attr, cpus: [1; CPU_WORDS] }.ordinary(ANY_CPU);
            let SchedAttr { policy, nice, .. } = raised.attr;
            assert_eq!((policy, nice, raised.cpus), (other, expected, ANY_CPU));
        }
    }

    #[test]
    fn a_raised_thread_gets_back_what_it_had() {
        std::thread::spawn(|| {
            let before = Schedule::of(0).unwrap();
            let raised = before.raised(ANY_CPU);
            if raised.apply(0) == Err(Errno::PERM) {
                println!("skipped: no right to raise a thread");
                return;
            }
            let during = Schedule::of(0).unwrap();
            assert_eq!(during.attr.policy, libc::SCHED_FIFO as u32);
            assert_eq!(
                during.raised(ANY_CPU).attr,
                during.attr,
                "who is real-time already stays it"
            );
            assert_eq!(during.ordinary(ANY_CPU).attr, during.attr, "and is not lowered");
            before.apply(0).unwrap();
            assert_eq!(Schedule::of(0).unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
