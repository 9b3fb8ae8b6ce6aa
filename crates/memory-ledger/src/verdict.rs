//! Who dies, and why: a pure function of a snapshot.

use std::collections::BTreeMap;
use std::fmt;

use crate::account_id::AccountId;
use crate::address_space::Sharers;
use crate::family::Families;
use crate::herd::{Bombs, Herd, cull, worst_herd};
use crate::process::{AddressSpaceId, KillPreference, Process, ProcessId};
use crate::score::{OOM_SCORE_ADJ_NEVER, grows, rank};

/// Among whom a victim is looked for, and what for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// Only the processes that are charged to this account; everybody's otherwise.
    pub account: Option<AccountId>,
    /// Victims that did not go, or are on their way; never chosen again.
    pub passed_over: &'a [ProcessId],
    /// What should come back, bytes: of a herd as many die as it takes. `None`: one at a time.
    /// Where a limit is watched page by page, each of a herd has broken it by a page when it dies,
    /// and one that stops in time lives. A fork bomb dies as a whole.
    pub need_bytes: Option<u64>,
    /// Whether several of a herd may die at once.
    pub herds: Herds,
    /// When a family is taken for a fork bomb.
    pub bombs: Bombs,
    /// What a kill has to bring, bytes, by the sum of a family, or of a user who has only small
    /// processes.
    pub floor_bytes: u64,
    /// What all candidates together have to bring, bytes: otherwise none is killed.
    pub cover_bytes: u64,
}

/// Whether several of a herd may die at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Herds {
    /// As many as it takes.
    #[default]
    Together,
    /// One: whether that helps is not known yet.
    OneFirst,
}

/// A victim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Who.
    pub victim: Process,
    /// Who dies with it: others of its herd, the worst first.
    pub others: Vec<Process>,
    /// So many other processes use the victim's memory, or that of `others`: they have to die too.
    pub sharers: u32,
    /// Who would have been next.
    pub runner_up: Option<Process>,
    /// Processes in scope that were looked at, whether they could be chosen or not.
    pub considered: u32,
    /// What spoke for it.
    pub cause: Cause,
}

/// What spoke for a victim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// It has the most memory; nobody grows notably.
    #[default]
    Largest,
    /// It grows, and memory and growth together are the most.
    Growing,
    /// A rule prefers it.
    Preferred,
    /// All others are protected: rules, or their owners, would rather spare it.
    LastResort,
    /// Its family grows together, and has the most together.
    Herd(Herd),
    /// It is the tracer of a victim, and holds that at its exit.
    HoldsVictim(u32),
}

/// The rule in words, for the record.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Largest => write!(f, "largest anonymous + shared + swapped memory"),
            Self::Growing => {
                write!(f, "most memory, where what was taken in the last seconds counts most")
            }
            Self::Preferred => write!(f, "a rule prefers it as a victim"),
            Self::LastResort => write!(f, "nobody is left but those that a rule would spare"),
            Self::HoldsVictim(pid) => {
                write!(f, "it traces the victim {pid}, and does not let it exit")
            }
            Self::Herd(herd) => {
                let Herd { eldest_pid, members, born, killed_newborns, .. } = herd;
                let mib = |bytes: u64| bytes >> 20;
                let (has, grown) = (mib(herd.bytes), mib(herd.grown_bytes));
                if herd.bomb {
                    let family =
                        format!("a family of {members} processes (eldest: pid {eldest_pid})");
                    write!(f, "fork bomb: {family}, {born} of them new, has {has} MiB")?;
                    return match killed_newborns {
                        0 => Ok(()),
                        _ => write!(f, "; {killed_newborns} more were new, and killed just before"),
                    };
                }
                let family =
                    format!("{members} processes of one family (eldest: pid {eldest_pid})");
                write!(f, "herd: {family} have {has} MiB and took {grown} of them just now")
            }
        }
    }
}

/// Why nobody can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoVictim {
    /// The charge has no process.
    #[error("the user has no process")]
    NoProcess,
    /// All together have too little: the memory is held by something else.
    #[error(
        "all {candidates} processes that can be chosen have {} MiB together, and a kill of them \
         would not end the shortage; the memory is held by something else (files in a tmpfs, the \
         kernel)",
        bytes >> 20
    )]
    CannotCover {
        /// Processes that could be chosen.
        candidates: u32,
        /// Their memory, bytes.
        bytes: u64,
    },
    /// There are some, but none is eligible.
    #[error(
        "none of {considered} processes can be chosen: {protected} protected, {dying} dying \
         already, {empty} without memory"
    )]
    NoneEligible {
        /// Processes in scope.
        considered: u32,
        /// Of these, protected, pid 1 or a kernel thread.
        protected: u32,
        /// Of these, exiting, a victim in flight or stuck.
        dying: u32,
        /// Of these, without memory of their own.
        empty: u32,
    },
}

/// The victim, and those that have to die with it.
pub fn choose(scope: &Scope, processes: &[Process], protected: &[u32]) -> Result<Choice, NoVictim> {
    let (mut considered, mut kept, mut dying, mut empty) = (0, 0, 0, 0);
    let sharers = Sharers::of(processes);
    let mut candidates = Vec::with_capacity(processes.len());
    let in_scope = |p: &&Process| scope.account.is_none_or(|account| account == p.account);
    let untouchable = |process: &Process| {
        process.preference == KillPreference::Never
            || process.oom_score_adj == OOM_SCORE_ADJ_NEVER
            || process.id.pid <= 1
            || process.kernel_thread
            || protected.contains(&process.id.pid)
    };
    // Memory that one of these uses as well cannot come back.
    let shares = |process: &Process| sharers.others(process) > 0;
    let kept_spaces: Vec<AddressSpaceId> = processes
        .iter()
        .filter(|process| shares(process) && untouchable(process))
        .map(|process| process.address_space)
        .collect();
    for process in processes.iter().filter(in_scope) {
        considered += 1;
        if untouchable(process) || kept_spaces.contains(&process.address_space) {
            kept += 1;
        } else if process.exiting || scope.passed_over.contains(&process.id) {
            dying += 1;
        } else if process.charged_bytes() == 0 {
            empty += 1;
        } else {
            candidates.push(*process);
        }
    }
    sharers.merge(&mut candidates);
    if scope.account.is_some() {
        for process in candidates.iter_mut().filter(|process| process.within_lease) {
            process.preference = process.preference.min(KillPreference::Avoid);
        }
    }
    drop_small(&mut candidates, scope)?;
    let Some(worst) = candidates.iter().max_by_key(|process| rank(process)).copied() else {
        return Err(match considered {
            0 => NoVictim::NoProcess,
            _ => NoVictim::NoneEligible { considered, protected: kept, dying, empty },
        });
    };
    let mut choice = Choice {
        victim: worst,
        others: Vec::new(),
        sharers: 0,
        runner_up: None,
        considered,
        cause: match worst.preference {
            KillPreference::Prefer => Cause::Preferred,
            KillPreference::Never | KillPreference::Avoid => Cause::LastResort,
            KillPreference::Ordinary if grows(&worst) => Cause::Growing,
            KillPreference::Ordinary => Cause::Largest,
        },
    };
    if worst.preference <= KillPreference::Ordinary {
        blame_a_herd(&mut choice, &candidates, scope);
    }
    spare_leaseholder(&mut choice, &candidates);
    let victims = std::iter::once(&choice.victim).chain(&choice.others);
    choice.sharers = victims.map(|victim| sharers.others(victim)).sum();
    let lives =
        |p: &&Process| p.id != choice.victim.id && !choice.others.iter().any(|o| o.id == p.id);
    choice.runner_up = candidates.iter().filter(lives).max_by_key(|p| rank(p)).copied();
    Ok(choice)
}

/// Leaves out processes whose end would not help.
fn drop_small(candidates: &mut Vec<Process>, scope: &Scope) -> Result<(), NoVictim> {
    let sum = |of: &[Process]| of.iter().map(Process::charged_bytes).fold(0, u64::saturating_add);
    let bytes = sum(candidates);
    let cannot = NoVictim::CannotCover { candidates: candidates.len() as u32, bytes };
    if candidates.is_empty() || scope.floor_bytes == 0 && scope.cover_bytes == 0 {
        return Ok(());
    }
    if bytes < scope.cover_bytes {
        return Err(cannot);
    }
    let families = Families::of(candidates);
    let mut of_family: BTreeMap<usize, u64> = BTreeMap::new();
    // By account, the sum and the largest.
    let mut of_account: BTreeMap<AccountId, (u64, u64)> = BTreeMap::new();
    for (at, process) in candidates.iter().enumerate() {
        let bytes = process.charged_bytes();
        *of_family.entry(families.family(at)).or_default() += bytes;
        let (sum, largest) = of_account.entry(process.account).or_default();
        (*sum, *largest) = (*sum + bytes, bytes.max(*largest));
    }
    let floor = scope.floor_bytes;
    let pays = |(at, process): (usize, &Process)| {
        let (sum, largest) = of_account[&process.account];
        let together = of_family[&families.family(at)];
        process.charged_bytes() >= floor || together >= floor || (largest < floor && sum >= floor)
    };
    let pay: Vec<bool> = candidates.iter().enumerate().map(pays).collect();
    let mut pay = pay.into_iter();
    candidates.retain(|_| pay.next().unwrap_or(false));
    if candidates.is_empty() { Err(cannot) } else { Ok(()) }
}

/// A lease protects only against what others of the same account do, so it does not change the
/// account that loses a process.
fn spare_leaseholder(choice: &mut Choice, candidates: &[Process]) {
    let victim = choice.victim;
    if !victim.within_lease || !choice.others.is_empty() {
        return;
    }
    let others = candidates.iter().filter(|it| it.account == victim.account && !it.within_lease);
    if let Some(worst) = others.max_by_key(|process| rank(process)) {
        choice.victim = *worst;
        choice.cause = if grows(worst) { Cause::Growing } else { Cause::Largest };
    }
}

/// If a herd is to blame more than the worst single process, its members die instead.
fn blame_a_herd(choice: &mut Choice, candidates: &[Process], scope: &Scope) {
    let Some((herd, blame, mut members)) = worst_herd(candidates, scope.bombs) else { return };
    let single =
        if choice.victim.preference == KillPreference::Avoid { 0 } else { rank(&choice.victim).1 };
    if blame <= single {
        return;
    }
    members.truncate(match scope.herds {
        Herds::Together => cull(&herd, &members, scope.need_bytes),
        Herds::OneFirst if herd.bomb => members.len(),
        Herds::OneFirst => 1,
    });
    choice.victim = members.remove(0);
    choice.others = members;
    choice.cause = Cause::Herd(herd);
}
