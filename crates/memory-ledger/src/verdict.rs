//! Victim selection and its cause: a pure function of a snapshot.

use std::collections::BTreeMap;
use std::fmt;

use crate::account::AccountId;
use crate::family::{Families, Sharers, divide_copies};
use crate::herd::{Bombs, Herd, cull, worst_herd};
use crate::process::{
    AddressSpaceId, KillPreference, OOM_SCORE_ADJ_NEVER, Process, ProcessId, grows, rank, score,
};

/// The scope in which a victim is selected, and the purpose of the kill.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scope<'a> {
    /// Only processes that are charged to this account; `None`: all processes.
    pub account: Option<AccountId>,
    /// Bytes that the processes of a user have in common, as far as is known, or may have: what
    /// copies share with their parents counts once, up to this. Not used for other accounts.
    pub common_bytes: u64,
    /// Victims that are stuck or in flight; never selected again.
    pub passed_over: &'a [ProcessId],
    /// Bytes that should be freed: of a herd as many members are killed as that takes. `None`: one
    /// at a time, until most are dead. Where a limit is enforced page by page, each member of a
    /// herd has exceeded it by a page when it is killed, and one that stops in time survives. A
    /// fork bomb is killed as a whole.
    pub need_bytes: Option<u64>,
    /// Whether several processes of a herd may be killed at once.
    pub herds: Herds,
    /// When a family counts as a fork bomb.
    pub bombs: Bombs,
    /// Bytes that a kill has to free: the sum of a family, or of a user with only small processes.
    pub floor_bytes: u64,
    /// Bytes that all candidates together have to free: otherwise none is killed.
    pub cover_bytes: u64,
}

/// Whether several processes of a herd may be killed at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Herds {
    /// As many as the need takes.
    #[default]
    Together,
    /// One process, unless some of its family were killed within the window: whether a kill helps
    /// is not known before.
    OneFirst,
}

/// A victim and the reasons for selecting it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The process to kill.
    pub victim: Process,
    /// Processes to kill with it: others of its herd, the worst first.
    pub others: Vec<Process>,
    /// Number of other processes that use the memory of the victim or of `others`: they have to be
    /// killed too.
    pub sharers: u32,
    /// The next victim in rank.
    pub runner_up: Option<Process>,
    /// Processes in scope that were considered, eligible or not.
    pub considered: u32,
    /// The main reason for the selection.
    pub cause: Cause,
}

impl Choice {
    /// The processes to kill, the victim first.
    pub fn victims(&self) -> impl Iterator<Item = &Process> {
        std::iter::once(&self.victim).chain(&self.others)
    }
}

/// The main reason for selecting a victim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// It has the most memory; no process grows notably.
    #[default]
    Largest,
    /// It grows, and has the highest score of memory and growth.
    Growing,
    /// A rule prefers it as a victim.
    Preferred,
    /// A rule or its owner avoids it, and no other process of its user can be killed.
    LastResort,
    /// Its family grows together, and has the highest total score.
    Herd(Herd),
    /// It is the tracer of a victim, and holds that victim (this pid) at its exit.
    HoldsVictim(u32),
}

/// The cause as text, for the record.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Largest => write!(f, "largest anonymous + shared + swapped memory"),
            Self::Growing => {
                write!(f, "most memory, where what was taken in the last seconds counts most")
            }
            Self::Preferred => write!(f, "a rule prefers it as a victim"),
            Self::LastResort => {
                write!(f, "a rule avoids it, but no other process of its user can be killed")
            }
            Self::HoldsVictim(pid) => {
                write!(f, "it traces the victim {pid}, and does not let it exit")
            }
            Self::Herd(herd) => {
                let Herd { oldest_pid, members, born, killed_newborns, .. } = herd;
                let mib = |bytes: u64| bytes >> 20;
                let (has, grown) = (mib(herd.bytes), mib(herd.grown_bytes));
                if herd.bomb {
                    let family =
                        format!("a family of {members} processes (oldest: pid {oldest_pid})");
                    write!(f, "fork bomb: {family}, {born} of them new, has {has} MiB")?;
                    return match killed_newborns {
                        0 => Ok(()),
                        _ => write!(f, "; {killed_newborns} more were new, and killed just before"),
                    };
                }
                let family =
                    format!("{members} processes of one family (oldest: pid {oldest_pid})");
                write!(f, "herd: {family} have {has} MiB and took {grown} of them just now")
            }
        }
    }
}

/// Reason why no process can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoVictim {
    /// No process is charged to the account.
    #[error("the user has no process")]
    NoProcess,
    /// All processes together have too little memory: it is held by something else.
    #[error(
        "all {candidates} processes that can be chosen have {} MiB together, and a kill of them \
         would not end the shortage; the memory is held by something else (files in a tmpfs, the \
         kernel)",
        bytes >> 20
    )]
    CannotCover {
        /// Number of eligible processes.
        candidates: u32,
        /// Memory of the candidates, bytes.
        bytes: u64,
    },
    /// There are processes, but none is eligible.
    #[error(
        "none of {considered} processes can be chosen: {protected} protected, {dying} dying \
         already, {empty} without memory"
    )]
    NoneEligible {
        /// Number of processes in scope.
        considered: u32,
        /// Of these, protected by the caller, a rule or its owner, or pid 1.
        protected: u32,
        /// Of these, exiting, a victim in flight or stuck.
        dying: u32,
        /// Of these, without memory of their own.
        empty: u32,
    },
}

/// Selects the victim, and the processes that have to be killed with it.
pub fn choose(scope: &Scope, processes: &[Process], protected: &[u32]) -> Result<Choice, NoVictim> {
    let (mut considered, mut kept, mut dying, mut empty) = (0, 0, 0, 0);
    let sharers = Sharers::of(processes);
    let mut candidates = Vec::with_capacity(processes.len());
    let in_scope = |p: &&Process| scope.account.is_none_or(|account| account == p.account);
    let untouchable = |process: &Process| {
        process.preference == KillPreference::Never
            || process.oom_score_adj == OOM_SCORE_ADJ_NEVER
            || process.id.pid <= 1
            || protected.contains(&process.id.pid)
    };
    // Memory that a protected process shares cannot be freed.
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
        } else if process.freed_bytes() == 0 {
            empty += 1;
        } else {
            candidates.push(*process);
        }
    }
    sharers.merge(&mut candidates);
    if let Some(account) = scope.account {
        // What is common in a group may be another user's: forks of one would hide behind it.
        if account.user().is_some() {
            divide_copies(scope.common_bytes, &mut candidates);
        }
        for process in candidates.iter_mut().filter(|process| process.within_lease) {
            process.preference = process.preference.min(KillPreference::Avoid);
        }
    }
    drop_small(&mut candidates, scope)?;
    let Some(worst) = first_in_rank(candidates.iter()) else {
        return Err(match considered {
            0 => NoVictim::NoProcess,
            _ => NoVictim::NoneEligible { considered, protected: kept, dying, empty },
        });
    };
    let victim = spare_avoided(worst, candidates.iter());
    let mut choice = Choice {
        victim,
        others: Vec::new(),
        sharers: 0,
        runner_up: None,
        considered,
        cause: match victim.preference {
            KillPreference::Prefer => Cause::Preferred,
            KillPreference::Never | KillPreference::Avoid => Cause::LastResort,
            KillPreference::Ordinary if grows(&victim) => Cause::Growing,
            KillPreference::Ordinary => Cause::Largest,
        },
    };
    if victim.preference <= KillPreference::Ordinary {
        prefer_herd(&mut choice, &worst, &candidates, scope);
    }
    spare_leaseholder(&mut choice, &candidates);
    let victims = choice.victims();
    choice.sharers = victims.map(|victim| sharers.others(victim)).sum();
    let lives =
        |p: &&Process| p.id != choice.victim.id && !choice.others.iter().any(|o| o.id == p.id);
    let living = candidates.iter().filter(lives);
    choice.runner_up = first_in_rank(living.clone()).map(|next| spare_avoided(next, living));
    Ok(choice)
}

fn first_in_rank<'p>(candidates: impl Iterator<Item = &'p Process>) -> Option<Process> {
    candidates.max_by_key(|process| rank(process)).copied()
}

/// Avoiding a process changes the order among its user's processes only: another one of them is
/// killed instead.
fn spare_avoided<'p>(worst: Process, candidates: impl Iterator<Item = &'p Process>) -> Process {
    if worst.preference != KillPreference::Avoid {
        return worst;
    }
    let others =
        candidates.filter(|it| it.preference > KillPreference::Avoid && it.is_of_same_user(&worst));
    first_in_rank(others).unwrap_or(worst)
}

/// Removes processes that would free too little.
fn drop_small(candidates: &mut Vec<Process>, scope: &Scope) -> Result<(), NoVictim> {
    let sum = |of: &[Process]| of.iter().map(Process::freed_bytes).fold(0, u64::saturating_add);
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
    // By account, the sum and the largest process.
    let mut of_account: BTreeMap<AccountId, (u64, u64)> = BTreeMap::new();
    for (at, process) in candidates.iter().enumerate() {
        let bytes = process.freed_bytes();
        *of_family.entry(families.family(at)).or_default() += bytes;
        let (sum, largest) = of_account.entry(process.account).or_default();
        (*sum, *largest) = (*sum + bytes, bytes.max(*largest));
    }
    let floor = scope.floor_bytes;
    let pays = |(at, process): (usize, &Process)| {
        let (sum, largest) = of_account[&process.account];
        let together = of_family[&families.family(at)];
        process.freed_bytes() >= floor || together >= floor || (largest < floor && sum >= floor)
    };
    let pay: Vec<bool> = candidates.iter().enumerate().map(pays).collect();
    let mut pay = pay.into_iter();
    candidates.retain(|_| pay.next().unwrap_or(false));
    if candidates.is_empty() { Err(cannot) } else { Ok(()) }
}

/// A lease protects only against growth of other processes of the same account, so it does not
/// change which account loses a process.
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

/// If a herd has a higher score than the worst single process, its members are killed instead. A
/// herd of the worst process's own user is compared with the process that would be killed.
fn prefer_herd(choice: &mut Choice, worst: &Process, candidates: &[Process], scope: &Scope) {
    let Some(worst_herd) = worst_herd(candidates, scope.bombs) else { return };
    let herd = worst_herd.herd;
    let of_same_user = worst_herd.members.iter().any(|member| member.is_of_same_user(worst));
    let single = if of_same_user { score(&choice.victim) } else { score(worst) };
    if worst_herd.score <= single {
        return;
    }
    let is_first = !herd.bomb && herd.killed_kin == 0;
    let count = match scope.herds {
        Herds::OneFirst if is_first => 1,
        Herds::OneFirst | Herds::Together => cull(&herd, &worst_herd.members, scope.need_bytes),
    };
    let mut members = worst_herd.first(count);
    choice.victim = members.remove(0);
    choice.others = members;
    choice.cause = Cause::Herd(herd);
}
