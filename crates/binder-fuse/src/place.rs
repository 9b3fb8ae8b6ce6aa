//! What a node id of the mount refers to.

use serde::{Deserialize, Serialize};

/// Identifies a device; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct DeviceId(pub(crate) u64);

/// The entry that a node id refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Root,
    Control,
    Features,
    Feature,
    /// `binder_logs`.
    Logs,
    Log(Log),
    /// `binder_logs/proc`.
    Processes,
    Device(DeviceId),
}

/// A file of `binder_logs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    FailedTransactions,
    State,
    Stats,
    LastTransactions,
    Transactions,
    /// All opens of a pid.
    Process(u32),
}
