//! Freeze notifications: requested for a handle, sent whenever the node's owner is frozen or
//! thawed.
//!
//! At most one is unacknowledged: changes before the acknowledgement are sent as one more.

use binder_uapi::{BinderFrozenStateInfo, BinderHandleCookie, Return};
use serde::{Deserialize, Serialize};

use crate::debug::counters::one_more;
use crate::driver::{Driver, FreezeNotificationId, ProcessId, ThreadId};
use crate::host::{Errno, Host};
use crate::limits::MAX_DEATHS_A_PROCESS;
use crate::objects::Strength;
use crate::write_read::queue::WorkId;
use crate::write_read::work::{DeliverToRead, Flow, Reader, Work};

/// State of a node's owner that is reported to watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FreezeState {
    Frozen,
    Thawed,
}

/// A freeze notification.
#[derive(Debug, Serialize, Deserialize)]
pub struct FreezeNotification {
    /// The process that receives it.
    pub process: ProcessId,
    /// The watched process; `None` = dead, or the notification was withdrawn.
    pub owner: Option<ProcessId>,
    pub cookie: u64,
    /// State to report, or reported last.
    pub is_frozen: bool,
    /// The notification's work item, when queued.
    pub work: Option<WorkId>,
    /// `BR_FROZEN_BINDER` was sent, and `BC_FREEZE_NOTIFICATION_DONE` is due.
    pub sent: bool,
    /// The state has to be sent again after the acknowledgement.
    pub resend: bool,
    /// The notification was withdrawn: the confirmation of that is sent next.
    pub clear: bool,
}

impl Driver {
    /// `BC_REQUEST_FREEZE_NOTIFICATION`; the current state is sent at once. `EINVAL`: unknown
    /// handle, or already requested; `ENOMEM`: too many.
    pub(crate) fn request_freeze_notification(
        &mut self,
        process: ProcessId,
        request: BinderHandleCookie,
    ) -> Result<(), Errno> {
        let reference =
            self.ref_by_handle(process, request.handle, Strength::Weak).ok_or(Errno::EINVAL)?;
        if self.refs[reference].freeze.is_some() {
            return Err(Errno::EINVAL);
        }
        if self.processes[process].freeze_notifications >= MAX_DEATHS_A_PROCESS {
            return Err(Errno::ENOMEM);
        }
        self.charge_object(process)?;
        self.processes[process].freeze_notifications += 1;
        one_more(&mut self.statistics.made.freezes);
        let entry = &mut self.refs[reference];
        let owner = self.nodes[entry.node].owner;
        let id = self.freeze_notifications.insert(FreezeNotification {
            process,
            owner,
            cookie: request.cookie,
            // A pending freeze is announced when it succeeds.
            is_frozen: owner.is_some_and(|owner| self.processes[owner].freezer.announced),
            work: None,
            sent: false,
            resend: false,
            clear: false,
        });
        entry.freeze = Some(id);
        if let Some(owner) = owner {
            self.processes[owner].freezer.watchers.insert(id);
            self.queue_freeze_notification(id);
        }
        Ok(())
    }

    fn queue_freeze_notification(&mut self, id: FreezeNotificationId) {
        let process = self.freeze_notifications[id].process;
        let todo = self.processes[process].todo;
        let work = self.queues.push(todo, Work::FreezeNotification(id));
        self.freeze_notifications[id].work = Some(work);
        self.wake_process(process);
    }

    /// Notifies the watchers of the process's nodes.
    pub(crate) fn announce_freeze(&mut self, process: ProcessId, state: FreezeState) {
        let is_frozen = state == FreezeState::Frozen;
        let freezer = &mut self.processes[process].freezer;
        freezer.announced = is_frozen;
        for id in freezer.watchers.iter().copied().collect::<Vec<_>>() {
            let entry = &mut self.freeze_notifications[id];
            if entry.sent && entry.is_frozen != is_frozen {
                entry.resend = true;
            }
            entry.is_frozen = is_frozen;
            if entry.work.is_none() && !entry.sent {
                self.queue_freeze_notification(id);
            }
        }
    }

    /// `BC_CLEAR_FREEZE_NOTIFICATION`. `EINVAL`: unknown handle, no notification requested, or
    /// another cookie.
    pub(crate) fn clear_freeze_notification(
        &mut self,
        process: ProcessId,
        request: BinderHandleCookie,
    ) -> Result<(), Errno> {
        let reference =
            self.ref_by_handle(process, request.handle, Strength::Weak).ok_or(Errno::EINVAL)?;
        let id = self.refs[reference].freeze.ok_or(Errno::EINVAL)?;
        if self.freeze_notifications[id].cookie != request.cookie {
            return Err(Errno::EINVAL);
        }
        self.refs[reference].freeze = None;
        self.stop_watching(id);
        let entry = &mut self.freeze_notifications[id];
        entry.clear = true;
        if entry.sent {
            entry.resend = true;
        } else if entry.work.is_none() {
            self.queue_freeze_notification(id);
        }
        Ok(())
    }

    /// `BC_FREEZE_NOTIFICATION_DONE`. `EINVAL`: no such notification was sent.
    pub(crate) fn freeze_notification_done(
        &mut self,
        process: ProcessId,
        cookie: u64,
    ) -> Result<(), Errno> {
        let sent = &mut self.processes[process].sent_freeze_notifications;
        let id = sent.acknowledge(cookie).ok_or(Errno::EINVAL)?;
        let entry = &mut self.freeze_notifications[id];
        entry.sent = false;
        if std::mem::take(&mut entry.resend) {
            self.queue_freeze_notification(id);
        }
        Ok(())
    }

    fn stop_watching(&mut self, id: FreezeNotificationId) {
        if let Some(owner) = self.freeze_notifications[id].owner.take() {
            self.processes[owner].freezer.watchers.remove(&id);
        }
    }

    /// Removes a notification in any state.
    pub(crate) fn remove_freeze_notification(&mut self, id: FreezeNotificationId) {
        self.stop_watching(id);
        let Some(entry) = self.freeze_notifications.remove(id) else { return };
        if let Some(work) = entry.work {
            self.queues.unlink(work);
        }
        let process = &mut self.processes[entry.process];
        process.sent_freeze_notifications.remove(id);
        process.freeze_notifications -= 1;
        self.discharge_object(entry.process);
    }
}

impl DeliverToRead for FreezeNotificationId {
    fn deliver<H: Host>(self, driver: &mut Driver, _: &mut H, reader: &mut Reader<'_>) -> Flow {
        let entry = &mut driver.freeze_notifications[self];
        entry.work = None;
        let (cookie, is_frozen) = (entry.cookie, entry.is_frozen);
        if entry.clear {
            reader.put(Return::ClearFreezeNotificationDone(cookie));
            driver.remove_freeze_notification(self);
            return Flow::Continue;
        }
        entry.sent = true;
        driver.processes[reader.process].sent_freeze_notifications.insert(cookie, self);
        let info = BinderFrozenStateInfo { cookie, is_frozen: is_frozen.into(), reserved: 0 };
        reader.put(Return::FrozenBinder(info));
        // Nothing else is delivered with it, because the reader may react to it by making calls.
        Flow::Return
    }

    fn cancel<H: Host>(self, driver: &mut Driver, _: &mut H, _: Option<ThreadId>) {
        // Freeze notifications are in queues of processes only, and this process exits.
        driver.freeze_notifications[self].work = None;
        driver.remove_freeze_notification(self);
    }
}
