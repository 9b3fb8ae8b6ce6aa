//! Processes that are killed with a victim: its group or its descendants. And processes that share
//! its memory.

use std::fs;

use rustix::process::Signal;

use crate::identity::{Stat, stat};
use crate::victim::{Victim, last_errno};

/// `KCMP_VM` of the kernel: compares two processes' address spaces.
const KCMP_VM: i32 = 1;
/// Maximum number of scans for processes that were created since the last one. All that were found
/// are stopped by then, so only a fork that was in progress can be missed by a scan.
const LOOKS: u32 = 16;

/// The processes that are killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Only the process.
    #[default]
    Process,
    /// All processes of its process group.
    Group,
    /// The process and all its descendants.
    Family,
}

/// A victim, and whether it was stopped here.
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

    /// Continues a process that is not killed after all.
    pub(crate) fn release(&self) {
        if self.stopped {
            let _ = self.victim.signal(Signal::CONT);
        }
    }
}

/// The victim and the processes that are killed with it, all stopped. Init, kernel threads, and
/// this process are never included.
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
            // The pid may have been reused since the scan.
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

/// A process that uses the same memory and is not dying: the memory is not freed before it exits.
/// Scans all processes.
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
