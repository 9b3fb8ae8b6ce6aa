//! Processes that belong together: a parent with its children, a job of a shell; and those that
//! share their memory.
//!
//! Two processes that are charged to one account are of one family when one is the other's parent,
//! or when they are in one process group (orphans stay in theirs). The children of a session leader
//! are related only through their group: programs that were started from one shell are not one
//! program.

use std::collections::BTreeMap;

use crate::herd::{BOMB_BIRTHS, births_of};
use crate::process::{AddressSpaceId, Process};

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
        for (at, parent) in parents(processes) {
            let process = &processes[at];
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

/// The index of each process whose parent is listed, and that of its parent.
fn parents(processes: &[Process]) -> impl Iterator<Item = (usize, usize)> {
    let mut by_pid: Vec<usize> = (0..processes.len()).collect();
    by_pid.sort_unstable_by_key(|at| processes[*at].id.pid);
    // Brothers are next to each other, most often.
    let mut last = None;
    processes.iter().enumerate().filter_map(move |(at, process)| {
        let pid = process.parent_pid;
        if last.is_none_or(|(known, _)| known != pid) {
            last = Some((pid, by_pid.binary_search_by_key(&pid, |it| processes[*it].id.pid)));
        }
        last.and_then(|(_, found)| Some((at, by_pid[found.ok()?])))
    })
}

/// Address spaces that several processes use (`CLONE_VM` without `CLONE_THREAD`, `vfork`). These
/// are one candidate: each has all of the memory, and it is freed only when all of them have
/// exited.
#[derive(Clone, Debug, Default)]
pub struct Sharers {
    /// Address spaces with their numbers of users, ascending.
    shared: Vec<(AddressSpaceId, u32)>,
}

impl Sharers {
    /// Collects the shared address spaces of `processes`, which has to list all processes.
    pub fn of(processes: &[Process]) -> Self {
        let known = |it: &&Process| it.address_space != AddressSpaceId::default();
        let mut ids: Vec<AddressSpaceId> =
            processes.iter().filter(known).map(|process| process.address_space).collect();
        ids.sort_unstable();
        let users = ids.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32));
        Self { shared: users.filter(|(_, count)| *count > 1).collect() }
    }

    /// Number of other processes that use the process's memory.
    pub fn others(&self, process: &Process) -> u32 {
        let at = self.shared.binary_search_by_key(&process.address_space, |(id, _)| *id);
        at.map_or(0, |at| self.shared[at].1 - 1)
    }

    /// Keeps one process of each address space: the oldest, which the others were forked from. Its
    /// growth is that of the memory; a younger one would appear to have allocated all of it.
    pub fn merge(&self, candidates: &mut Vec<Process>) {
        if self.shared.is_empty() {
            return;
        }
        let mut oldest: BTreeMap<AddressSpaceId, Process> = BTreeMap::new();
        for process in candidates.iter().filter(|it| self.others(it) > 0) {
            let known = oldest.entry(process.address_space).or_insert(*process);
            let age = |it: &Process| (it.id.start_time, it.id.pid);
            if age(process) < age(known) {
                *known = *process;
            }
        }
        candidates.retain(|process| {
            oldest.get(&process.address_space).is_none_or(|first| first.id == process.id)
        });
    }
}

/// Other processes that use the memory of one of `members`. A member has to be among `processes`:
/// the id of an address space with no users left is invalid, and can be reused for the next one.
pub fn sharers_of(members: &[Process], processes: &[Process]) -> Vec<Process> {
    let is_member = |process: &Process| members.iter().any(|member| member.id == process.id);
    let unknown = AddressSpaceId::default();
    let shared: Vec<AddressSpaceId> = processes
        .iter()
        .filter(|process| process.address_space != unknown && is_member(process))
        .map(|process| process.address_space)
        .collect();
    let uses = |process: &&Process| shared.contains(&process.address_space) && !is_member(process);
    processes.iter().filter(uses).copied().collect()
}

/// Divides what copies and their parents have in common among these processes of one user, up to
/// `common_bytes` in all. What a new copy has got from its parent is no growth of it: the parent of
/// a pool of workers may grow, and each of its forks would appear to have taken all of its memory a
/// moment ago.
///
/// A fork bomb, whose members have little more than what they share, stays as it is.
pub fn divide_copies(common_bytes: u64, own: &mut [Process]) {
    if common_bytes == 0 || own.iter().map(births_of).sum::<usize>() >= BOMB_BIRTHS {
        return;
    }
    let mut copies = Families { link: (0..own.len()).collect() };
    let mut inherited = vec![0; own.len()];
    let mut common = vec![0; own.len()];
    for (at, parent) in parents(own).filter(|(at, _)| own[*at].is_copy) {
        let bytes = own[at].charged_bytes().min(own[parent].charged_bytes());
        inherited[at] = bytes;
        [at, parent].into_iter().for_each(|it| common[it] = bytes.max(common[it]));
        copies.join(at, parent);
    }
    let mut members = vec![0; own.len()];
    (0..own.len()).for_each(|at| members[copies.family(at)] += 1);
    for (at, bytes) in common.iter_mut().enumerate().filter(|(_, bytes)| **bytes > 0) {
        let count: u64 = members[copies.family(at)];
        *bytes = *bytes / count * (count - 1);
    }
    let sum = common.iter().copied().fold(0, u64::saturating_add);
    if sum > common_bytes {
        for bytes in common.iter_mut().chain(&mut inherited) {
            *bytes = (u128::from(*bytes) * u128::from(common_bytes) / u128::from(sum)) as u64;
        }
    }
    for (at, process) in own.iter_mut().enumerate() {
        process.shared_bytes = process.shared_bytes.max(common[at]);
        if process.newborn {
            process.grown_bytes = process.grown_bytes.saturating_sub(inherited[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{AccountId, Uid};
    use crate::process::ProcessId;

    const MIB: u64 = 1 << 20;

    /// A parent of 300 MiB with eight copies, of which the last two are new.
    fn pool() -> Vec<Process> {
        let parent = Process { rss_bytes: 300 * MIB, ..process(100, 1, 100) };
        let worker = |n: u32| {
            let new = if n > 6 { 290 * MIB } else { 0 };
            Process {
                rss_bytes: 290 * MIB,
                is_copy: true,
                newborn: new > 0,
                grown_bytes: new,
                ..process(100 + n, 100, 100)
            }
        };
        std::iter::once(parent).chain((1..=8).map(worker)).collect()
    }

    fn divided(common_mib: u64, processes: &[Process]) -> Vec<(u64, u64)> {
        let mut divided = processes.to_vec();
        divide_copies(common_mib * MIB, &mut divided);
        divided.iter().map(|it| (it.own_bytes() / MIB, it.grown_bytes / MIB)).collect()
    }

    #[test]
    fn what_copies_share_counts_once_and_is_no_growth() {
        let own = divided(4000, &pool());
        assert_eq!(own[0], (42, 0), "the parent has 10 MiB alone");
        assert!(own[1..].iter().all(|it| *it == (32, 0)), "{own:?}");
        let sum: u64 = own.iter().map(|it| it.0).sum();
        assert!((290..=300).contains(&sum), "{sum}");
    }

    #[test]
    fn what_is_known_not_to_be_shared_counts_in_full() {
        let sizes = |pool: &[Process]| -> Vec<(u64, u64)> {
            pool.iter().map(|it| (it.own_bytes() / MIB, it.grown_bytes / MIB)).collect()
        };
        assert_eq!(divided(0, &pool()), sizes(&pool()));
        let half = divided(1160, &pool());
        assert!(half[1..].iter().all(|it| it.0 == 161), "{half:?}");
        assert_eq!((half[1].1, half[8].1), (0, 144));
        let other = pool().into_iter().map(|it| Process { is_copy: false, ..it });
        let other: Vec<Process> = other.collect();
        assert_eq!(divided(4000, &other), sizes(&other), "each has executed a program");
    }

    #[test]
    fn a_fork_bomb_is_not_divided() {
        let mut bomb = pool();
        for n in 9..30 {
            bomb.push(Process { newborn: true, ..process(100 + n, 100, 100) });
        }
        assert_eq!(divided(4000, &bomb)[1], (290, 0));
        assert_eq!(divided(4000, &bomb)[8], (290, 290));
    }

    #[test]
    fn parents_that_are_each_others_children_end_the_search() {
        let mut circle = [process(10, 11, 1), process(11, 10, 1)];
        for process in &mut circle {
            (process.is_copy, process.rss_bytes) = (true, 100 * MIB);
        }
        assert_eq!(divided(1000, &circle), [(50, 0), (50, 0)]);
    }

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

    fn user_of(pid: u32, address_space: u64) -> Process {
        let id = ProcessId { pid, start_time: u64::from(pid) };
        Process { id, address_space: AddressSpaceId(address_space), ..Process::of(Uid(1)) }
    }

    fn pids(processes: &[Process]) -> Vec<u32> {
        processes.iter().map(|process| process.id.pid).collect()
    }

    #[test]
    fn the_oldest_process_of_each_address_space_remains() {
        let mut all = vec![user_of(12, 7), user_of(10, 7), user_of(11, 8), user_of(13, 7)];
        all.extend([user_of(14, 0), user_of(15, 0)]);
        let sharers = Sharers::of(&all);
        assert_eq!(all.iter().map(|it| sharers.others(it)).collect::<Vec<_>>(), [2, 2, 0, 2, 0, 0]);
        sharers.merge(&mut all);
        assert_eq!(pids(&all), [10, 11, 14, 15]);
    }

    #[test]
    fn sharers_are_found_as_long_as_a_member_has_the_memory() {
        let all = [user_of(10, 7), user_of(11, 7), user_of(12, 8), user_of(13, 0)];
        assert_eq!(pids(&sharers_of(&[user_of(10, 7)], &all)), [11]);
        let ended = user_of(9, 8);
        assert!(sharers_of(&[ended], &all).is_empty(), "8 can be another address space by now");
        assert!(sharers_of(&[user_of(13, 0)], &all).is_empty());
        // The same pid with a later start time.
        let reused = Process { id: ProcessId { pid: 10, start_time: 99 }, ..user_of(10, 7) };
        assert!(sharers_of(&[reused], &all).is_empty());
    }
}
