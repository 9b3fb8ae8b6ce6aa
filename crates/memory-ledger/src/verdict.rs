//! Who dies, and why: a pure function of a snapshot.

use crate::account::{Account, Phase};
use crate::process::{Process, ProcessId};

/// The rule in words, for the record.
pub const RULE: &str = "largest anonymous + shared + swapped memory of the user over its limit";

/// Everything a decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// Limited users with their readings and victims in flight.
    pub accounts: &'a [Account],
    /// All processes, of any user, in any order.
    pub processes: &'a [Process],
    /// Pids that must live: the daemons' own.
    pub protected: &'a [u32],
}

/// The decision about one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No limit, or not broken.
    Within,
    /// Broken, but a victim's memory is still on its way back.
    Wait(ProcessId),
    /// Somebody has to die.
    Kill(Choice),
    /// Somebody would have to, and nobody can.
    Nobody(NoVictim),
}

/// A victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Who.
    pub victim: Process,
    /// Who would have been next.
    pub runner_up: Option<Process>,
    /// Processes of the user that were looked at, whether they could be chosen or not.
    pub considered: u32,
}

/// Why nobody can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoVictim {
    /// The charge has no process.
    #[error("the user has no process")]
    NoProcess,
    /// There are some, but none is eligible.
    #[error(
        "none of the user's {considered} processes can be chosen: {protected} protected, {dying} dying already, {empty} without memory"
    )]
    NoneEligible {
        /// Processes of the user.
        considered: u32,
        /// Of these, protected, pid 1 or a kernel thread.
        protected: u32,
        /// Of these, exiting, a victim in flight or stuck.
        dying: u32,
        /// Of these, without memory of their own.
        empty: u32,
    },
}

/// Decides about one user.
pub fn verdict(snapshot: &Snapshot, uid: u32) -> Verdict {
    let account = snapshot.accounts.iter().find(|account| account.uid == uid);
    let Some(account) = account.filter(|account| account.phase() == Phase::Broken) else {
        return Verdict::Within;
    };
    if let Some(victim) = account.in_flight() {
        return Verdict::Wait(victim.id);
    }
    match choose(account, snapshot.processes, snapshot.protected) {
        Ok(choice) => Verdict::Kill(choice),
        Err(nobody) => Verdict::Nobody(nobody),
    }
}

/// The victim that a user's limit would cost, whether it is broken already or not.
pub fn choose(
    account: &Account,
    processes: &[Process],
    protected: &[u32],
) -> Result<Choice, NoVictim> {
    let mut best: Option<Process> = None;
    let mut runner_up: Option<Process> = None;
    let (mut considered, mut kept, mut dying, mut empty) = (0, 0, 0, 0);
    for process in processes.iter().filter(|process| process.uid == account.uid) {
        considered += 1;
        let id = process.id;
        if id.pid <= 1 || process.kernel_thread || protected.contains(&id.pid) {
            kept += 1;
        } else if process.exiting
            || account.stuck().contains(&id)
            || account.in_flight().is_some_and(|victim| victim.id == id)
        {
            dying += 1;
        } else if process.charged_bytes() == 0 {
            empty += 1;
        } else if best.is_none_or(|best| rank(process) > rank(&best)) {
            runner_up = best.replace(*process);
        } else if runner_up.is_none_or(|second| rank(process) > rank(&second)) {
            runner_up = Some(*process);
        }
    }
    match best {
        Some(victim) => Ok(Choice { victim, runner_up, considered }),
        None if considered == 0 => Err(NoVictim::NoProcess),
        None => Err(NoVictim::NoneEligible { considered, protected: kept, dying, empty }),
    }
}

/// Larger first; of equals the younger, which has less work to lose; of those the higher pid. Total,
/// so the order of the list does not matter.
fn rank(process: &Process) -> (u64, u64, u32) {
    (process.charged_bytes(), process.id.start_time, process.id.pid)
}
