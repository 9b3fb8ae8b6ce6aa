//! All bounds on what one client may make the driver hold or do.

use binder_uapi::BinderTransactionDataSecctx;

/// Bytes of a mapping that are used: the limit of the kernel's driver.
pub const MAX_MAPPING: u64 = 4 << 20;

/// Nodes that one process may own, and references that it may hold. Twice the million handles that
/// the driver is measured with; a node and a reference take some 300 bytes together, so a hostile
/// pair of processes costs at most some 600 MiB.
pub const MAX_OBJECTS_A_PROCESS: usize = 2 << 20;

/// Nodes, references, death and freeze notifications of all opens of one owner. Twice the number of
/// nodes or references that a process may have: below that, no process is affected by another one
/// of its owner.
pub const MAX_OBJECTS_OF_AN_OWNER: usize = 2 * MAX_OBJECTS_A_PROCESS;

/// Threads of one process in the driver.
pub const MAX_THREADS_A_PROCESS: usize = 1 << 16;

/// Death notifications of one process that are registered, queued or unacknowledged.
pub const MAX_DEATHS_A_PROCESS: usize = MAX_OBJECTS_A_PROCESS;

/// File descriptors in one transaction: the maximum of Android's native handles.
pub const MAX_FILES_A_TRANSACTION: usize = 1024;

/// Items in a thread's own queue, above which its transactions fail: a thread that writes but never
/// reads. The queue of a well-behaved thread has a handful.
pub const MAX_THREAD_WORK: usize = 1 << 16;

/// Cost of the commands that are run before other clients are served: 256 commands, 32
/// transactions, or parcels of 64 KiB, which small commands may follow. The batches of libbinder
/// end within one slice.
pub const SLICE_COST: u64 = 64 << 10;

/// Cost of a command, in bytes of a parcel.
pub const COMMAND_COST: u64 = 256;

/// Cost of a transaction besides its parcel: a buffer, its queue, a wake-up.
pub const TRANSACTION_COST: u64 = 2048;

/// Cost of an object in a parcel, which has to be translated.
pub const OBJECT_COST: u64 = 256;

/// Bytes of commands that are fetched at a time; an ordinary write fits in one chunk.
pub const COMMAND_CHUNK: usize = 4096;

/// Bytes of a parcel that are read ahead of its command. One more access for a larger parcel is
/// little compared with its copy.
pub const MAX_PREDICTED_BYTES: u64 = 128 << 10;

/// Room in a read buffer that must be left before a work item is taken: the largest return.
pub const ROOM_FOR_ONE: u64 = 4 + size_of::<BinderTransactionDataSecctx>() as u64;

/// Maximum bytes that one read delivers.
pub const MAX_READ_BYTES: u64 = 64 << 10;

/// Idle pages that are reclaimed when a receiver's owner has reached its memory quota: less than a
/// millisecond of work.
pub const RECLAIM_BATCH: u32 = 64;
