//! A further victim: a process that shares the first victim's memory, or a member of its family.

use memory_ledger::Process;
use reclaim::{KillError, Victim};

use super::super::kill_plan::open;

/// A process that is stopped to be killed, or was killed.
pub(super) struct KilledMember {
    pub(super) process: Process,
    pub(super) victim: Victim,
}

impl KilledMember {
    /// Stops a process. If it cannot be stopped, it will be killed all the same. `None`: it has
    /// exited.
    pub(super) fn stop(process: &Process) -> Option<Self> {
        let victim = open(process).ok()?;
        let gone = matches!(victim.stop(), Err(KillError::Gone(_)));
        (!gone).then_some(Self { process: *process, victim })
    }

    /// Kills the stopped processes and keeps those that were signalled. The others are continued.
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
