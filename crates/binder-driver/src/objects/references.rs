//! References: a process's handles for nodes of other processes, with strong and weak counts.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use crate::slab::Key;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::debug::counters::one_more;
use crate::driver::{DeathId, Driver, FreezeNotificationId, NodeId, ProcessId, RefId, ThreadId};
use crate::host::Errno;
use crate::limits::MAX_OBJECTS_A_PROCESS;
use crate::objects::Strength;
use crate::objects::handles::{Handles, release_excess};

/// A reference to a node of another process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reference {
    pub process: ProcessId,
    pub handle: u32,
    pub node: NodeId,
    pub strong: u32,
    pub weak: u32,
    pub death: Option<DeathId>,
    pub freeze: Option<FreezeNotificationId>,
    /// Links of the node's list of references.
    pub previous_of_node: Option<RefId>,
    pub next_of_node: Option<RefId>,
}

impl Reference {
    fn count_mut(&mut self, strength: Strength) -> &mut u32 {
        match strength {
            Strength::Strong => &mut self.strong,
            Strength::Weak => &mut self.weak,
        }
    }
}

/// All references of one process.
#[derive(Debug, Default)]
pub struct References {
    ids: Handles,
    /// By handle; null = free. The last entry is the highest handle in use.
    by_handle: Vec<RefId>,
    /// Without a random hash key for each process: clients do not choose the keys.
    by_node: HashMap<NodeId, RefId, BuildHasherDefault<DefaultHasher>>,
}

impl References {
    /// The reference with this handle.
    pub fn get(&self, handle: u32) -> Option<RefId> {
        self.by_handle.get(handle as usize).copied().filter(|id| !id.is_null())
    }

    /// The reference to this node.
    pub fn of_node(&self, node: NodeId) -> Option<RefId> {
        self.by_node.get(&node).copied()
    }

    /// The reference with the highest handle.
    pub fn last(&self) -> Option<RefId> {
        self.by_handle.last().copied()
    }

    /// Number of references.
    pub fn len(&self) -> usize {
        self.by_node.len()
    }

    /// All references, ordered by handle.
    pub fn iter(&self) -> impl Iterator<Item = RefId> {
        self.by_handle.iter().copied().filter(|id| !id.is_null())
    }

    /// Allocates the lowest free handle from 1 on.
    fn take_handle(&mut self) -> u32 {
        self.ids.take_lowest()
    }

    pub fn insert(&mut self, handle: u32, node: NodeId, id: RefId) {
        let at = handle as usize;
        if self.by_handle.len() <= at {
            self.by_handle.resize(at + 1, RefId::NULL);
        }
        self.by_handle[at] = id;
        self.by_node.insert(node, id);
    }

    pub fn remove(&mut self, handle: u32, node: NodeId) {
        self.ids.give_back(handle);
        self.by_handle[handle as usize] = RefId::NULL;
        while self.by_handle.last().is_some_and(|id| id.is_null()) {
            self.by_handle.pop();
        }
        release_excess(&mut self.by_handle);
        self.by_node.remove(&node);
        if self.by_node.capacity() > 64 && self.by_node.len() < self.by_node.capacity() / 8 {
            self.by_node.shrink_to(self.by_node.capacity() / 4);
        }
    }

    /// Lists the references by node, after they were read back.
    pub fn index_nodes(&mut self, node_of: impl Fn(RefId) -> NodeId) {
        self.by_node = self.iter().map(|id| (node_of(id), id)).collect();
    }

    /// Checks redundant data against each other.
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

/// The references by handle; all else follows from them.
impl Serialize for References {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.by_handle.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for References {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let by_handle: Vec<RefId> = Vec::deserialize(deserializer)?;
        if by_handle.len() > MAX_OBJECTS_A_PROCESS + 1 || by_handle.last() == Some(&RefId::NULL) {
            return Err(D::Error::custom("table of handles"));
        }
        let taken = (0..).zip(&by_handle).skip(1).filter(|(_, id)| !id.is_null());
        let ids = Handles::with_taken(taken.map(|(handle, _)| handle));
        Ok(Self { ids, by_handle, by_node: HashMap::default() })
    }
}

impl Driver {
    /// The reference of a handle; one without strong counts is found only with `Strength::Weak`.
    pub(crate) fn ref_by_handle(
        &self,
        process: ProcessId,
        handle: u32,
        at_least: Strength,
    ) -> Option<RefId> {
        let id = self.processes.get(process)?.refs.get(handle)?;
        (at_least == Strength::Weak || self.refs[id].strong > 0).then_some(id)
    }

    /// Takes a reference of `process` to `node`, with a new handle if it has none. `notify`: see
    /// [`Self::inc_internal_strong`].
    pub(crate) fn take_ref(
        &mut self,
        process: ProcessId,
        node: NodeId,
        strength: Strength,
        notify: Option<ThreadId>,
    ) -> Result<RefId, Errno> {
        let known = self.processes[process].refs.of_node(node);
        let id = match known {
            Some(id) => id,
            None => self.insert_ref(process, node)?,
        };
        if let Err(errno) = self.inc_ref(id, strength, notify) {
            if known.is_none() {
                self.remove_ref(id);
            }
            return Err(errno);
        }
        Ok(id)
    }

    fn insert_ref(&mut self, process: ProcessId, node: NodeId) -> Result<RefId, Errno> {
        let entry = &mut self.processes[process];
        if entry.refs.len() >= MAX_OBJECTS_A_PROCESS {
            return Err(Errno::ENOMEM);
        }
        self.charge_object(process)?;
        let entry = &mut self.processes[process];
        let is_manager = self.contexts[entry.context].manager == Some(node);
        let handle = match entry.refs.get(0) {
            None if is_manager => 0,
            _ => entry.refs.take_handle(),
        };
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

    fn inc_ref(
        &mut self,
        id: RefId,
        strength: Strength,
        notify: Option<ThreadId>,
    ) -> Result<(), Errno> {
        let node = self.refs[id].node;
        let count = *self.refs[id].count_mut(strength);
        let more = count.checked_add(1).ok_or(Errno::ENOMEM)?;
        if count == 0 {
            match strength {
                Strength::Strong => self.inc_internal_strong(node, notify)?,
                Strength::Weak => self.inc_internal_weak(node, notify),
            }
        }
        *self.refs[id].count_mut(strength) = more;
        Ok(())
    }

    /// Drops one count; a count of 0 stays 0. The reference is removed with its last count.
    pub(crate) fn dec_ref(&mut self, id: RefId, strength: Strength) {
        let Some(entry) = self.refs.get_mut(id) else { return };
        let Some(less) = entry.count_mut(strength).checked_sub(1) else { return };
        *entry.count_mut(strength) = less;
        let (node, gone) = (entry.node, entry.strong == 0 && entry.weak == 0);
        if strength == Strength::Strong && less == 0 {
            self.dec_internal_strong(node);
        }
        if gone {
            self.remove_ref(id);
        }
    }

    /// Removes a reference with all its counts, and its notifications.
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

    /// `BC_INCREFS` / `BC_ACQUIRE`. `EINVAL` if the manager acquires handle 0; any other error is
    /// ignored, as by the kernel's driver.
    pub(crate) fn acquire_handle(
        &mut self,
        process: ProcessId,
        handle: u32,
        strength: Strength,
    ) -> Result<(), Errno> {
        let context = &self.contexts[self.processes[process].context];
        if let (0, Some(manager)) = (handle, context.manager) {
            if self.nodes[manager].owner == Some(process) {
                return Err(Errno::EINVAL);
            }
            if self.take_ref(process, manager, strength, None).is_ok() {
                return Ok(());
            }
        }
        if let Some(id) = self.ref_by_handle(process, handle, strength) {
            let _ = self.inc_ref(id, strength, None);
        }
        Ok(())
    }

    /// `BC_RELEASE` / `BC_DECREFS`. Unknown handles are ignored.
    pub(crate) fn release_handle(&mut self, process: ProcessId, handle: u32, strength: Strength) {
        if let Some(id) = self.ref_by_handle(process, handle, strength) {
            self.dec_ref(id, strength);
        }
    }
}
