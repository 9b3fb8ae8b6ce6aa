//! Descendants of this process, found in /proc.

use rustix::process::{Pid, Signal, kill_process};

/// Sends a signal to all descendants of this process except `except` and its own; returns their
/// number.
pub fn signal_all(signal: Signal, except: Option<u32>) -> usize {
    let all = descendants(except);
    for pid in all.iter().filter_map(|&pid| Pid::from_raw(pid as i32)) {
        // A process that has exited meanwhile needs no signal.
        let _ = kill_process(pid, signal);
    }
    all.len()
}

/// Number of descendants, without `except` and its own.
pub fn count(except: Option<u32>) -> usize {
    descendants(except).len()
}

/// A living process.
struct Process {
    pid: u32,
    parent: u32,
}

fn descendants(except: Option<u32>) -> Vec<u32> {
    let all = processes();
    let us = std::process::id();
    let excepted = |pid: u32| except.is_some_and(|one| one == pid || descends(&all, pid, one));
    let ours = |pid: &u32| !excepted(*pid) && descends(&all, *pid, us);
    all.iter().map(|process| process.pid).filter(ours).collect()
}

fn descends(all: &[Process], pid: u32, from: u32) -> bool {
    let parent_of = |pid: u32| all.iter().find(|one| one.pid == pid).map(|one| one.parent);
    // Processes start and exit while they are listed, so the chain may look like a cycle: it is
    // bounded.
    std::iter::successors(parent_of(pid), |&at| parent_of(at)).take(all.len()).any(|at| at == from)
}

/// Every living process.
fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        parent(&stat).map(|parent| Process { pid, parent })
    })
    .collect()
}

/// The parent, out of a stat file; `None` for a zombie. The name may hold anything, so the fields
/// are counted from its last parenthesis.
fn parent(stat: &str) -> Option<u32> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.next()?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_hides_no_parent() {
        assert_eq!(parent("12 (a) R 1) S 7 12 12 0"), Some(7));
        assert_eq!(parent("12 (gone) Z 7 12 12 0"), None);
        assert_eq!(parent("garbage"), None);
    }

    #[test]
    fn grandchildren_descend_and_strangers_do_not() {
        let all = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 7), (7, 6)]
            .map(|(pid, parent)| Process { pid, parent });
        assert!(descends(&all, 4, 2));
        assert!(!descends(&all, 5, 2));
        assert!(!descends(&all, 6, 2), "a circle ends");
        assert!(!descends(&all, 2, 2), "no process descends from itself");
    }
}
