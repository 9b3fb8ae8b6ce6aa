//! Recent growth of processes: growth exceeds a limit, not size. And processes that were killed.

use std::collections::VecDeque;

use crate::account::AccountId;
use crate::process::{Process, ProcessId, WINDOW_NS};

/// Number of positions that the next process of a list is searched for in sequence, before a binary
/// search.
const STEPS: usize = 8;

/// Memory of every process at one moment, by id.
#[derive(Clone, Debug, Default)]
struct Mark {
    at_ns: u64,
    bytes: Vec<(ProcessId, u64)>,
}

impl Mark {
    fn take(&mut self, processes: &[Process], now_ns: u64) {
        self.at_ns = now_ns;
        self.bytes.clear();
        self.bytes.extend(processes.iter().map(|process| (process.id, process.own_bytes())));
        self.bytes.sort_unstable();
    }

    /// Memory of the process at that moment, bytes. `place` is the index that the last lookup
    /// returned, 0 at first: in a sorted list, like that of a watch, the next process is adjacent.
    fn bytes(&self, id: ProcessId, place: &mut usize) -> Option<u64> {
        let before = |at: usize| self.bytes.get(at).is_none_or(|(other, _)| *other < id);
        let beside = (*place..*place + STEPS).find(|at| !before(*at));
        *place = match beside {
            Some(at) if at == 0 || before(at - 1) => at,
            _ => self.bytes.partition_point(|(other, _)| *other < id),
        };
        let (found, bytes) = *self.bytes.get(*place)?;
        (found == id).then_some(bytes)
    }
}

/// Remembers two moments. Growth is counted from the older one, which is between half a window and
/// a whole window ago if [`look`](Self::look) is called often enough.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    older: Mark,
    newer: Mark,
    begun: bool,
    recent_kills: RecentKills,
}

impl Growth {
    /// Reserves room for this number of processes, so that a scan under memory pressure does not
    /// have to allocate.
    pub fn with_room(processes: usize) -> Self {
        let mark = || Mark { at_ns: 0, bytes: Vec::with_capacity(processes) };
        Self { older: mark(), newer: mark(), begun: false, recent_kills: RecentKills::with_room() }
    }

    /// Records a kill: the process still counts as a member of its family.
    pub fn record_kill(&mut self, process: &Process, now_ns: u64) {
        self.recent_kills.record(process, now_ns);
    }

    /// Fills in `grown_bytes`, `newborn`, `killed_kin` and `killed_newborns` of `processes`, which
    /// has to list all processes. At the first call no process has grown.
    pub fn look(&mut self, processes: &mut [Process], now_ns: u64) {
        if !self.begun {
            self.begun = true;
            self.older.take(processes, now_ns);
            self.newer.take(processes, now_ns);
        }
        let elapsed_ns = now_ns.saturating_sub(self.older.at_ns);
        let mut place = 0;
        for process in &mut *processes {
            let before = self.older.bytes(process.id, &mut place);
            process.newborn = before.is_none();
            let grown = process.own_bytes().saturating_sub(before.unwrap_or(0));
            process.grown_bytes = per_window(grown, elapsed_ns);
        }
        self.recent_kills.count(processes, now_ns);
        if now_ns.saturating_sub(self.newer.at_ns) >= WINDOW_NS / 2 {
            std::mem::swap(&mut self.older, &mut self.newer);
            self.newer.take(processes, now_ns);
        }
    }
}

/// Growth over more than a window, scaled to one window; over a shorter time it is not scaled.
fn per_window(grown: u64, elapsed_ns: u64) -> u64 {
    if elapsed_ns <= WINDOW_NS {
        return grown;
    }
    let scaled = u128::from(grown) * u128::from(WINDOW_NS) / u128::from(elapsed_ns);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

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

/// Processes that were killed within the last window: they still count as members of their family,
/// and newborns as births.
///
/// A herd that loses one member after the other gets smaller with each. A fork bomb under a limit
/// of processes, or one with members that are killed as fast as they are created, is small in each
/// snapshot. Its births identify it, not the processes that are left.
/// Only processes that the daemon killed count: a script that runs one short command after the
/// other has many children too, and does no harm.
#[derive(Clone, Debug, Default)]
struct RecentKills(VecDeque<KilledProcess>);

impl RecentKills {
    /// Reserves room for all kills that are remembered.
    fn with_room() -> Self {
        Self(VecDeque::with_capacity(ROOM))
    }

    /// Records a kill.
    fn record(&mut self, process: &Process, now_ns: u64) {
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
    fn count(&mut self, processes: &mut [Process], now_ns: u64) {
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
    use crate::account::Uid;

    const S: u64 = 1_000_000_000;

    fn process(pid: u32, bytes: u64) -> Process {
        let id = ProcessId { pid, start_time: 7 };
        Process { id, rss_bytes: bytes, ..Process::default() }
    }

    fn look(growth: &mut Growth, at_s: u64, sizes: &[(u32, u64)]) -> Vec<(u64, bool)> {
        let mut processes: Vec<Process> = sizes.iter().map(|(pid, b)| process(*pid, *b)).collect();
        growth.look(&mut processes, at_s * S);
        processes.iter().map(|process| (process.grown_bytes, process.newborn)).collect()
    }

    #[test]
    fn the_first_scan_finds_no_growth() {
        assert_eq!(look(&mut Growth::default(), 5, &[(1, 100)]), [(0, false)]);
    }

    #[test]
    fn growth_counts_from_the_mark_and_includes_all_memory_of_new_processes() {
        let mut growth = Growth::default();
        look(&mut growth, 0, &[(1, 100), (2, 50)]);
        let now = look(&mut growth, 1, &[(3, 10), (2, 40), (1, 130)]);
        assert_eq!(now, [(10, true), (0, false), (30, false)]);
    }

    #[test]
    fn the_order_of_the_list_does_not_matter() {
        let sizes: Vec<(u32, u64)> = (1..60).map(|pid| (pid * 3, u64::from(pid) * 10)).collect();
        let mut now: Vec<(u32, u64)> = sizes.iter().map(|(pid, b)| (*pid, b + 5)).collect();
        now.extend([(1, 7), (10, 7), (1000, 7)]);
        let grown = |list: &[(u32, u64)]| {
            let mut growth = Growth::default();
            look(&mut growth, 0, &sizes);
            let seen = look(&mut growth, 1, list);
            let mut by_pid: Vec<_> = list.iter().map(|(pid, _)| *pid).zip(seen).collect();
            by_pid.sort_unstable();
            by_pid
        };
        let in_any_order = grown(&now);
        let new: Vec<u32> = in_any_order.iter().filter(|it| it.1.1).map(|it| it.0).collect();
        assert_eq!(new, [1, 10, 1000]);
        assert!(in_any_order.iter().all(|(_, (by, new))| *by == if *new { 7 } else { 5 }));
        let mut list = now.clone();
        list.sort_unstable();
        assert_eq!(grown(&list), in_any_order);
        list.reverse();
        assert_eq!(grown(&list), in_any_order);
        list.retain(|(pid, _)| pid % 5 == 0);
        assert_eq!(
            grown(&list),
            in_any_order.iter().filter(|it| it.0 % 5 == 0).copied().collect::<Vec<_>>()
        );
    }

    #[test]
    fn growth_expires_a_window_after_its_end() {
        let mut growth = Growth::default();
        look(&mut growth, 0, &[(1, 100)]);
        assert_eq!(look(&mut growth, 2, &[(1, 300)]), [(200, false)]);
        assert_eq!(look(&mut growth, 4, &[(1, 300)]), [(200, false)], "the older mark is from 0 s");
        assert_eq!(look(&mut growth, 5, &[(1, 300)]), [(0, false)]);
    }

    #[test]
    fn growth_of_a_long_time_is_spread_over_it() {
        let mut growth = Growth::default();
        look(&mut growth, 0, &[(1, 100)]);
        assert_eq!(look(&mut growth, 40, &[(1, 1100)]), [(100, false)]);
    }

    #[test]
    fn a_pid_that_came_back_is_another_process() {
        let mut growth = Growth::default();
        look(&mut growth, 0, &[(1, 100)]);
        let mut again = process(1, 100);
        again.id.start_time = 8;
        growth.look(std::slice::from_mut(&mut again), S);
        assert_eq!((again.grown_bytes, again.newborn), (100, true));
    }

    fn relative(pid: u32, parent_pid: u32, group: u32) -> Process {
        let id = ProcessId { pid, start_time: u64::from(pid) };
        Process { id, parent_pid, group, ..Process::of(Uid(1000)) }
    }

    fn newborn(pid: u32, parent_pid: u32, group: u32) -> Process {
        Process { newborn: true, ..relative(pid, parent_pid, group) }
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
        let left = [relative(10, 1, 10), relative(20, 1, 20), relative(21, 1, 20)];
        assert_eq!(counted(&[newborn(30, 10, 30), newborn(31, 10, 31)], &left), [2, 0, 0]);
        assert_eq!(counted(&[newborn(30, 25, 20), newborn(31, 25, 20)], &left), [0, 2, 0]);
        assert_eq!(counted(&[newborn(30, 25, 30)], &left), [0, 0, 0]);
        assert_eq!(counted(&[newborn(10, 9, 9)], &[relative(40, 10, 40)]), [1], "its child");
    }

    #[test]
    fn earlier_processes_other_users_and_shell_jobs_do_not_count() {
        let shell = Process { session_leader: true, ..relative(10, 1, 10) };
        assert_eq!(counted(&[relative(30, 10, 10)], &[relative(10, 1, 10)]), [0]);
        assert_eq!(counted(&[newborn(30, 10, 30)], &[shell]), [0]);
        let other = Process { account: AccountId::User(Uid(1001)), ..relative(10, 1, 10) };
        assert_eq!(counted(&[newborn(30, 10, 10)], &[other]), [0]);
    }

    #[test]
    fn a_reused_pid_is_no_parent() {
        assert_eq!(counted(&[newborn(30, 40, 30)], &[relative(40, 1, 40)]), [0]);
    }

    #[test]
    fn kills_older_than_a_window_are_dropped_and_their_number_is_bounded() {
        let mut recent = RecentKills::with_room();
        let count = |recent: &mut RecentKills, now_ns| {
            let mut left = [relative(10, 1, 10)];
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
