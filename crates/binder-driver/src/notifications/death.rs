//! Death notifications: requested for a handle, sent when the node's owner dies, can be withdrawn.

use binder_uapi::{BinderHandleCookie, Return};
use serde::{Deserialize, Serialize};

use crate::debug::counters::one_more;
use crate::driver::{DeathId, Driver, ProcessId, RefId, ThreadId};
use crate::host::{Errno, Host};
use crate::limits::MAX_DEATHS_A_PROCESS;
use crate::objects::Strength;
use crate::write_read::queue::WorkId;
use crate::write_read::work::{DeliverToRead, Flow, Reader, Work};

/// State of a death notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeathState {
    /// Registered; no work is queued.
    Armed,
    /// `BR_DEAD_BINDER` is queued, or sent and not acknowledged.
    Dead,
    /// Like `Dead`, and withdrawn since: the confirmation follows the acknowledgement.
    DeadAndClear,
    /// `BR_CLEAR_DEATH_NOTIFICATION_DONE` is queued.
    Clear,
}

/// A death notification.
#[derive(Debug, Serialize, Deserialize)]
pub struct Death {
    pub process: ProcessId,
    pub cookie: u64,
    pub state: DeathState,
    /// The notification's work item, when queued.
    pub work: Option<WorkId>,
    /// `BR_DEAD_BINDER` was sent, and `BC_DEAD_BINDER_DONE` is due.
    pub delivered: bool,
}

impl Driver {
    /// `BC_REQUEST_DEATH_NOTIFICATION`. An unknown handle or a second request is ignored;
    /// `ENOMEM`: too many.
    pub(crate) fn request_death(
        &mut self,
        process: ProcessId,
        request: BinderHandleCookie,
    ) -> Result<(), Errno> {
        let Some(id) = self.ref_by_handle(process, request.handle, Strength::Weak) else {
            return Ok(());
        };
        if self.refs[id].death.is_some() {
            return Ok(());
        }
        if self.processes[process].deaths >= MAX_DEATHS_A_PROCESS {
            return Err(Errno::ENOMEM);
        }
        self.charge_object(process)?;
        self.processes[process].deaths += 1;
        one_more(&mut self.statistics.made.deaths);
        let reference = &mut self.refs[id];
        reference.death = Some(self.deaths.insert(Death {
            process,
            cookie: request.cookie,
            state: DeathState::Armed,
            work: None,
            delivered: false,
        }));
        if self.nodes[reference.node].owner.is_none() {
            self.queue_death_notification(id);
        }
        Ok(())
    }

    /// The node of this reference is dead: queues its death notification, if one is registered.
    pub(crate) fn queue_death_notification(&mut self, reference: RefId) {
        let Some(death) = self.refs[reference].death else { return };
        self.deaths[death].state = DeathState::Dead;
        self.queue_death(death, None);
    }

    /// Queues the notification for a thread that is in the pool, else for its process.
    fn queue_death(&mut self, death: DeathId, thread: Option<ThreadId>) {
        let process = self.deaths[death].process;
        let queue = match thread.filter(|&thread| self.threads[thread].looper.in_pool()) {
            Some(thread) => {
                self.threads[thread].has_urgent = true;
                self.threads[thread].todo
            }
            None => self.processes[process].todo,
        };
        self.deaths[death].work = Some(self.queues.push(queue, Work::Death(death)));
        if queue == self.processes[process].todo {
            self.wake_process(process);
        }
    }

    /// `BC_CLEAR_DEATH_NOTIFICATION`. Anything but the cookie that was registered is ignored.
    pub(crate) fn clear_death(
        &mut self,
        process: ProcessId,
        thread: ThreadId,
        request: BinderHandleCookie,
    ) {
        let Some(id) = self.ref_by_handle(process, request.handle, Strength::Weak) else { return };
        let Some(death) = self.refs[id].death else { return };
        let entry = &mut self.deaths[death];
        if entry.cookie != request.cookie {
            return;
        }
        self.refs[id].death = None;
        if entry.work.is_some() || entry.delivered {
            entry.state = DeathState::DeadAndClear;
        } else {
            entry.state = DeathState::Clear;
            self.queue_death(death, Some(thread));
        }
    }

    /// `BC_DEAD_BINDER_DONE`. A cookie that was not sent is ignored.
    pub(crate) fn dead_binder_done(&mut self, process: ProcessId, thread: ThreadId, cookie: u64) {
        let delivered = &mut self.processes[process].delivered_deaths;
        let Some(death) = delivered.acknowledge(cookie) else { return };
        let entry = &mut self.deaths[death];
        entry.delivered = false;
        match entry.state {
            DeathState::DeadAndClear => {
                entry.state = DeathState::Clear;
                self.queue_death(death, Some(thread));
            }
            _ => entry.state = DeathState::Armed,
        }
    }

    /// Removes a notification in any state.
    pub(crate) fn remove_death(&mut self, death: DeathId) {
        let Some(entry) = self.deaths.remove(death) else { return };
        if let Some(work) = entry.work {
            self.queues.unlink(work);
        }
        let process = &mut self.processes[entry.process];
        process.delivered_deaths.remove(death);
        process.deaths -= 1;
        self.discharge_object(entry.process);
    }
}

impl DeliverToRead for DeathId {
    fn deliver<H: Host>(self, driver: &mut Driver, _: &mut H, reader: &mut Reader<'_>) -> Flow {
        let death = &mut driver.deaths[self];
        death.work = None;
        let cookie = death.cookie;
        if death.state == DeathState::Clear {
            reader.put(Return::ClearDeathNotificationDone(cookie));
            driver.remove_death(self);
            return Flow::Continue;
        }
        death.delivered = true;
        driver.processes[reader.process].delivered_deaths.insert(cookie, self);
        reader.put(Return::DeadBinder(cookie));
        // Nothing else is delivered with it, because the reader may react to it by making calls.
        Flow::Return
    }

    fn cancel<H: Host>(self, driver: &mut Driver, _: &mut H, _: Option<ThreadId>) {
        let death = &mut driver.deaths[self];
        death.work = None;
        if driver.processes[death.process].dead {
            driver.remove_death(self);
        } else {
            driver.queue_death(self, None);
        }
    }
}
