//! References: one process's handle to another's node, with strong and weak counts.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use slotmap::Key;

use crate::Errno;
use crate::driver::Driver;
use crate::handles::{Handles, release_excess};
use crate::keys::{DeathId, FreezeNotificationId, NodeId, ProcessId, RefId, ThreadId};
use crate::limits::MAX_OBJECTS_A_PROCESS;
use crate::statistics::one_more;

/// One reference.
#[derive(Debug)]
pub struct Reference {
    pub process: ProcessId,
    pub handle: u32,
    pub node: NodeId,
    pub strong: u32,
    pub weak: u32,
    pub death: Option<DeathId>,
    pub freeze: Option<FreezeNotificationId>,
    /// The node's list of references.
    pub previous_of_node: Option<RefId>,
    pub next_of_node: Option<RefId>,
}

/// All references of one process.
#[derive(Debug, Default)]
pub struct References {
    ids: Handles,
    /// By handle; null = free. Ends with the highest handle in use.
    by_handle: Vec<RefId>,
    /// Without a hash key of its own for each process: clients do not choose the keys.
    by_node: HashMap<NodeId, RefId, BuildHasherDefault<DefaultHasher>>,
}

impl References {
    /// By handle.
    pub fn get(&self, handle: u32) -> Option<RefId> {
        self.by_handle.get(handle as usize).copied().filter(|id| !id.is_null())
    }

    /// By node.
    pub fn of_node(&self, node: NodeId) -> Option<RefId> {
        self.by_node.get(&node).copied()
    }

    /// The one with the highest handle.
    pub fn last(&self) -> Option<RefId> {
        self.by_handle.last().copied()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_node.len()
    }

    /// In the order of their handles.
    pub fn iter(&self) -> impl Iterator<Item = RefId> {
        self.by_handle.iter().copied().filter(|id| !id.is_null())
    }

    /// The lowest free handle; 0 only for the context manager, while it is free.
    fn take_handle(&mut self, manager: bool) -> u32 {
        if manager && self.get(0).is_none() { 0 } else { self.ids.take_lowest() }
    }

    fn insert(&mut self, handle: u32, node: NodeId, id: RefId) {
        let at = handle as usize;
        if self.by_handle.len() <= at {
            self.by_handle.resize(at + 1, RefId::null());
        }
        self.by_handle[at] = id;
        self.by_node.insert(node, id);
    }

    fn remove(&mut self, handle: u32, node: NodeId) {
        self.ids.give_back(handle);
        self.by_handle[handle as usize] = RefId::null();
        while self.by_handle.last().is_some_and(|id| id.is_null()) {
            self.by_handle.pop();
        }
        release_excess(&mut self.by_handle);
        self.by_node.remove(&node);
        if self.by_node.capacity() > 64 && self.by_node.len() < self.by_node.capacity() / 8 {
            self.by_node.shrink_to(self.by_node.capacity() / 4);
        }
    }

    /// Recomputes what is kept twice.
    pub fn check(&self) -> Result<(), String> {
        let listed = self.iter().count();
        if listed != self.by_node.len() {
            return Err(format!("{listed} handles, {} nodes", self.by_node.len()));
        }
        for handle in 1..self.by_handle.len() as u32 + 64 {
            if self.ids.is_taken(handle) != self.get(handle).is_some() {
                return Err(format!("bitmap and table disagree on handle {handle}"));
            }
        }
        Ok(())
    }
}

impl Driver {
    /// The reference of a handle; with `need_strong` only if its strong count is not 0.
    pub(crate) fn ref_by_handle(
        &self,
        process: ProcessId,
        handle: u32,
        need_strong: bool,
    ) -> Option<RefId> {
        let id = self.processes.get(process)?.refs.get(handle)?;
        (!need_strong || self.refs[id].strong > 0).then_some(id)
    }

    /// Takes a reference of `process` to `node`, with a new handle if it has none. `notify`: see
    /// [`Self::inc_internal_strong`].
    pub(crate) fn take_ref(
        &mut self,
        process: ProcessId,
        node: NodeId,
        strong: bool,
        notify: Option<ThreadId>,
    ) -> Result<RefId, Errno> {
        let (id, new) = match self.processes[process].refs.of_node(node) {
            Some(id) => (id, false),
            None => (self.insert_ref(process, node)?, true),
        };
        let taken = self.inc_ref(id, strong, notify);
        if taken.is_err() && new {
            self.remove_ref(id);
        }
        taken.map(|()| id)
    }

    fn insert_ref(&mut self, process: ProcessId, node: NodeId) -> Result<RefId, Errno> {
        let entry = &mut self.processes[process];
        if entry.refs.len() >= MAX_OBJECTS_A_PROCESS {
            return Err(Errno::ENOMEM);
        }
        self.charge_object(process)?;
        let entry = &mut self.processes[process];
        let manager = self.contexts[entry.context].manager == Some(node);
        let handle = entry.refs.take_handle(manager);
        let target = &mut self.nodes[node];
        one_more(&mut self.statistics.made.refs);
        let id = self.refs.insert(Reference {
            process,
            handle,
            node,
            strong: 0,
            weak: 0,
            death: None,
            freeze: None,
            previous_of_node: None,
            next_of_node: target.first_ref,
        });
        if let Some(next) = target.first_ref.replace(id) {
            self.refs[next].previous_of_node = Some(id);
        }
        target.ref_count += 1;
        self.processes[process].refs.insert(handle, node, id);
        Ok(id)
    }

    fn inc_ref(&mut self, id: RefId, strong: bool, notify: Option<ThreadId>) -> Result<(), Errno> {
        let entry = &self.refs[id];
        let node = entry.node;
        let count = if strong { entry.strong } else { entry.weak };
        let more = count.checked_add(1).ok_or(Errno::ENOMEM)?;
        if strong {
            if count == 0 {
                self.inc_internal_strong(node, notify)?;
            }
            self.refs[id].strong = more;
        } else {
            if count == 0 {
                self.inc_internal_weak(node, notify);
            }
            self.refs[id].weak = more;
        }
        Ok(())
    }

    /// Gives one count back; a count that is 0 already stays so. The reference goes with its last
    /// count.
    pub(crate) fn dec_ref(&mut self, id: RefId, strong: bool) {
        let Some(entry) = self.refs.get_mut(id) else { return };
        let count = if strong { &mut entry.strong } else { &mut entry.weak };
        let Some(less) = count.checked_sub(1) else { return };
        *count = less;
        let (node, gone) = (entry.node, entry.strong == 0 && entry.weak == 0);
        if strong && less == 0 {
            self.dec_internal_strong(node);
        }
        if gone {
            self.remove_ref(id);
        }
    }

    /// Drops a reference with whatever it still holds, its death notification too.
    pub(crate) fn remove_ref(&mut self, id: RefId) {
        let Some(entry) = self.refs.remove(id) else { return };
        self.processes[entry.process].refs.remove(entry.handle, entry.node);
        self.discharge_object(entry.process);
        let (previous, next) = (entry.previous_of_node, entry.next_of_node);
        match previous {
            Some(previous) => self.refs[previous].next_of_node = next,
            None => self.nodes[entry.node].first_ref = next,
        }
        if let Some(next) = next {
            self.refs[next].previous_of_node = previous;
        }
        if let Some(death) = entry.death {
            self.remove_death(death);
        }
        if let Some(freeze) = entry.freeze {
            self.remove_freeze_notification(freeze);
        }
        self.nodes[entry.node].ref_count -= 1;
        if entry.strong > 0 {
            self.dec_internal_strong(entry.node);
        }
        if self.nodes.contains_key(entry.node) {
            self.node_lost_weak(entry.node);
        }
    }

    /// `BC_INCREFS` / `BC_ACQUIRE`. `EINVAL` if the manager asks for handle 0; any other mistake
    /// is ignored as the kernel driver does.
    pub(crate) fn acquire_handle(
        &mut self,
        process: ProcessId,
        handle: u32,
        strong: bool,
    ) -> Result<(), Errno> {
        let context = &self.contexts[self.processes[process].context];
        if let (0, Some(manager)) = (handle, context.manager) {
            if self.nodes[manager].owner == Some(process) {
                return Err(Errno::EINVAL);
            }
            if self.take_ref(process, manager, strong, None).is_ok() {
                return Ok(());
            }
        }
        if let Some(id) = self.ref_by_handle(process, handle, strong) {
            let _ = self.inc_ref(id, strong, None);
        }
        Ok(())
    }

    /// `BC_RELEASE` / `BC_DECREFS`. Unknown handles are ignored.
    pub(crate) fn release_handle(&mut self, process: ProcessId, handle: u32, strong: bool) {
        if let Some(id) = self.ref_by_handle(process, handle, strong) {
            self.dec_ref(id, strong);
        }
    }
}
