//! Processes that were killed: they still count as members of their family, and newborns as births.
//!
//! A herd that loses one member after the other gets smaller with each. A fork bomb under a limit
//! of processes, or one with members that are killed as fast as they are created, is small in each
//! snapshot. Its births identify it, not the processes that are left.
//! Only processes that the daemon killed count: a script that runs one short command after the
//! other has many children too, and does no harm.

use std::collections::VecDeque;

use crate::account_id::AccountId;
use crate::process::{Process, WINDOW_NS};

/// Number of kills that are remembered, of all families: a few times `BOMB_BIRTHS`.
const ROOM: usize = 128;

/// A killed process.
#[derive(Clone, Copy, Debug)]
struct KilledProcess {
    at_ns: u64,
    pid: u32,
    parent_pid: u32,
    start_time: u64,
    account: AccountId,
    group: u32,
    newborn: bool,
}

impl KilledProcess {
    /// `process` is of its family: its parent, a child of it, or a process of its group, as for
    /// [`Families`](crate::family::Families).
    fn is_related_to(&self, process: &Process) -> bool {
        let parent = process.id.pid == self.parent_pid
            && process.id.start_time <= self.start_time
            && process.id.pid > 1
            && !process.session_leader;
        let related = parent
            || process.parent_pid == self.pid
            || (self.group != 0 && process.group == self.group);
        related && process.account == self.account
    }
}

/// Processes that were killed within the last window.
#[derive(Clone, Debug, Default)]
pub struct RecentKills(VecDeque<KilledProcess>);

impl RecentKills {
    /// Reserves room for all kills that are remembered.
    pub fn with_room() -> Self {
        Self(VecDeque::with_capacity(ROOM))
    }

    /// Records a kill.
    pub fn record(&mut self, process: &Process, now_ns: u64) {
        if self.0.len() >= ROOM {
            self.0.pop_front();
        }
        self.0.push_back(KilledProcess {
            at_ns: now_ns,
            pid: process.id.pid,
            parent_pid: process.parent_pid,
            start_time: process.id.start_time,
            account: process.account,
            group: process.group,
            newborn: process.newborn,
        });
    }

    /// Fills in `killed_kin` and `killed_newborns`: each killed process counts for one remaining
    /// process of its family.
    pub fn count(&mut self, processes: &mut [Process], now_ns: u64) {
        self.0.retain(|killed| now_ns.saturating_sub(killed.at_ns) < WINDOW_NS);
        for killed in &self.0 {
            let left = |process: &&mut Process| !process.exiting && killed.is_related_to(process);
            if let Some(process) = processes.iter_mut().find(left) {
                process.killed_kin += 1;
                process.killed_newborns += u32::from(killed.newborn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account_id::Uid;
    use crate::process::ProcessId;

    fn process(pid: u32, parent_pid: u32, group: u32) -> Process {
        let id = ProcessId { pid, start_time: u64::from(pid) };
        Process { id, parent_pid, group, ..Process::of(Uid(1000)) }
    }

    fn newborn(pid: u32, parent_pid: u32, group: u32) -> Process {
        Process { newborn: true, ..process(pid, parent_pid, group) }
    }

    /// The counts of `left`, when all of `dead` were killed a moment ago.
    fn counted(dead: &[Process], left: &[Process]) -> Vec<u32> {
        let mut recent = RecentKills::with_room();
        dead.iter().for_each(|process| recent.record(process, 0));
        let mut left = left.to_vec();
        recent.count(&mut left, 1);
        left.iter().map(|process| process.killed_newborns).collect()
    }

    #[test]
    fn a_dead_newborn_counts_for_its_parent_or_else_for_one_of_its_group() {
        let left = [process(10, 1, 10), process(20, 1, 20), process(21, 1, 20)];
        assert_eq!(counted(&[newborn(30, 10, 30), newborn(31, 10, 31)], &left), [2, 0, 0]);
        assert_eq!(counted(&[newborn(30, 25, 20), newborn(31, 25, 20)], &left), [0, 2, 0]);
        assert_eq!(counted(&[newborn(30, 25, 30)], &left), [0, 0, 0]);
        assert_eq!(counted(&[newborn(10, 9, 9)], &[process(40, 10, 40)]), [1], "its child");
    }

    #[test]
    fn earlier_processes_other_users_and_shell_jobs_do_not_count() {
        let shell = Process { session_leader: true, ..process(10, 1, 10) };
        assert_eq!(counted(&[process(30, 10, 10)], &[process(10, 1, 10)]), [0]);
        assert_eq!(counted(&[newborn(30, 10, 30)], &[shell]), [0]);
        let other = Process { account: AccountId::User(Uid(1001)), ..process(10, 1, 10) };
        assert_eq!(counted(&[newborn(30, 10, 10)], &[other]), [0]);
    }

    #[test]
    fn a_reused_pid_is_no_parent() {
        assert_eq!(counted(&[newborn(30, 40, 30)], &[process(40, 1, 40)]), [0]);
    }

    #[test]
    fn kills_older_than_a_window_are_dropped_and_their_number_is_bounded() {
        let mut recent = RecentKills::with_room();
        let count = |recent: &mut RecentKills, now_ns| {
            let mut left = [process(10, 1, 10)];
            recent.count(&mut left, now_ns);
            left[0].killed_newborns as usize
        };
        recent.record(&newborn(30, 10, 10), 0);
        recent.record(&newborn(31, 10, 10), WINDOW_NS / 2);
        assert_eq!(count(&mut recent, WINDOW_NS - 1), 2);
        assert_eq!(count(&mut recent, WINDOW_NS), 1);
        for pid in 100..1000 {
            recent.record(&newborn(pid, 10, 10), WINDOW_NS);
        }
        assert_eq!(count(&mut recent, WINDOW_NS), ROOM);
    }
}
