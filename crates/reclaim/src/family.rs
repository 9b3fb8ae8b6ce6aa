//! Processes that are killed with a victim: its group or its descendants. And processes that share
//! its memory.

use std::fs;

use rustix::process::Signal;

use crate::victim::{ProcStatus, Victim, last_errno, status};

/// `KCMP_VM` of the kernel: compares two processes' address spaces.
const KCMP_VM: i32 = 1;
/// Longest search for a process that shares the memory of a victim.
const LONGEST_SEARCH: std::time::Duration = std::time::Duration::from_secs(5);
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
    let own = status(root.pid()).filter(|_| root.has_its_pid());
    let (Some(own), true) = (own, scope != Scope::Process) else {
        return vec![Relative { victim: root, stopped: false }];
    };
    let mut found = vec![Relative::hold(root, own.state)];
    for _ in 0..LOOKS {
        let before = found.len();
        for (pid, status) in processes() {
            let known = |pid| found.iter().any(|relative| relative.victim.pid() == pid);
            let is_related = |status: &ProcStatus| match scope {
                Scope::Group => own.group != 0 && status.group == own.group,
                _ => known(status.parent),
            };
            if !is_related(&status) || known(pid) || status.state == b'Z' {
                continue;
            }
            let Ok(victim) = Victim::open(pid) else { continue };
            // The pid may have been reused since the scan.
            let now = self::status(pid).filter(|_| victim.has_its_pid());
            if let Some(now) = now.filter(is_related) {
                found.push(Relative::hold(victim, now.state));
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
///
/// `kcmp` waits for the `execve` of a process, which can delay it without end: after some seconds
/// the answer is `None`.
pub fn sharer_of(victim: &Victim) -> Option<u32> {
    let pid = victim.pid();
    let (sends, found) = std::sync::mpsc::channel();
    std::thread::spawn(move || sends.send(find_sharer_of(pid)));
    found.recv_timeout(LONGEST_SEARCH).ok().flatten()
}

fn find_sharer_of(pid: u32) -> Option<u32> {
    let same = |other: u32| {
        // SAFETY: kcmp takes numbers, and no memory of ours.
        let order = unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) };
        debug_assert!(order >= 0 || last_errno().raw_os_error() > 0);
        order == 0
    };
    let mut others = processes().filter(|(other, _)| *other != pid);
    others.find(|(other, status)| status.state != b'Z' && same(*other)).map(|(other, _)| other)
}

fn processes() -> impl Iterator<Item = (u32, ProcStatus)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, status(pid)?)))
}
