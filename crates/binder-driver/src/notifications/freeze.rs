//! Freezing: prevents calls to a process whose threads are about to be stopped.
//!
//! A frozen process refuses sync calls and queues one-way calls. A freeze succeeds only if no
//! transaction to the process is pending and none of its threads is in a call; with a timeout it
//! waits for that. The driver has no clock: the front end measures the time and calls
//! [`Driver::freeze_timed_out`].

use std::collections::BTreeSet;

use binder_uapi::{BinderFreezeInfo, BinderFrozenStatusInfo};
use serde::{Deserialize, Serialize};

use crate::driver::{Driver, FreezeId, FreezeNotificationId, ProcessId};
use crate::host::Errno;
use crate::notifications::freeze_notification::FreezeState;

/// Freeze state of a process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Freezer {
    pub frozen: bool,
    /// A sync call was refused since the freeze.
    pub sync_received: bool,
    /// A one-way call was received since the freeze.
    pub async_received: bool,
    /// Transactions to the process that have not ended: queued, or calls without a reply.
    pub outstanding: usize,
    /// The last state reported to watchers was frozen.
    pub announced: bool,
    /// Pending freezes that wait for the last of the outstanding transactions.
    pub waits: BTreeSet<FreezeId>,
    /// Notifications registered on nodes of the process.
    pub watchers: BTreeSet<FreezeNotificationId>,
}

/// A pending `BINDER_FREEZE`.
#[derive(Debug, Serialize, Deserialize)]
pub struct FreezeWait {
    /// The open that requested it.
    pub caller: ProcessId,
    /// The opens to freeze, without those released since.
    pub targets: BTreeSet<ProcessId>,
    /// The opens were thawed meanwhile.
    thawed: bool,
}

/// Result of a `BINDER_FREEZE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Freeze {
    /// The result is known.
    Done(Result<(), Errno>),
    /// Keep the request until [`Wake::Freeze`](crate::Wake::Freeze), an interrupt
    /// ([`Driver::freeze_interrupted`]) or its timeout ([`Driver::freeze_timed_out`]).
    Waiting(FreezeId),
}

impl Driver {
    fn opens_of_pid(&self, pid: u32) -> BTreeSet<ProcessId> {
        let opens = self.processes.iter();
        opens.filter(|(_, open)| open.opener.pid == pid).map(|(id, _)| id).collect()
    }

    /// `BINDER_FREEZE`, for every open of a pid (as the host numbers processes).
    ///
    /// `EINVAL`: the pid has no open; `EAGAIN`: a transaction to it is pending (the process is not
    /// frozen then), or it was thawed while this freeze waited.
    pub fn freeze(&mut self, caller: ProcessId, info: BinderFreezeInfo) -> Freeze {
        let targets = self.opens_of_pid(info.pid);
        if targets.is_empty() {
            return Freeze::Done(Err(Errno::EINVAL));
        }
        if info.enable == 0 {
            for &target in &targets {
                self.thaw(target);
            }
            return Freeze::Done(Ok(()));
        }
        for &target in &targets {
            let freezer = &mut self.processes[target].freezer;
            freezer.frozen = true;
            freezer.sync_received = false;
            freezer.async_received = false;
        }
        if info.timeout_ms == 0 || self.is_drained(&targets) {
            return Freeze::Done(self.conclude_freeze(&targets));
        }
        let id = self.freezes.insert(FreezeWait { caller, targets, thawed: false });
        for target in &self.freezes[id].targets {
            self.processes[*target].freezer.waits.insert(id);
        }
        Freeze::Waiting(id)
    }

    fn is_drained(&self, targets: &BTreeSet<ProcessId>) -> bool {
        targets.iter().all(|&target| self.processes[target].freezer.outstanding == 0)
    }

    /// A transaction to the process is pending, or one of its threads is in a call.
    fn is_busy(&self, process: ProcessId) -> bool {
        let entry = &self.processes[process];
        let mut threads = entry.threads.values();
        entry.freezer.outstanding > 0 || threads.any(|&thread| self.threads[thread].stack.is_some())
    }

    /// Freezes all targets and notifies their watchers, or none if one of them is busy.
    fn conclude_freeze(&mut self, targets: &BTreeSet<ProcessId>) -> Result<(), Errno> {
        if targets.iter().any(|&target| self.is_busy(target)) {
            self.give_up_freeze(targets);
            return Err(Errno::EAGAIN);
        }
        for &target in targets {
            self.processes[target].freezer.frozen = true;
            self.announce_freeze(target, FreezeState::Frozen);
        }
        Ok(())
    }

    fn give_up_freeze(&mut self, targets: &BTreeSet<ProcessId>) {
        for &target in targets {
            let freezer = &mut self.processes[target].freezer;
            freezer.frozen = false;
            // The target was frozen before this attempt: its watchers have to be notified that it
            // is not.
            if freezer.announced {
                self.announce_freeze(target, FreezeState::Thawed);
            }
        }
    }

    fn thaw(&mut self, target: ProcessId) {
        let freezer = &mut self.processes[target].freezer;
        freezer.frozen = false;
        freezer.sync_received = false;
        freezer.async_received = false;
        for &wait in &freezer.waits {
            self.freezes[wait].thawed = true;
            self.wakes.freeze(wait);
        }
        self.announce_freeze(target, FreezeState::Thawed);
    }

    /// Removes a pending freeze from its targets.
    fn end_wait(&mut self, id: FreezeId) -> Option<FreezeWait> {
        let wait = self.freezes.remove(id)?;
        for target in &wait.targets {
            self.processes[*target].freezer.waits.remove(&id);
        }
        Some(wait)
    }

    /// Result of a pending freeze that was woken; `None` if it has to wait longer.
    pub(crate) fn resume_freeze(&mut self, id: FreezeId) -> Option<Result<(), Errno>> {
        let wait = self.freezes.get(id)?;
        if wait.thawed {
            self.end_wait(id);
            return Some(Err(Errno::EAGAIN));
        }
        if !self.is_drained(&wait.targets) {
            return None;
        }
        let wait = self.end_wait(id)?;
        Some(self.conclude_freeze(&wait.targets))
    }

    /// The timeout of a pending freeze has expired: returns its result. A stale id is `EAGAIN`.
    pub fn freeze_timed_out(&mut self, id: FreezeId) -> Result<(), Errno> {
        let wait = self.end_wait(id).ok_or(Errno::EAGAIN)?;
        self.conclude_freeze(&wait.targets)
    }

    /// The thread that waits for a freeze has a signal: the freeze is aborted.
    pub fn freeze_interrupted(&mut self, id: FreezeId) {
        if let Some(wait) = self.end_wait(id) {
            self.give_up_freeze(&wait.targets);
        }
    }

    /// A transaction to the process has ended.
    pub(crate) fn transaction_left(&mut self, process: ProcessId) {
        let Some(entry) = self.processes.get_mut(process) else { return };
        entry.freezer.outstanding -= 1;
        if entry.freezer.outstanding == 0 {
            for &wait in &entry.freezer.waits {
                self.wakes.freeze(wait);
            }
        }
    }

    /// The process is released: removes it from pending freezes of other processes, and aborts its
    /// own.
    pub(crate) fn release_freezer(&mut self, process: ProcessId) {
        for wait in std::mem::take(&mut self.processes[process].freezer.waits) {
            self.freezes[wait].targets.remove(&process);
            self.wakes.freeze(wait);
        }
        for watcher in std::mem::take(&mut self.processes[process].freezer.watchers) {
            self.freeze_notifications[watcher].owner = None;
        }
        let requested = self.freezes.iter().filter(|(_, wait)| wait.caller == process);
        let requested: Vec<FreezeId> = requested.map(|(id, _)| id).collect();
        for id in requested {
            self.freeze_interrupted(id);
        }
    }

    /// `BINDER_GET_FROZEN_INFO`, over every open of the pid. `EINVAL`: the pid has no open.
    pub fn frozen_info(&self, pid: u32) -> Result<BinderFrozenStatusInfo, Errno> {
        let opens = self.opens_of_pid(pid);
        if opens.is_empty() {
            return Err(Errno::EINVAL);
        }
        let mut info = BinderFrozenStatusInfo { pid, ..Default::default() };
        for id in opens {
            let freezer = &self.processes[id].freezer;
            info.sync_recv |= u32::from(freezer.sync_received) | u32::from(self.is_busy(id)) << 1;
            info.async_recv |= u32::from(freezer.async_received);
        }
        Ok(info)
    }
}
