//! Kills in flight that another program of the same process continues with.

use std::collections::HashSet;

use headroom_linux::kept_fd::KeptFd;
use memory_ledger::{InFlightKill, KillToken, KillsInFlight, Uid};
use reclaim::{Identity, Victim};
use serde::{Deserialize, Serialize};

/// Kills in flight with the pidfds of their victims: written, or read and not verified yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedKills {
    pub(super) kills: KillsInFlight,
    pub(super) victims: Vec<SavedVictim>,
}

/// A victim with its pidfd.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct SavedVictim {
    token: KillToken,
    pid: u32,
    uid: Uid,
    #[serde(rename = "start_ticks")]
    start_number: u64,
    pidfd: KeptFd,
}

impl SavedVictim {
    pub(super) fn of(token: KillToken, victim: &Victim) -> Self {
        let Identity { pid, uid, start_number } = victim.identity();
        Self { token, pid, uid, start_number, pidfd: KeptFd::of(victim) }
    }

    /// # Safety
    ///
    /// As for [`KeptFd::take`].
    unsafe fn restore(self) -> std::io::Result<(KillToken, Victim)> {
        let Self { token, pid, uid, start_number, pidfd } = self;
        // SAFETY: the caller guarantees it.
        let pidfd = unsafe { pidfd.take() }?;
        Ok((token, Victim::from_pidfd(Identity { pid, uid, start_number }, pidfd)))
    }
}

/// Kills in flight that were taken over.
#[derive(Default)]
pub struct TakenOverKills {
    pub(super) kills: KillsInFlight,
    pub(super) victims: Vec<(KillToken, Victim)>,
}

impl TakenOverKills {
    /// Number of kills in flight.
    pub fn count(&self) -> usize {
        self.kills.all().len()
    }
}

impl SavedKills {
    /// The descriptors that the next program inherits.
    pub fn descriptors(&self) -> impl Iterator<Item = KeptFd> {
        self.victims.iter().map(|victim| victim.pidfd)
    }

    /// Verifies that the kills are those of one daemon, and that each victim that has not exited
    /// has a pidfd.
    pub fn verify(self) -> Result<Self, String> {
        let Self { kills, victims } = self;
        let kills = kills.verify()?;
        let mut pinned = HashSet::new();
        for SavedVictim { token, pid, .. } in &victims {
            let is_victim = kills.get(*token).is_some_and(|kill| kill.victim.pid == *pid);
            if !is_victim || !pinned.insert(*token) {
                return Err(format!("pid {pid} is not the victim of kill {}", token.0));
            }
        }
        let is_lost = |kill: &&InFlightKill| !kill.is_gone() && !pinned.contains(&kill.token);
        if let Some(lost) = kills.all().iter().find(is_lost) {
            return Err(format!("pid {} has no pidfd", lost.victim.pid));
        }
        Ok(Self { kills, victims })
    }

    /// Takes the pidfds over.
    ///
    /// # Safety
    ///
    /// The kills are verified, and their descriptors are taken once: see [`KeptFd::take`].
    pub unsafe fn take_over(self) -> std::io::Result<TakenOverKills> {
        // SAFETY: the caller guarantees it.
        let victims = self.victims.into_iter().map(|victim| unsafe { victim.restore() });
        Ok(TakenOverKills { kills: self.kills, victims: victims.collect::<Result<_, _>>()? })
    }
}
