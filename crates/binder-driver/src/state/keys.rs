//! Checks that each key in a state that was read back belongs to an object, and each number that
//! is used as an index or an offset is in range: the invariants are checked by looking these up.

use crate::slab::{Key, Slab};

use crate::buffer::{Buffer, Layout, ReceiveArea};
use crate::driver::{Driver, ProcessId, ThreadId};
use crate::limits::MAX_MAPPING;
use crate::objects::nodes::Node;
use crate::objects::references::Reference;
use crate::process::Process;
use crate::process::thread::Thread;
use crate::transaction::Transaction;

fn known<K: Key, V>(slab: &Slab<K, V>, key: K) -> Result<(), String> {
    if slab.contains_key(key) { Ok(()) } else { Err(format!("{key:?} is stale")) }
}

fn all_known<K: Key, V>(
    slab: &Slab<K, V>,
    keys: impl IntoIterator<Item = K>,
) -> Result<(), String> {
    keys.into_iter().try_for_each(|key| known(slab, key))
}

impl Driver {
    pub(super) fn check_keys(&self) -> Result<(), String> {
        self.queues.check()?;
        self.log.check()?;
        all_known(&self.nodes, self.contexts.values().filter_map(|context| context.manager))?;
        self.processes.iter().try_for_each(|(id, process)| self.check_process_keys(id, process))?;
        self.threads.iter().try_for_each(|(id, thread)| self.check_thread_keys(id, thread))?;
        self.nodes.values().try_for_each(|node| self.check_node_keys(node))?;
        self.refs.values().try_for_each(|reference| self.check_reference_keys(reference))?;
        self.transactions.values().try_for_each(|entry| self.check_transaction_keys(entry))?;
        self.buffers.values().try_for_each(|buffer| self.check_buffer_keys(buffer))?;
        all_known(&self.processes, self.deaths.values().map(|death| death.process))?;
        let notifications = self.freeze_notifications.values();
        let watched = notifications.flat_map(|entry| [Some(entry.process), entry.owner]);
        all_known(&self.processes, watched.flatten())
    }

    fn check_process_keys(&self, id: ProcessId, process: &Process) -> Result<(), String> {
        known(&self.contexts, process.context)?;
        known(&self.accounts, process.account)?;
        self.queues.check_exists(process.todo)?;
        for (&tid, &thread) in &process.threads {
            let entry = self.threads.get(thread);
            if entry.is_none_or(|entry| (entry.process, entry.tid) != (id, tid)) {
                return Err(format!("thread {tid} of {id:?} is another one"));
            }
        }
        for (&ptr, &node) in &process.nodes {
            let entry = self.nodes.get(node);
            if entry.is_none_or(|entry| (entry.owner, entry.ptr) != (Some(id), ptr)) {
                return Err(format!("node {ptr:#x} of {id:?} is another one"));
            }
        }
        all_known(&self.refs, process.refs.iter())?;
        all_known(&self.deaths, process.delivered_deaths.ids())?;
        all_known(&self.freeze_notifications, process.sent_freeze_notifications.ids())?;
        all_known(&self.freezes, process.freezer.waits.iter().copied())?;
        process.area.as_ref().map_or(Ok(()), |area| area.check_size(self.page_bytes()))
    }

    fn check_thread_keys(&self, id: ThreadId, thread: &Thread) -> Result<(), String> {
        known(&self.processes, thread.process)?;
        self.queues.check_exists(thread.todo)?;
        all_known(&self.transactions, thread.stack)?;
        let own = (thread.process, thread.tid);
        if thread.parked.is_some_and(|parked| (parked.caller.process, parked.caller.tid) != own) {
            return Err(format!("{id:?} is parked for another thread"));
        }
        let Some(delivery) = &thread.fd_delivery else { return Ok(()) };
        known(&self.transactions, delivery.transaction)?;
        let caller = delivery.request.caller;
        let is_own = (caller.process, caller.tid) == own && delivery.request.thread == id;
        // A transaction is the last return of a read, so it lies within the returns.
        if is_own && delivery.transaction_at < delivery.returns.len() {
            Ok(())
        } else {
            Err(format!("the delivery of {id:?} is that of another read"))
        }
    }

    fn check_node_keys(&self, node: &Node) -> Result<(), String> {
        all_known(&self.processes, node.owner)?;
        node.oneway_todo.map_or(Ok(()), |queue| self.queues.check_exists(queue))
    }

    fn check_reference_keys(&self, reference: &Reference) -> Result<(), String> {
        known(&self.processes, reference.process)?;
        known(&self.nodes, reference.node)?;
        all_known(&self.deaths, reference.death)?;
        all_known(&self.freeze_notifications, reference.freeze)
    }

    fn check_transaction_keys(&self, entry: &Transaction) -> Result<(), String> {
        all_known(&self.threads, entry.from.into_iter().chain(entry.to_thread))?;
        // The receiver's side of a call whose receiving thread has exited is not used any more.
        let to_parent = entry.to_thread.and(entry.to_parent);
        all_known(&self.transactions, entry.from_parent.into_iter().chain(to_parent))?;
        all_known(&self.processes, entry.to)?;
        all_known(&self.buffers, entry.buffer)
    }

    fn check_buffer_keys(&self, buffer: &Buffer) -> Result<(), String> {
        known(&self.processes, buffer.process)?;
        all_known(&self.accounts, buffer.queued_for)?;
        all_known(&self.transactions, buffer.transaction)?;
        let layout = &buffer.layout;
        let is_inside = |at: u64| at <= layout.total;
        let files = buffer.files.iter().map(|slot| u64::from(slot.at) + 4);
        if layout.is_ordered() && files.chain(buffer.context_at).all(is_inside) {
            Ok(())
        } else {
            Err(format!("a buffer has the layout {layout:?}"))
        }
    }
}

impl Layout {
    /// The parts follow each other.
    fn is_ordered(&self) -> bool {
        let offsets_end = self.offsets_at.checked_add(self.offsets_size);
        self.data_size <= self.offsets_at
            && offsets_end.is_some_and(|end| end <= self.extra_at)
            && self.extra_at <= self.extra_end
            && self.extra_end <= self.total
            && self.total <= MAX_MAPPING
    }
}

impl ReceiveArea {
    /// The ranges and the pages lie in the mapping.
    fn check_size(&self, page_bytes: u32) -> Result<(), String> {
        let size = self.ranges.size();
        let pages = size.div_ceil(page_bytes) as usize;
        let is_whole = Self::usable_bytes(self.mapping) == size && self.pages.known_len() <= pages;
        if is_whole && self.free_oneway <= size {
            Ok(())
        } else {
            Err(format!("a receive area of {size} bytes in {:?}", self.mapping))
        }
    }
}
