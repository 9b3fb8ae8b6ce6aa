//! Processes: one open of a device each.

use std::collections::BTreeMap;

use owners::Uid;

use crate::debug::counters::{Counters, one_more};
use crate::driver::Driver;
use crate::errno::Errno;
use crate::host::Host;
use crate::keys::{ContextId, ProcessId};
use crate::notifications::delivered::Delivered;
use crate::notifications::types::Freezer;
use crate::objects::types::References;
use crate::process::types::{Opener, Process, SpamDetection};
use crate::write_read::deliver::DeliverToRead;
use crate::write_read::types::Work;

impl Driver {
    /// The process that opened a device has changed its effective uid.
    pub fn set_opener_euid(&mut self, process: ProcessId, euid: Uid) {
        if let Some(open) = self.processes.get_mut(process) {
            open.opener.euid = euid;
        }
    }

    /// Opens a device. `ENOENT`: no such device. The number of opens is the front end's to limit.
    pub fn open(&mut self, context: ContextId, opener: Opener) -> Result<ProcessId, Errno> {
        self.contexts.get(context).filter(|c| !c.removed).ok_or(Errno::ENOENT)?;
        let account = self.join_account(opener.owner);
        self.contexts[context].opens += 1;
        one_more(&mut self.statistics.made.processes);
        Ok(self.processes.insert(Process {
            context,
            opener,
            account,
            threads: BTreeMap::new(),
            idle: Vec::new(),
            todo: self.queues.create(),
            nodes: BTreeMap::new(),
            refs: References::default(),
            delivered_deaths: Delivered::default(),
            deaths: 0,
            freezer: Freezer::default(),
            sent_freeze_notifications: Delivered::default(),
            freeze_notifications: 0,
            oneway_slots: 0,
            untaken_bytes: 0,
            area: None,
            max_threads: 0,
            requested_threads: 0,
            started_threads: 0,
            spam_detection: SpamDetection::Off,
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

    /// `close(2)` of one descriptor of the open: its readers return to user space, and so does the
    /// next read of each of its threads.
    pub fn flush(&mut self, process: ProcessId) {
        let Ok(entry) = self.process(process) else { return };
        let threads: Vec<_> = entry.threads.values().copied().collect();
        for thread in threads {
            self.threads[thread].need_return = true;
            self.wake_thread(thread);
        }
    }

    /// The process that made the open has exited, while other references to the open exist. What is
    /// queued for it is dropped, and callers get `BR_DEAD_REPLY`: its address space is gone, and
    /// the files in a message may be all that keeps opens, this one included, from being released.
    pub fn opener_exited<H: Host>(&mut self, host: &mut H, process: ProcessId) {
        let Ok(entry) = self.process(process) else { return };
        let todo = entry.todo;
        let nodes: Vec<_> = entry.nodes.values().copied().collect();
        for node in nodes {
            self.cancel_oneway_queue(host, node);
        }
        let queued: Vec<_> = self.queues.iter(todo).collect();
        for (id, work) in queued {
            if matches!(work, Work::Transaction(_)) && self.queues.unlink(id).is_some() {
                work.cancel(self, host, None);
            }
        }
    }

    /// Last close: the process dies. Its callers get `BR_DEAD_REPLY`, watchers of its nodes
    /// `BR_DEAD_BINDER`; parked reads are dropped.
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
        while let Some(death) = self.processes[process].delivered_deaths.first() {
            self.remove_death(death);
        }
        while let Some(sent) = self.processes[process].sent_freeze_notifications.first() {
            self.remove_freeze_notification(sent);
        }
        self.release_freezer(process);
        self.forget_buffers(process);
        self.queues.destroy(todo);
        self.leave_account(self.processes[process].account);
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

    /// `BINDER_ENABLE_ONEWAY_SPAM_DETECTION`.
    pub fn enable_oneway_spam_detection(
        &mut self,
        process: ProcessId,
        detection: SpamDetection,
    ) -> Result<(), Errno> {
        self.process_mut(process)?.spam_detection = detection;
        Ok(())
    }
}
