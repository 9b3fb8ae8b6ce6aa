//! Generational keys of the driver's slabs. A stale key finds nothing.

use slotmap::new_key_type;

new_key_type! {
    /// A device. A stale one is an error value, never a panic.
    pub struct ContextId;
    /// One open of a device. A stale one is an error value, never a panic.
    pub struct ProcessId;
    /// An owner that has opens or queued messages.
    pub struct AccountId;
    /// A thread of a process.
    pub struct ThreadId;
    /// An object that a process owns.
    pub struct NodeId;
    /// A process's reference to another's node.
    pub struct RefId;
    /// A call, one-way or reply that is on its way or waits for its reply.
    pub struct TransactionId;
    /// A slice of a receiver's mapping.
    pub struct BufferId;
    /// A death notification.
    pub struct DeathId;
    /// A `BINDER_FREEZE` that waits. A stale one is an error value, never a panic.
    pub struct FreezeId;
    /// A freeze notification.
    pub struct FreezeNotificationId;
}
