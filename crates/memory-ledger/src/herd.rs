//! Families that grow together: a parent with many growing children, a fork bomb.

use std::collections::{BTreeMap, BTreeSet};

use crate::family::Families;
use crate::process::{KillPreference, Process, grows, rank, score};

/// Number of growing processes of one family that make a herd. Two are a program and its helper.
pub const HERD_MEMBERS: usize = 3;
/// Number of new processes of one family within a window, including those that were killed
/// meanwhile, that make a fork bomb if they are more than half of the family and [`BOMB_KILLS`] of
/// them were killed.
pub const BOMB_BIRTHS: usize = 16;
/// Number of kills that did not help, while there are still that many new processes: creation
/// outpaces kills. A parallel build or a CI agent has as many new jobs, but killing one that grows
/// helps.
pub const BOMB_KILLS: usize = 4;

/// Number of new children of its own name that make an older process a member of a fork bomb, if it
/// is not the first of that name. On a starved machine the first members are old when the bomb is
/// noticed. A server with its workers, or a shell with its jobs, is the first of its name.
pub const BOMB_CHILDREN: usize = 2;

/// When a family counts as a fork bomb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bombs {
    /// Once [`BOMB_KILLS`] of its processes were killed.
    #[default]
    AfterKills,
    /// Without waiting for kills.
    AtOnce,
}

/// A family of processes that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Herd {
    /// Pid of the oldest member.
    pub oldest_pid: u32,
    /// Number of members that grow (of a fork bomb: of all members).
    pub members: u32,
    /// Memory of the members, bytes.
    pub bytes: u64,
    /// Growth of the members in the last window, bytes.
    pub grown_bytes: u64,
    /// Number of members that are new.
    pub born: u32,
    /// Number of further processes of the family that were killed within the window.
    pub killed_kin: u32,
    /// How many of these were new.
    pub killed_newborns: u32,
    /// The herd is a fork bomb.
    pub bomb: bool,
}

/// The herd with the highest score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorstHerd {
    /// The herd.
    pub herd: Herd,
    /// Its score: the sum of its members'.
    pub score: u64,
    /// Its members, the worst first.
    pub members: Vec<Process>,
    /// Processes that do not grow, but fork as a bomb's do: they die if all members die. Members of
    /// a fork bomb already.
    pub older: Vec<Process>,
}

impl WorstHerd {
    /// The members that die if so many have to.
    pub fn first(mut self, count: usize) -> Vec<Process> {
        let all = count >= self.members.len();
        self.members.truncate(count);
        if all {
            self.members.append(&mut self.older);
        }
        self.members
    }
}

/// The herd with the highest score among `candidates`. `None` if there is no herd.
pub fn worst_herd(candidates: &[Process], bombs: Bombs) -> Option<WorstHerd> {
    let births: usize = candidates.iter().map(births_of).sum();
    let growing = candidates.iter().filter(|process| grows(process)).count();
    if growing < HERD_MEMBERS && births < BOMB_BIRTHS {
        return None;
    }
    let families = Families::of(candidates);
    let mut of_family: Vec<(usize, &Process)> =
        candidates.iter().enumerate().map(|(at, p)| (families.family(at), p)).collect();
    of_family.sort_unstable_by_key(|(family, process)| (*family, process.id.pid));
    let herds = of_family.chunk_by(|a, b| a.0 == b.0).filter_map(|family| herd(family, bombs));
    herds.max_by_key(|worst| (worst.score, worst.herd.oldest_pid))
}

/// The process is new or grows: it behaves as its family does.
pub fn takes_part(process: &Process) -> bool {
    process.newborn || grows(process)
}

/// Number of births that count for the process: its own, and those of killed newborns.
pub(crate) fn births_of(process: &Process) -> usize {
    usize::from(process.newborn) + process.killed_newborns as usize
}

fn herd(family: &[(usize, &Process)], bombs: Bombs) -> Option<WorstHerd> {
    // Members that a rule or a lease protects are not killed with their family.
    let willing = family.iter().map(|(_, process)| **process);
    let willing: Vec<Process> =
        willing.filter(|p| p.preference >= KillPreference::Ordinary && !p.within_lease).collect();
    let births: usize = willing.iter().map(births_of).sum();
    let killed: usize = willing.iter().map(|process| process.killed_newborns as usize).sum();
    let killed_kin: u32 = willing.iter().map(|process| process.killed_kin).sum();
    let forking = if births >= BOMB_BIRTHS { older_members(family) } else { BTreeSet::new() };
    let forks = |process: &Process| forking.contains(&process.id.pid);
    // On a starved machine a bomb takes longer than a window to double.
    let old = willing.iter().filter(|p| !p.newborn && forks(p)).count();
    let bomb = births >= BOMB_BIRTHS
        && (births + old) * 2 > family.len() + killed
        && (killed >= BOMB_KILLS || bombs == Bombs::AtOnce);
    // Neither an ancestor that did not itself grow, nor an interactive shell, alone in its group.
    let group = |p: &Process| family.iter().filter(|(_, other)| other.group == p.group).count();
    let is_shell = |p: &Process| p.session_leader && group(p) <= 1;
    let mut members = willing;
    let mut older = Vec::new();
    if bomb {
        // A fork bomb is killed as a whole, or it goes on.
        members.retain(|p| (takes_part(p) || forks(p)) && !is_shell(p));
    } else {
        let is_older = |p: &&Process| !takes_part(p) && forks(p) && !is_shell(p);
        older.extend(members.iter().filter(is_older));
        members.retain(grows);
    }
    if members.len() < HERD_MEMBERS {
        return None;
    }
    members.sort_unstable_by_key(|process| std::cmp::Reverse(rank(process)));
    let sum = |of: fn(&Process) -> u64| members.iter().map(of).fold(0, u64::saturating_add);
    let herd_score = sum(score);
    let oldest = members.iter().min_by_key(|process| (process.id.start_time, process.id.pid))?;
    let herd = Herd {
        oldest_pid: oldest.id.pid,
        members: members.len() as u32,
        bytes: sum(Process::freed_bytes),
        grown_bytes: sum(|process| process.grown_bytes),
        born: (births - killed) as u32,
        killed_kin,
        killed_newborns: killed as u32,
        bomb,
    };
    Some(WorstHerd { herd, score: herd_score, members, older })
}

/// Pids of the older processes that fork as the new ones do, and of all that descend from them.
///
/// Such a process has [`BOMB_CHILDREN`] new children of its own name, and either its parent has
/// that name too, or as many of its children have such children.
fn older_members(family: &[(usize, &Process)]) -> BTreeSet<u32> {
    let by_pid: BTreeMap<u32, &Process> =
        family.iter().map(|(_, process)| (process.id.pid, *process)).collect();
    let parent = |process: &Process| {
        by_pid.get(&process.parent_pid).filter(|parent| parent.comm == process.comm)
    };
    let mut children: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    for process in by_pid.values().filter(|process| parent(process).is_some()) {
        children.entry(process.parent_pid).or_default().push(process);
    }
    let forks = |(pid, children_of_it): &(&u32, &Vec<&Process>)| {
        let new = children_of_it.iter().filter(|child| child.newborn).count();
        let parents = children_of_it.iter().filter(|child| children.contains_key(&child.id.pid));
        let is_child = parent(by_pid[*pid]).is_some();
        new >= BOMB_CHILDREN && (is_child || parents.count() >= BOMB_CHILDREN)
    };
    let mut found: Vec<u32> = children.iter().filter(forks).map(|(pid, _)| *pid).collect();
    let mut members = BTreeSet::new();
    while let Some(pid) = found.pop() {
        if members.insert(pid) {
            found.extend(children.get(&pid).into_iter().flatten().map(|child| child.id.pid));
        }
    }
    members
}

/// Growth was counted from half a window to one window ago. Within a whole window a herd takes up
/// to this multiple of it at the same rate.
const WINDOWS_AHEAD: u128 = 2;

/// Number of a herd's members, the worst first, that have to be killed: until the memory that is
/// freed covers `need_bytes` and the least that the others will take in another window. Without a
/// need it is one.
///
/// If more than half of the members die then, with those that were killed within the window, all
/// are killed: the others would only follow one by one, each after memory had run short once more.
/// A fork bomb is always killed as a whole.
pub fn cull(herd: &Herd, members: &[Process], need_bytes: Option<u64>) -> usize {
    if herd.bomb {
        return members.len();
    }
    let killed = herd.killed_kin as usize;
    let needed = need_bytes.map_or(1, |need_bytes| needed(herd, members, need_bytes));
    let most = (needed + killed) * 2 > members.len() + killed;
    if most { members.len() } else { needed }
}

/// Number of members, the worst first, whose memory covers `need_bytes` and what the others will
/// take.
fn needed(herd: &Herd, members: &[Process], need_bytes: u64) -> usize {
    let mut rest_grows = u128::from(herd.grown_bytes);
    let mut freed = 0;
    for (at, process) in members.iter().enumerate() {
        freed += u128::from(process.freed_bytes());
        rest_grows = rest_grows.saturating_sub(u128::from(process.grown_bytes));
        if freed >= u128::from(need_bytes) + WINDOWS_AHEAD * rest_grows {
            return at + 1;
        }
    }
    members.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Uid;
    use crate::process::ProcessId;

    /// Number of members that are killed, out of eight with 60 MiB each.
    fn culled(grown_mib: u64, need_mib: u64) -> usize {
        culled_after(0, grown_mib, need_mib)
    }

    /// The same, after as many of the eight were killed.
    fn culled_after(killed: u32, grown_mib: u64, need_mib: u64) -> usize {
        culled_for(killed, grown_mib, Some(need_mib << 20))
    }

    fn culled_for(killed: u32, grown_mib: u64, need_bytes: Option<u64>) -> usize {
        let member = |pid| Process {
            id: ProcessId { pid, start_time: 1 },
            group: 7,
            rss_bytes: 60 << 20,
            grown_bytes: grown_mib << 20,
            ..Process::of(Uid(1000))
        };
        let mut candidates: Vec<Process> = (10..18 - killed).map(member).collect();
        candidates[0].killed_kin = killed;
        let worst = worst_herd(&candidates, Bombs::AfterKills).expect("it grows");
        cull(&worst.herd, &worst.members, need_bytes)
    }

    /// A process of 16 MiB in one group with all others, started at the time `pid`.
    fn idle(pid: u32) -> Process {
        Process {
            id: ProcessId { pid, start_time: pid.into() },
            group: 7,
            rss_bytes: 16 << 20,
            ..Process::of(Uid(1000))
        }
    }

    fn growing(pid: u32) -> Process {
        Process { grown_bytes: 8 << 20, ..idle(pid) }
    }

    fn newborn(pid: u32) -> Process {
        Process { newborn: true, ..idle(pid) }
    }

    /// A family of which the first `new` are newborn and the others are idle.
    fn family(new: u32, all: u32) -> Vec<Process> {
        (1..=all).map(|pid| if pid <= new { newborn(pid) } else { idle(pid) }).collect()
    }

    fn herd_of(candidates: &[Process]) -> Option<Herd> {
        worst_herd(candidates, Bombs::AfterKills).map(|worst| worst.herd)
    }

    fn is_bomb(candidates: &[Process], bombs: Bombs) -> bool {
        worst_herd(candidates, bombs).is_some_and(|worst| worst.herd.bomb)
    }

    #[test]
    fn three_growing_processes_are_a_herd_and_two_are_none() {
        let grown = |count| (1..=count).map(growing).chain([idle(50)]).collect::<Vec<_>>();
        assert_eq!(herd_of(&grown(2)), None);
        for members in [3, 4] {
            let herd = herd_of(&grown(members)).expect("it grows");
            let bytes = u64::from(members) << 20;
            let expected = Herd {
                oldest_pid: 1,
                members,
                bytes: 16 * bytes,
                grown_bytes: 8 * bytes,
                born: 0,
                killed_kin: 0,
                killed_newborns: 0,
                bomb: false,
            };
            assert_eq!(herd, expected);
        }
    }

    #[test]
    fn sixteen_births_of_more_than_half_a_family_are_a_bomb_at_once() {
        let is_bomb = |new, all| is_bomb(&family(new, all), Bombs::AtOnce);
        assert_eq!([15, 16, 17].map(|new| is_bomb(new, new)), [false, true, true]);
        assert_eq!([31, 32].map(|all| is_bomb(16, all)), [true, false]);
        assert_eq!([33, 34].map(|all| is_bomb(17, all)), [true, false]);
        assert_eq!(herd_of(&family(16, 16)), None, "none was killed, and none grows");
        let worst = worst_herd(&family(16, 31), Bombs::AtOnce).expect("a bomb");
        assert_eq!(worst.herd.members, 16, "the idle ones take no part");
    }

    #[test]
    fn killed_newborns_count_as_births_and_as_members_of_the_family() {
        let killed = |killed, new, all| {
            let mut candidates = family(new, all);
            (candidates[0].killed_newborns, candidates[0].killed_kin) = (killed - 1, killed);
            candidates[1].killed_newborns = 1;
            is_bomb(&candidates, Bombs::AfterKills)
        };
        assert_eq!(
            [(3, 13), (4, 12), (5, 12), (5, 11)].map(|(k, new)| killed(k, new, new)),
            [false, true, true, true]
        );
        assert!(!killed(4, 11, 11), "15 births");
        assert_eq!([27, 28].map(|all| killed(4, 12, all)), [true, false], "16 of 31, 16 of 32");
        let mut candidates = family(12, 12);
        (candidates[0].killed_newborns, candidates[0].killed_kin) = (4, 6);
        candidates[1].killed_kin = 1;
        let herd = herd_of(&candidates).expect("a bomb");
        assert_eq!((herd.born, herd.killed_newborns, herd.killed_kin), (12, 4, 7));
        assert_eq!((herd.members, herd.bomb), (12, true));
    }

    #[test]
    fn protected_processes_and_shells_alone_in_their_group_are_no_members() {
        let members = |change: fn(&mut Process)| {
            let mut candidates = family(20, 20);
            change(&mut candidates[4]);
            worst_herd(&candidates, Bombs::AtOnce).expect("a bomb").herd.members
        };
        assert_eq!(members(|_| {}), 20);
        assert_eq!(members(|it| it.preference = KillPreference::Prefer), 20);
        assert_eq!(members(|it| it.preference = KillPreference::Avoid), 19);
        assert_eq!(members(|it| it.within_lease = true), 19);
        assert_eq!(members(|it| it.session_leader = true), 20, "others are in its group");
        assert_eq!(members(|it| (it.group, it.parent_pid) = (5, 2)), 20);
        let shell = |it: &mut Process| (it.session_leader, it.group, it.parent_pid) = (true, 5, 2);
        assert_eq!(members(shell), 19);
    }

    #[test]
    fn members_are_the_worst_first_and_the_highest_score_is_the_worst_herd() {
        let mut candidates: Vec<Process> = (1..=4).map(growing).collect();
        candidates[2].grown_bytes *= 2;
        let of = |group, first: u32| {
            (0..3).map(move |n| Process { group, ..growing(first + n) }).collect::<Vec<_>>()
        };
        let all = [of(8, 21), candidates, of(9, 31)].concat();
        let worst = worst_herd(&all, Bombs::AfterKills).expect("they grow");
        let pids: Vec<u32> = worst.members.iter().map(|member| member.id.pid).collect();
        assert_eq!(pids, [3, 4, 2, 1]);
        assert_eq!(worst.score, worst.members.iter().map(score).sum::<u64>());
        assert_eq!(worst.herd.oldest_pid, 1);
        let equal = [of(9, 31), of(8, 21)].concat();
        assert_eq!(herd_of(&equal).map(|herd| herd.oldest_pid), Some(31));
        // Of one start, the lower pid is the older one.
        let at_once: Vec<Process> = (1..=3)
            .map(|pid| Process { id: ProcessId { pid, start_time: 5 }, ..growing(pid) })
            .collect();
        assert_eq!(herd_of(&at_once).map(|herd| herd.oldest_pid), Some(1));
    }

    /// The first of its name, its old child that has 16 growing new children, and idle processes:
    /// `all` in total.
    fn slow_bomb(all: u32) -> Vec<Process> {
        let child = |pid| match pid {
            2 => Process { parent_pid: 1, ..idle(pid) },
            3..19 => Process { parent_pid: 2, newborn: true, ..growing(pid) },
            _ => idle(pid),
        };
        (1..=all).map(child).collect()
    }

    #[test]
    fn old_processes_that_fork_count_as_a_part_of_the_bomb() {
        let worst = worst_herd(&slow_bomb(33), Bombs::AtOnce).expect("17 of 33");
        assert_eq!((worst.herd.bomb, worst.herd.members, worst.older.len()), (true, 17, 0));
        assert!(!is_bomb(&slow_bomb(34), Bombs::AtOnce), "17 of 34");
    }

    #[test]
    fn old_processes_that_fork_are_the_older_ones_of_a_herd() {
        let older = |candidates: &[Process]| {
            let worst = worst_herd(candidates, Bombs::AfterKills).expect("16 grow");
            assert_eq!((worst.herd.bomb, worst.herd.members), (false, 16));
            worst.older.iter().map(|process| process.id.pid).collect::<Vec<u32>>()
        };
        let mut candidates = slow_bomb(20);
        assert_eq!(older(&candidates), [2]);
        (candidates[1].session_leader, candidates[1].group) = (true, 2);
        candidates.iter_mut().skip(2).for_each(|child| child.group = 8);
        assert_eq!(older(&candidates), [0; 0], "a shell");
    }

    #[test]
    fn older_processes_die_only_if_all_members_do() {
        let members: Vec<Process> = (1..=3).map(growing).collect();
        let herd = herd_of(&members).expect("it grows");
        let worst = WorstHerd { herd, score: 1, members, older: vec![idle(9)] };
        let pids = |count| {
            worst.clone().first(count).iter().map(|process| process.id.pid).collect::<Vec<u32>>()
        };
        assert_eq!([0, 2].map(pids), [vec![], vec![1, 2]]);
        assert_eq!([3, 4].map(pids), [[1, 2, 3, 9]; 2]);
    }

    /// Pids of the older members of a family of (pid, parent) of one name, the `old` ones of which
    /// are not new.
    fn older_of(pairs: &[(u32, u32)], old: &[u32]) -> Vec<u32> {
        let process = |&(pid, parent_pid): &(u32, u32)| Process {
            parent_pid,
            newborn: !old.contains(&pid),
            ..idle(pid)
        };
        let all: Vec<Process> = pairs.iter().map(process).collect();
        let family: Vec<(usize, &Process)> = all.iter().map(|process| (0, process)).collect();
        older_members(&family).into_iter().collect()
    }

    #[test]
    fn older_members_fork_as_the_new_ones_do() {
        // 1 is the first of its name and has the child 2, which has two new children.
        assert_eq!(older_of(&[(1, 0), (2, 1), (3, 2), (4, 2)], &[1, 2]), [2, 3, 4]);
        assert_eq!(older_of(&[(1, 0), (2, 1), (3, 2)], &[1, 2]), [0; 0], "one child");
        assert_eq!(older_of(&[(1, 0), (2, 1), (3, 2), (4, 2)], &[1, 2, 3]), [0; 0], "one is new");
        // The first of its name, with two children that have children themselves, or with one.
        let two = [(1, 0), (2, 1), (3, 1), (4, 2), (5, 3)];
        assert_eq!(older_of(&two, &[1]), [1, 2, 3, 4, 5]);
        assert_eq!(older_of(&two[..4], &[1]), [0; 0]);
    }

    #[test]
    fn a_herd_that_doubled_since_the_mark_dies_whole_however_old_that_is() {
        // Growth within half a window: it would be as large in the other half.
        assert_eq!(culled(30, 1), 8);
        assert_eq!(culled(30, 70), 8);
        assert_eq!(culled(60, 70), 8, "in a whole one");
    }

    #[test]
    fn a_slow_herd_loses_only_the_needed_members() {
        assert_eq!(culled(8, 0), 2, "120 MiB, while the other six take 96");
        assert_eq!(culled(8, 70), 3, "180 MiB: the need, and 80");
        assert_eq!(culled(8, 100), 3);
        assert_eq!(culled(8, 101), 4);
        assert_eq!(culled(8, 300), 8, "more than half of it");
    }

    #[test]
    fn a_herd_that_lost_most_of_its_members_dies_whole() {
        assert_eq!(culled_after(1, 8, 70), 3, "four of eight");
        assert_eq!(culled_after(2, 8, 0), 2, "four of eight");
        assert_eq!(culled_after(2, 8, 70), 6, "five of eight");
        assert_eq!(culled_after(3, 8, 0), 5, "five of eight");
    }

    #[test]
    fn without_a_need_a_herd_dies_one_by_one_until_most_of_it_is_dead() {
        assert_eq!([0, 1, 2, 3].map(|killed| culled_for(killed, 60, None)), [1; 4]);
        assert_eq!(culled_for(4, 60, None), 4, "five of eight");
    }
}
