//! The driver: one value that owns every device, open, thread, node, reference and transaction.

use std::collections::VecDeque;

use binder_uapi::{
    BinderExtendedError, BinderNodeDebugInfo, BinderNodeInfoForRef, BinderWriteRead,
    FlatBinderObject,
};
use slotmap::{SlotMap, new_key_type};

use crate::Errno;
use crate::host::{Caller, Host};
use crate::snapshot::Snapshot;

new_key_type! {
    /// A device. A stale one is an error value, never a panic.
    pub struct ContextId;
    /// One open of a device. A stale one is an error value, never a panic.
    pub struct ProcessId;
}

/// Who opens a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Thread group id, as the host numbers processes.
    pub pid: u32,
    /// Effective uid.
    pub euid: u32,
}

/// What becomes of a `BINDER_WRITE_READ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteRead {
    /// Answer the ioctl now: `bwr` goes back to the client whatever `result` is.
    Done {
        /// The argument with its consumed counts.
        bwr: BinderWriteRead,
        /// The ioctl's result.
        result: Result<(), Errno>,
    },
    /// Nothing to read: keep the request and answer it after a [`Wake::Reader`]
    /// ([`Driver::resume`]) or an interrupt, never otherwise.
    Parked,
}

/// What the front end has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// Call [`Driver::resume`] for this parked reader.
    Reader {
        /// The open.
        process: ProcessId,
        /// The parked thread.
        tid: u32,
    },
    /// The open may have become readable for a thread that polled it.
    Poll {
        /// The open.
        process: ProcessId,
    },
}

/// The driver core; see the crate's documentation.
#[derive(Debug, Default)]
pub struct Driver {
    contexts: SlotMap<ContextId, String>,
    processes: SlotMap<ProcessId, (ContextId, Opener)>,
    wakes: VecDeque<Wake>,
}

impl Driver {
    /// A driver without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a device.
    pub fn add_context(&mut self, name: &str) -> ContextId {
        self.contexts.insert(name.to_owned())
    }

    /// Removes a device from sight: no more opens; existing ones go on working.
    pub fn remove_context(&mut self, context: ContextId) {
        self.contexts.remove(context);
    }

    /// Opens a device. `ENOENT`: no such device.
    pub fn open(&mut self, context: ContextId, opener: Opener) -> Result<ProcessId, Errno> {
        if !self.contexts.contains_key(context) {
            return Err(Errno::ENOENT);
        }
        Ok(self.processes.insert((context, opener)))
    }

    /// `close(2)` of one descriptor of the open: its readers return to user space.
    pub fn flush(&mut self, process: ProcessId) {
        let _ = process;
    }

    /// Last close: the process dies in the driver's eyes.
    pub fn release<H: Host>(&mut self, _host: &mut H, process: ProcessId) {
        self.processes.remove(process);
    }

    /// `BINDER_THREAD_EXIT`, or the thread died.
    pub fn thread_exit<H: Host>(&mut self, _host: &mut H, process: ProcessId, tid: u32) {
        let _ = (process, tid);
    }

    /// `BINDER_WRITE_READ`: runs the commands, then reads or parks.
    pub fn write_read<H: Host>(
        &mut self,
        _host: &mut H,
        _caller: Caller,
        bwr: BinderWriteRead,
        _nonblock: bool,
    ) -> WriteRead {
        WriteRead::Done { bwr, result: Err(Errno::EINVAL) }
    }

    /// Finishes a parked read after [`Wake::Reader`]; may park again when its work was taken away.
    pub fn resume<H: Host>(&mut self, _host: &mut H, _process: ProcessId, _tid: u32) -> WriteRead {
        WriteRead::Done { bwr: BinderWriteRead::default(), result: Err(Errno::EBADF) }
    }

    /// A signal for a parked reader: the argument to hand back with `EINTR`; `None` if it is not
    /// parked.
    pub fn interrupt(&mut self, _process: ProcessId, _tid: u32) -> Option<BinderWriteRead> {
        None
    }

    /// True = readable now. False arms one [`Wake::Poll`] for when it becomes readable.
    pub fn poll(&mut self, _caller: Caller) -> bool {
        false
    }

    /// Work for the front end after any call; drain until `None`.
    pub fn next_wake(&mut self) -> Option<Wake> {
        self.wakes.pop_front()
    }

    /// `BINDER_SET_MAX_THREADS`.
    pub fn set_max_threads(&mut self, _process: ProcessId, _max: u32) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// `BINDER_SET_CONTEXT_MGR` (`None`) and `_EXT`.
    pub fn set_context_manager(
        &mut self,
        _caller: Caller,
        _object: Option<FlatBinderObject>,
    ) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// `BINDER_GET_NODE_DEBUG_INFO`: the first node whose pointer is above `after`.
    pub fn node_debug_info(
        &self,
        _process: ProcessId,
        _after: u64,
    ) -> Result<BinderNodeDebugInfo, Errno> {
        Err(Errno::EINVAL)
    }

    /// `BINDER_GET_NODE_INFO_FOR_REF`.
    pub fn node_info_for_ref(
        &self,
        _process: ProcessId,
        _query: BinderNodeInfoForRef,
    ) -> Result<BinderNodeInfoForRef, Errno> {
        Err(Errno::EINVAL)
    }

    /// `BINDER_GET_EXTENDED_ERROR`: the calling thread's last error, which is then forgotten.
    pub fn extended_error(&mut self, _caller: Caller) -> Result<BinderExtendedError, Errno> {
        Err(Errno::EINVAL)
    }

    /// `BINDER_ENABLE_ONEWAY_SPAM_DETECTION`.
    pub fn enable_oneway_spam_detection(
        &mut self,
        _process: ProcessId,
        _enable: bool,
    ) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Everything that the driver holds.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }
}
