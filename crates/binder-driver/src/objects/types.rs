//! Data structures of nodes and references; the rules are in the other files of this folder.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use binder_uapi::BinderPtrCookie;
use keyed_slab::Key;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::keys::{DeathId, FreezeNotificationId, NodeId, ProcessId, RefId, TransactionId};
use crate::limits::MAX_OBJECTS_A_PROCESS;
use crate::objects::handles::{Handles, release_excess};
use crate::write_read::queue::{QueueId, WorkId};

/// The two kinds of reference counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Strength {
    Weak,
    /// Keeps the object itself alive, not only its identity.
    Strong,
}

/// Key of one-way calls to a node: a newer call supersedes an older one with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UpdateKey {
    pub code: u32,
    pub flags: u32,
    pub sender_pid: u32,
}

/// A queued one-way call with `TF_UPDATE_TXN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedUpdate {
    pub work: WorkId,
    pub transaction: TransactionId,
}

/// An object of a process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Node {
    /// Debug id.
    pub id: u32,
    pub ptr: u64,
    pub cookie: u64,
    /// `None` = the owner is dead.
    pub owner: Option<ProcessId>,
    pub accepts_fds: bool,
    pub wants_security_context: bool,
    /// Flags from the first time that the owner sent the object; they determine its priority.
    pub flags: u32,
    /// Number of references with a strong count.
    pub internal_strong: u32,
    pub local_strong: u32,
    pub local_weak: u32,
    /// Strong (`BR_ACQUIRE`) / weak (`BR_INCREFS`) references were reported to the owner.
    pub has_strong: bool,
    pub has_weak: bool,
    /// ... and the owner has not acknowledged that yet.
    pub pending_strong: bool,
    pub pending_weak: bool,
    /// Head of the list of references to this node.
    pub first_ref: Option<RefId>,
    pub ref_count: u32,
    /// The node's work item, when queued.
    pub work: Option<WorkId>,
    /// A one-way call is undelivered, or its buffer is not freed yet.
    pub has_oneway: bool,
    /// One-way calls queued behind that one; created with the first.
    pub oneway_todo: Option<QueueId>,
    /// Those of these calls that have `TF_UPDATE_TXN`: oldest first for each key, so that a newer
    /// one finds the call that it supersedes without a search through the queue.
    pub updates: BTreeMap<UpdateKey, VecDeque<QueuedUpdate>>,
}

impl Node {
    pub fn is_strong(&self) -> bool {
        self.internal_strong > 0 || self.local_strong > 0
    }

    pub fn is_weak(&self) -> bool {
        self.ref_count > 0 || self.local_weak > 0 || self.is_strong()
    }

    pub fn name(&self) -> BinderPtrCookie {
        BinderPtrCookie { ptr: self.ptr, cookie: self.cookie }
    }
}

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
    pub fn count_mut(&mut self, strength: Strength) -> &mut u32 {
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
    pub fn take_handle(&mut self) -> u32 {
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
