//! Generational keys of the driver's slabs. Looking up a stale key returns no entry.

use keyed_slab::key_types;

key_types! {
    /// A device. A stale key is reported as an error, never by a panic.
    pub struct ContextId;
    /// One open of a device. A stale key is reported as an error, never by a panic.
    pub struct ProcessId;
    /// An owner that has opens or queued messages.
    pub struct AccountId;
    /// A thread of a process.
    pub struct ThreadId;
    /// An object that a process owns.
    pub struct NodeId;
    /// A process's reference to another's node.
    pub struct RefId;
    /// A call, one-way call or reply that is not delivered or waits for its reply.
    pub struct TransactionId;
    /// A slice of a receiver's mapping.
    pub struct BufferId;
    /// A death notification.
    pub struct DeathId;
    /// A pending `BINDER_FREEZE`. A stale key is reported as an error, never by a panic.
    pub struct FreezeId;
    /// A freeze notification.
    pub struct FreezeNotificationId;
}
