//! Families that grow together: a parent with many growing children, a fork bomb.

use crate::family::Families;
use crate::process::{Process, Stance};
use crate::score::{grows, rank, score};

/// So many growing processes of one family are a herd. Two are a program and its helper.
pub const HERD_MEMBERS: usize = 3;
/// So many new processes of one family within a window, those counted that were killed meanwhile, if they are more
/// than half of it, are a fork bomb. A parallel build with as many jobs looks the same; when it breaks a limit, its `make` would
/// only start the next ones.
pub const BOMB_BIRTHS: usize = 16;

/// A family that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Herd {
    /// The oldest of them.
    pub eldest_pid: u32,
    /// How many grow (of a fork bomb: how many there are).
    pub members: u32,
    /// What these have, bytes.
    pub bytes: u64,
    /// By how much they grew in the last window, bytes.
    pub grown_bytes: u64,
    /// How many of them are new.
    pub born: u32,
    /// How many more were, and have been killed.
    pub buried: u32,
    /// It is a fork bomb.
    pub bomb: bool,
}

/// The herd that is to blame most among `candidates`, and its members, the worst first. `None` when
/// there is none.
pub fn worst_herd(candidates: &[Process]) -> Option<(Herd, u64, Vec<Process>)> {
    let births: usize = candidates.iter().map(births_of).sum();
    let growing = candidates.iter().filter(|process| grows(process)).count();
    if growing < HERD_MEMBERS && births < BOMB_BIRTHS {
        return None;
    }
    let families = Families::of(candidates);
    let mut of_family: Vec<(usize, &Process)> =
        candidates.iter().enumerate().map(|(at, p)| (families.family(at), p)).collect();
    of_family.sort_unstable_by_key(|(family, process)| (*family, process.id.pid));
    let herds = of_family.chunk_by(|a, b| a.0 == b.0).filter_map(herd);
    herds.max_by_key(|(herd, blame, _)| (*blame, herd.eldest_pid))
}

/// Births that count for it.
fn births_of(process: &Process) -> usize {
    usize::from(process.newborn) + process.buried as usize
}

fn herd(family: &[(usize, &Process)]) -> Option<(Herd, u64, Vec<Process>)> {
    // Whom a rule protects does not die for its family.
    let willing = family.iter().map(|(_, process)| **process);
    let willing: Vec<Process> = willing.filter(|p| p.stance >= Stance::Ordinary).collect();
    let births: usize = willing.iter().map(births_of).sum();
    let buried: usize = willing.iter().map(|process| process.buried as usize).sum();
    let bomb = births >= BOMB_BIRTHS && births * 2 > family.len() + buried;
    let mut members = willing;
    if bomb {
        // All of it, or it goes on; but an interactive shell, alone in its group, is not part of it.
        let group = |p: &Process| family.iter().filter(|(_, other)| other.group == p.group).count();
        members.retain(|process| !process.session_leader || group(process) > 1);
    } else {
        members.retain(grows);
    }
    if members.len() < HERD_MEMBERS {
        return None;
    }
    members.sort_unstable_by_key(|process| std::cmp::Reverse(rank(process)));
    let sum = |of: fn(&Process) -> u64| members.iter().map(of).fold(0, u64::saturating_add);
    let blame = sum(score);
    let eldest = members.iter().min_by_key(|process| (process.id.start_time, process.id.pid))?;
    let herd = Herd {
        eldest_pid: eldest.id.pid,
        members: members.len() as u32,
        bytes: sum(Process::charged_bytes),
        grown_bytes: sum(|process| process.grown_bytes),
        born: (births - buried) as u32,
        buried: buried as u32,
        bomb,
    };
    Some((herd, blame, members))
}

/// How many of a herd's members, the worst first, have to die: until what comes back covers
/// `need_bytes` and what the rest will take in another window. More than half: all of them. The
/// others would only follow one by one, each after the machine had run short once more.
///
/// Without a need one is enough, except of a fork bomb.
pub fn cull(herd: &Herd, members: &[Process], need_bytes: Option<u64>) -> usize {
    if herd.bomb {
        return members.len();
    }
    let Some(need_bytes) = need_bytes else { return 1 };
    let mut rest_grows = u128::from(herd.grown_bytes);
    let mut freed = 0;
    for (at, process) in members.iter().enumerate() {
        freed += u128::from(process.charged_bytes());
        rest_grows = rest_grows.saturating_sub(u128::from(process.grown_bytes));
        if freed >= u128::from(need_bytes) + rest_grows {
            return if (at + 1) * 2 > members.len() { members.len() } else { at + 1 };
        }
    }
    members.len()
}
