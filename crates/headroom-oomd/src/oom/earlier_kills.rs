//! Kills that an earlier daemon has carried out, and whose victims have not exited yet.

use control::oomd::{Candidate, Outcome, Why};
use headroom_linux::clock::monotonic_ns;
use memory_ledger::Process;

use super::manager::OomManager;
use crate::clock::epoch_micros;

/// Awaits the victims that still exit as if this daemon had killed them, so that their memory
/// counts, and their decisions get an outcome. That of the others is unknown.
pub(super) fn follow_earlier_kills(manager: &mut OomManager) {
    let OomManager { records, state, executor, system_monitor, .. } = manager;
    let dying = records.dying();
    if dying.is_empty() {
        return;
    }
    state.refresh_processes();
    for why in dying {
        let victim = state.snapshot.processes().iter().find(|it| is_victim(it, &why)).copied();
        let awaited = victim.and_then(|victim| {
            let ago_micros = epoch_micros().saturating_sub(why.at_micros);
            let at_ns = monotonic_ns().saturating_sub(ago_micros.saturating_mul(1000));
            let token = executor.follow_earlier(&victim, at_ns, state).ok()?;
            Some((token, victim.freed_bytes()))
        });
        match awaited {
            Some((token, bytes)) => {
                state.kills.set_record(token, why.id);
                system_monitor.credit(bytes);
            }
            None => records.finish(why.id, Outcome::Unknown),
        }
    }
}

/// A pid is not reused before its process has exited, and no signal depends on it here.
fn is_victim(process: &Process, why: &Why) -> bool {
    let named = |it: &Candidate| it.pid == process.id.pid && it.comm == process.comm.to_string();
    process.exiting && why.victim.as_ref().is_some_and(named)
}
