//! Contexts: one per device, with at most one context manager (handle 0).

use binder_uapi::FlatBinderObject;

use crate::driver::Driver;
use crate::errno::Errno;
use crate::host::Caller;
use crate::keys::{ContextId, ProcessId};
use crate::process::types::Context;
use crate::write_read::types::Work;

impl Driver {
    /// Adds a device.
    pub fn add_context(&mut self, name: &str) -> ContextId {
        self.contexts.insert(Context {
            name: name.to_owned(),
            removed: false,
            manager: None,
            manager_uid: None,
            opens: 0,
        })
    }

    /// Removes a device: no more opens; existing ones keep working.
    pub fn remove_context(&mut self, context: ContextId) {
        let Some(entry) = self.contexts.get_mut(context) else { return };
        entry.removed = true;
        if entry.opens == 0 {
            self.contexts.remove(context);
        }
    }

    /// `BINDER_SET_CONTEXT_MGR` (`None`) and `_EXT`.
    ///
    /// `EBUSY`: there is a manager; `EPERM`: the first manager had another uid; `ENOMEM`: the
    /// caller owns too many nodes.
    pub fn set_context_manager(
        &mut self,
        caller: Caller,
        object: Option<FlatBinderObject>,
    ) -> Result<(), Errno> {
        let process = self.process(caller.process)?;
        let (id, todo) = (process.context, process.todo);
        let context = &mut self.contexts[id];
        if context.manager.is_some() {
            return Err(Errno::EBUSY);
        }
        if *context.manager_uid.get_or_insert(caller.euid) != caller.euid {
            return Err(Errno::EPERM);
        }
        let node = self.node_for_object(caller.process, object.unwrap_or_default())?;
        let entry = &mut self.nodes[node];
        // The context itself refers to the node, so this reference is not reported to the owner.
        entry.local_strong += 1;
        entry.local_weak += 1;
        entry.has_strong = true;
        entry.has_weak = true;
        self.contexts[id].manager = Some(node);
        debug_assert!(self.queues.iter(todo).all(|(_, work)| work != Work::Node(node)));
        Ok(())
    }

    /// Whether `process` is the context manager of its context.
    pub(crate) fn is_manager(&self, process: ProcessId) -> bool {
        let manager = self.contexts[self.processes[process].context].manager;
        manager.is_some_and(|node| self.nodes[node].owner == Some(process))
    }
}
