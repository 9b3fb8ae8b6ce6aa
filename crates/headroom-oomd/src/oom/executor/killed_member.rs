//! A victim beside the first one: a sharer of its memory, or a member of its family.

use memory_ledger::Process;
use reclaim::{KillError, Victim};

use super::super::kill_plan::open;

/// A process that is about to get its signal, or has got it.
pub(super) struct KilledMember {
    pub(super) process: Process,
    pub(super) victim: Victim,
}

impl KilledMember {
    /// Stops a process. One that cannot be stopped is killed all the same. `None`: it is gone.
    pub(super) fn stop(process: &Process) -> Option<Self> {
        let victim = open(process).ok()?;
        let gone = matches!(victim.stop(), Err(KillError::Gone(_)));
        (!gone).then_some(Self { process: *process, victim })
    }

    /// Kills these, which are stopped, and keeps those that got the signal. The others continue.
    pub(super) fn kill_all(members: &mut Vec<Self>) {
        members.retain(|member| match member.victim.send_kill() {
            Ok(()) => true,
            Err(KillError::Gone(_)) => false,
            Err(error) => {
                tracing::warn!("{error}: it continues");
                member.victim.go_on();
                false
            }
        });
    }
}
