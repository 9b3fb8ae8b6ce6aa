//! The objects that a front end refers to, by which it verifies its own state.

use crate::driver::Driver;
use crate::host::FileToken;
use crate::keys::{ContextId, FreezeId, ProcessId};

impl Driver {
    /// All opens.
    pub fn opens(&self) -> impl Iterator<Item = ProcessId> {
        self.processes.keys()
    }

    /// Whether this is a device.
    pub fn has_context(&self, context: ContextId) -> bool {
        self.contexts.contains_key(context)
    }

    /// Opens and tids of all parked reads.
    pub fn parked_reads(&self) -> impl Iterator<Item = (ProcessId, u32)> {
        let parked = self.threads.values().filter(|thread| thread.parked.is_some());
        parked.map(|thread| (thread.process, thread.tid))
    }

    /// All freezes that wait.
    pub fn pending_freezes(&self) -> impl Iterator<Item = FreezeId> {
        self.freezes.keys()
    }

    /// Files of which the driver has a token.
    pub fn files_in_transit(&self) -> impl Iterator<Item = FileToken> {
        self.buffers.values().flat_map(|buffer| &buffer.files).map(|slot| slot.file)
    }
}
