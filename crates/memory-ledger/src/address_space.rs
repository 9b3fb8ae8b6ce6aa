//! Processes that share their memory (`CLONE_VM` without `CLONE_THREAD`, `vfork`) are one
//! candidate: each has all of the memory, and it is freed only when all of them have exited.

use std::collections::BTreeMap;

use crate::process::{AddressSpaceId, Process};

/// Address spaces that several processes use.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account_id::Uid;
    use crate::process::ProcessId;

    fn process(pid: u32, address_space: u64) -> Process {
        let id = ProcessId { pid, start_time: u64::from(pid) };
        Process { id, address_space: AddressSpaceId(address_space), ..Process::of(Uid(1)) }
    }

    fn pids(processes: &[Process]) -> Vec<u32> {
        processes.iter().map(|process| process.id.pid).collect()
    }

    #[test]
    fn the_oldest_process_of_each_address_space_remains() {
        let mut all = vec![process(12, 7), process(10, 7), process(11, 8), process(13, 7)];
        all.extend([process(14, 0), process(15, 0)]);
        let sharers = Sharers::of(&all);
        assert_eq!(all.iter().map(|it| sharers.others(it)).collect::<Vec<_>>(), [2, 2, 0, 2, 0, 0]);
        sharers.merge(&mut all);
        assert_eq!(pids(&all), [10, 11, 14, 15]);
    }

    #[test]
    fn sharers_are_found_as_long_as_a_member_has_the_memory() {
        let all = [process(10, 7), process(11, 7), process(12, 8), process(13, 0)];
        assert_eq!(pids(&sharers_of(&[process(10, 7)], &all)), [11]);
        let ended = process(9, 8);
        assert!(sharers_of(&[ended], &all).is_empty(), "8 can be another address space by now");
        assert!(sharers_of(&[process(13, 0)], &all).is_empty());
        // The same pid with a later start time.
        let reused = Process { id: ProcessId { pid: 10, start_time: 99 }, ..process(10, 7) };
        assert!(sharers_of(&[reused], &all).is_empty());
    }
}
