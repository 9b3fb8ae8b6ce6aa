//! Who dies with a victim: its group, its descendants. And who shares its memory.

use std::fs;

use rustix::process::Signal;

use crate::identity::{Stat, stat};
use crate::victim::{Victim, last_errno};

/// `KCMP_VM` of the kernel: do two processes share their address space?
const KCMP_VM: i32 = 1;
/// So many looks for those that were born since the last one. All that were found are stopped by
/// then, so that only a fork that was under way can have escaped a look.
const LOOKS: u32 = 16;

/// Who is killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The process.
    #[default]
    Process,
    /// Its process group.
    Group,
    /// It and all its descendants.
    Family,
}

/// A victim, and whether we stopped it.
pub(crate) struct Relative {
    pub(crate) victim: Victim,
    stopped: bool,
}

impl Relative {
    /// Stops the process so that it does not fork, unless it is stopped already.
    fn hold(victim: Victim, state: u8) -> Self {
        let stopped = state != b'T' && victim.signal(Signal::STOP).is_ok();
        Self { victim, stopped }
    }

    /// Lets a process go on that is not killed after all.
    pub(crate) fn release(&self) {
        if self.stopped {
            let _ = self.victim.signal(Signal::CONT);
        }
    }
}

/// The victim and those who are to die with it, all stopped. Init, kernel threads, and this process
/// are never among them.
pub(crate) fn gather(root: Victim, scope: Scope) -> Vec<Relative> {
    let own = stat(root.pid()).filter(|own| own.start_ticks == root.identity().start_ticks);
    let (Some(own), true) = (own, scope != Scope::Process) else {
        return vec![Relative { victim: root, stopped: false }];
    };
    let mut found = vec![Relative::hold(root, own.state)];
    for _ in 0..LOOKS {
        let before = found.len();
        for (pid, stat) in processes() {
            let known = |pid| found.iter().any(|relative| relative.victim.pid() == pid);
            let related = match scope {
                Scope::Group => own.group != 0 && stat.group == own.group,
                _ => known(stat.parent),
            };
            if !related || known(pid) || stat.kernel_thread || stat.state == b'Z' {
                continue;
            }
            let opened = Victim::open(pid).ok();
            // The pid may have changed hands since it was looked at.
            if let Some(victim) = opened.filter(|v| v.identity().start_ticks == stat.start_ticks) {
                found.push(Relative::hold(victim, stat.state));
            }
        }
        if found.len() == before {
            break;
        }
    }
    found
}

/// A process that uses the same memory as this one and is not dying: as long as it lives, the
/// memory stays. Looks at every process.
pub fn sharer_of(victim: &Victim) -> Option<u32> {
    let pid = victim.pid();
    let same = |other: u32| {
        // SAFETY: kcmp takes numbers, and no memory of ours.
        let order = unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) };
        debug_assert!(order >= 0 || last_errno().raw_os_error() > 0);
        order == 0
    };
    let mut others = processes().filter(|(other, stat)| *other != pid && !stat.kernel_thread);
    others.find(|(other, stat)| stat.state != b'Z' && same(*other)).map(|(other, _)| other)
}

fn processes() -> impl Iterator<Item = (u32, Stat)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, stat(pid)?)))
}
