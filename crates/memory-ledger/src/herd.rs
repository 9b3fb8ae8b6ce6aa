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
