//! How a thread is scheduled, and on which CPUs.

use rustix::io::Errno;

use crate::victim::last_errno;

/// Size of the first version of the kernel's `struct sched_attr`; every kernel knows it.
const ATTR_SIZE: u32 = 48;
/// Room for as many CPUs as glibc's `cpu_set_t` has.
const CPU_WORDS: usize = 16;

/// `struct sched_attr`, version 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// A set of CPUs as the system calls take it.
pub(crate) type Cpus = [u64; CPU_WORDS];
/// Any CPU: the kernel takes those that exist and that the thread's cpuset allows.
const ANY_CPU: Cpus = [u64::MAX; CPU_WORDS];

/// A thread's policy, priority and CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    attr: Attr,
    cpus: Cpus,
}

impl Schedule {
    /// As a thread has it; 0 is the calling one.
    pub(crate) fn of(tid: u32) -> Result<Self, Errno> {
        let mut attr = Attr { size: ATTR_SIZE, ..Attr::default() };
        let mut cpus = [0; CPU_WORDS];
        // SAFETY: the kernel writes at most ATTR_SIZE bytes into the structure, which is ours.
        let done =
            unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, ATTR_SIZE, 0) };
        if done != 0 {
            return Err(last_errno());
        }
        let room = size_of::<Cpus>();
        // SAFETY: the kernel writes at most `room` bytes into the array, which is ours.
        let done =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid, room, cpus.as_mut_ptr()) };
        if done < 0 {
            return Err(last_errno());
        }
        Ok(Self { attr, cpus })
    }

    /// At the lowest real-time priority on any CPU. A thread of a higher priority keeps that.
    pub(crate) fn raised(&self) -> Self {
        let policy = self.attr.policy as i32;
        let attr = match policy {
            libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE => self.attr,
            _ => Attr {
                size: ATTR_SIZE,
                policy: libc::SCHED_FIFO as u32,
                priority: 1,
                ..Attr::default()
            },
        };
        Self { attr, cpus: ANY_CPU }
    }

    /// The best that is not real-time, on any CPU: for a control group without real-time share.
    pub(crate) fn raised_a_little(&self) -> Self {
        let attr = Attr {
            size: ATTR_SIZE,
            policy: libc::SCHED_OTHER as u32,
            nice: -20,
            ..Attr::default()
        };
        Self { attr, cpus: ANY_CPU }
    }

    /// Gives it to a thread. The CPUs come first: once it has the priority it runs where it may.
    pub(crate) fn apply(&self, tid: u32) -> Result<(), Errno> {
        let Self { attr, cpus } = self;
        // SAFETY: the kernel reads the array, which is ours.
        let moved = unsafe {
            libc::syscall(libc::SYS_sched_setaffinity, tid, size_of::<Cpus>(), cpus.as_ptr())
        };
        let moved = if moved < 0 { Err(last_errno()) } else { Ok(()) };
        // SAFETY: the kernel reads ATTR_SIZE bytes of the structure, which is ours.
        let done = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const *attr, 0) };
        if done != 0 { Err(last_errno()) } else { moved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_thread_gets_back_what_it_had() {
        std::thread::spawn(|| {
            let before = Schedule::of(0).unwrap();
            let raised = before.raised();
            if raised.apply(0) == Err(Errno::PERM) {
                println!("skipped: no right to raise a thread");
                return;
            }
            let during = Schedule::of(0).unwrap();
            assert_eq!(during.attr.policy, libc::SCHED_FIFO as u32);
            assert_eq!(during.raised().attr, during.attr, "who is real-time already stays it");
            before.apply(0).unwrap();
            assert_eq!(Schedule::of(0).unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
