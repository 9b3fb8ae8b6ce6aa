//! Processes: one open of a device each.

use std::collections::{BTreeMap, BTreeSet};

use crate::Errno;
use crate::buffer::ReceiveArea;
use crate::driver::{Driver, Opener};
use crate::freeze::Freezer;
use crate::host::Host;
use crate::keys::{ContextId, DeathId, FreezeNotificationId, NodeId, ProcessId, ThreadId, UserId};
use crate::queue::QueueId;
use crate::reference::References;
use crate::statistics::{Counters, one_more};
use crate::work::DeliverToRead;

/// One open.
#[derive(Debug)]
pub struct Process {
    pub context: ContextId,
    pub opener: Opener,
    pub user: UserId,
    /// By tid.
    pub threads: BTreeMap<u32, ThreadId>,
    /// Threads parked with nothing of their own to wait for; the last one is woken first, its
    /// caches being the warmest.
    pub idle: Vec<ThreadId>,
    /// Work that any thread may take.
    pub todo: QueueId,
    /// Nodes it owns, by pointer.
    pub nodes: BTreeMap<u64, NodeId>,
    pub refs: References,
    /// Death notifications sent but not acknowledged, by cookie.
    pub delivered_deaths: BTreeSet<(u64, DeathId)>,
    /// Death notifications of any state.
    pub deaths: usize,
    pub freezer: Freezer,
    /// Freeze notifications sent but not acknowledged, by cookie.
    pub sent_freeze_notifications: BTreeSet<(u64, FreezeNotificationId)>,
    /// Freeze notifications of any state that it asked for.
    pub freeze_notifications: usize,
    /// Where its transactions arrive; known once the first one came.
    pub area: Option<Box<ReceiveArea>>,
    pub max_threads: u32,
    /// `BR_SPAWN_LOOPER` sent, `BC_REGISTER_LOOPER` not yet seen.
    pub requested_threads: u32,
    /// Requested threads that have registered.
    pub started_threads: u32,
    /// Tells `BR_ONEWAY_SPAM_SUSPECT` apart from `BR_TRANSACTION_COMPLETE`.
    pub spam_detection: bool,
    /// A thread has polled the open.
    pub polled: bool,
    /// What it said and heard so far.
    pub counters: Counters,
    /// It is being released.
    pub dead: bool,
}

impl Process {
    /// A part of a live buffer gets contents.
    pub fn touch(&mut self, offset: u32, len: u64) {
        if let Some(area) = &mut self.area {
            // It lies in the area.
            area.pages.touch(offset..offset + len as u32);
        }
    }
}

impl Driver {
    /// Opens a device. `ENOENT`: no such device; `EMFILE`: its user has too many opens.
    pub fn open(&mut self, context: ContextId, opener: Opener) -> Result<ProcessId, Errno> {
        self.contexts.get(context).filter(|c| !c.removed).ok_or(Errno::ENOENT)?;
        let user = self.admit_open(opener.euid)?;
        self.contexts[context].opens += 1;
        one_more(&mut self.statistics.made.processes);
        Ok(self.processes.insert(Process {
            context,
            opener,
            user,
            threads: BTreeMap::new(),
            idle: Vec::new(),
            todo: self.queues.create(),
            nodes: BTreeMap::new(),
            refs: References::default(),
            delivered_deaths: BTreeSet::new(),
            deaths: 0,
            freezer: Freezer::default(),
            sent_freeze_notifications: BTreeSet::new(),
            freeze_notifications: 0,
            area: None,
            max_threads: 0,
            requested_threads: 0,
            started_threads: 0,
            spam_detection: false,
            polled: false,
            counters: Counters::default(),
            dead: false,
        }))
    }

    /// The process, or `EBADF` for a stale key.
    pub(crate) fn process(&self, id: ProcessId) -> Result<&Process, Errno> {
        self.processes.get(id).ok_or(Errno::EBADF)
    }

    pub(crate) fn process_mut(&mut self, id: ProcessId) -> Result<&mut Process, Errno> {
        self.processes.get_mut(id).ok_or(Errno::EBADF)
    }

    /// `close(2)` of one descriptor of the open: its readers return to user space, those that come
    /// to read next too.
    pub fn flush(&mut self, process: ProcessId) {
        let Ok(entry) = self.process(process) else { return };
        let threads: Vec<_> = entry.threads.values().copied().collect();
        for thread in threads {
            self.threads[thread].need_return = true;
            self.wake_thread(thread);
        }
    }

    /// Last close: the process dies. Its callers get `BR_DEAD_REPLY`, watchers of its nodes
    /// `BR_DEAD_BINDER`; parked reads are forgotten.
    pub fn release<H: Host>(&mut self, host: &mut H, process: ProcessId) {
        let Ok(entry) = self.process_mut(process) else { return };
        entry.dead = true;
        let (context, todo) = (entry.context, entry.todo);
        if self.is_manager(process) {
            self.contexts[context].manager = None;
        }
        while let Some((_, &thread)) = self.processes[process].threads.first_key_value() {
            self.release_thread(host, thread);
        }
        while let Some((_, &node)) = self.processes[process].nodes.first_key_value() {
            self.release_node(host, node);
        }
        while let Some(reference) = self.processes[process].refs.last() {
            self.remove_ref(reference);
        }
        while let Some(work) = self.queues.pop(todo) {
            work.cancel(self, host, None);
        }
        while let Some((_, death)) = self.processes[process].delivered_deaths.first().copied() {
            self.remove_death(death);
        }
        while let Some(&(_, sent)) = self.processes[process].sent_freeze_notifications.first() {
            self.remove_freeze_notification(sent);
        }
        self.release_freezer(process);
        self.forget_buffers(process);
        self.queues.destroy(todo);
        self.leave_user(self.processes[process].user);
        self.processes.remove(process);
        let entry = &mut self.contexts[context];
        entry.opens -= 1;
        if entry.removed && entry.opens == 0 {
            self.contexts.remove(context);
        }
    }

    /// `BINDER_SET_MAX_THREADS`.
    pub fn set_max_threads(&mut self, process: ProcessId, max: u32) -> Result<(), Errno> {
        self.process_mut(process)?.max_threads = max;
        Ok(())
    }

    /// `BINDER_ENABLE_ONEWAY_SPAM_DETECTION`: whether this process, when it floods a receiver,
    /// is told so by `BR_ONEWAY_SPAM_SUSPECT`.
    pub fn enable_oneway_spam_detection(
        &mut self,
        process: ProcessId,
        enable: bool,
    ) -> Result<(), Errno> {
        self.process_mut(process)?.spam_detection = enable;
        Ok(())
    }
}
