//! Recent growth of processes: growth exceeds a limit, not size.

use crate::process::{Process, ProcessId, WINDOW_NS};
use crate::recent_kills::RecentKills;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
