//! Processes that belong together: a parent with its children, a job of a shell.
//!
//! Two processes that are charged to one account are of one family when one is the other's parent,
//! or when they are in one process group (orphans stay in theirs). The children of a session leader
//! are related only through their group: programs that were started from one shell are not one
//! program.

use crate::process::Process;

/// The families of a list of processes.
#[derive(Clone, Debug)]
pub struct Families {
    /// For each process the index of another process of its family, or its own index; following the
    /// links ends at the same index for the whole family.
    link: Vec<usize>,
}

impl Families {
    /// Groups a list of processes, in any order, by family.
    pub fn of(processes: &[Process]) -> Self {
        let mut families = Self { link: (0..processes.len()).collect() };
        let mut by_pid: Vec<usize> = (0..processes.len()).collect();
        by_pid.sort_unstable_by_key(|at| processes[*at].id.pid);
        for (at, process) in processes.iter().enumerate() {
            let found = by_pid.binary_search_by_key(&process.parent_pid, |p| processes[*p].id.pid);
            let Ok(parent) = found.map(|found| by_pid[found]) else { continue };
            let leads = processes[parent].session_leader || processes[parent].id.pid <= 1;
            if !leads && processes[parent].account == process.account {
                families.join(at, parent);
            }
        }
        let mut by_group: Vec<usize> =
            (0..processes.len()).filter(|at| processes[*at].group != 0).collect();
        let key = |at: usize| (processes[at].account, processes[at].group);
        by_group.sort_unstable_by_key(|at| key(*at));
        for pair in by_group.windows(2) {
            if key(pair[0]) == key(pair[1]) {
                families.join(pair[0], pair[1]);
            }
        }
        families
    }

    /// Index of the process that represents the family of the process at `at`.
    pub fn family(&self, mut at: usize) -> usize {
        while self.link[at] != at {
            at = self.link[at];
        }
        at
    }

    /// Joins two families: the lower index represents both, and the paths to it are shortened.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.shorten(a), self.shorten(b));
        let (low, high) = (a.min(b), a.max(b));
        self.link[high] = low;
    }

    fn shorten(&mut self, mut at: usize) -> usize {
        while self.link[at] != at {
            self.link[at] = self.link[self.link[at]];
            at = self.link[at];
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account_id::{AccountId, Uid};
    use crate::process::ProcessId;

    fn process(pid: u32, parent_pid: u32, group: u32) -> Process {
        let id = ProcessId { pid, start_time: 1 };
        Process { id, parent_pid, group, ..Process::of(Uid(1000)) }
    }

    fn related(processes: &[Process], a: u32, b: u32) -> bool {
        let families = Families::of(processes);
        let at = |pid| processes.iter().position(|process| process.id.pid == pid).unwrap();
        families.family(at(a)) == families.family(at(b))
    }

    #[test]
    fn a_parent_and_its_descendants_are_one_family() {
        let all = [process(30, 20, 30), process(10, 1, 10), process(20, 10, 20)];
        assert!(related(&all, 10, 30));
    }

    #[test]
    fn jobs_of_one_shell_are_not_but_each_job_is() {
        let shell = Process { session_leader: true, ..process(10, 1, 10) };
        let all = [
            shell,
            process(20, 10, 20),
            process(21, 10, 20),
            process(30, 10, 30),
            process(31, 30, 30),
        ];
        assert!(related(&all, 20, 21) && related(&all, 30, 31));
        assert!(!related(&all, 20, 30) && !related(&all, 10, 20));
    }

    #[test]
    fn orphans_are_known_by_their_group() {
        let all = [process(20, 1, 7), process(21, 1, 7), process(22, 1, 8)];
        assert!(related(&all, 20, 21) && !related(&all, 20, 22));
    }

    #[test]
    fn another_users_child_is_of_another_family() {
        let child = Process { account: AccountId::User(Uid(1001)), ..process(20, 10, 10) };
        assert!(!related(&[process(10, 1, 10), child], 10, 20));
    }

    #[test]
    fn a_cycle_of_parents_in_a_snapshot_is_harmless() {
        let all = [process(10, 11, 0), process(11, 10, 0), process(12, 12, 0)];
        assert!(related(&all, 10, 11) && !related(&all, 10, 12));
    }
}
