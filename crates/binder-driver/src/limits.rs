//! What one client may make the driver hold or do; every bound is here.

use binder_uapi::BinderTransactionDataSecctx;

/// Bytes of a mapping that are used: the kernel driver's own cap.
pub const MAX_MAPPING: u64 = 4 << 20;

/// Nodes that one process may own, and references that it may hold. Twice the million handles that
/// the driver is measured with; a node and a reference take some 300 bytes together, so a hostile
/// pair of processes costs at most some 600 MiB.
pub const MAX_OBJECTS_A_PROCESS: usize = 2 << 20;

/// Opens of one owner. Each costs the front end a descriptor or two besides memory; Android's
/// busiest user has some hundred.
pub const MAX_OPENS_OF_AN_OWNER: usize = 16 << 10;

/// Nodes, references, death and freeze notifications of all opens of one owner. Twice what a
/// process may have of nodes or of references: no process suffers from another one of its owner
/// before that.
pub const MAX_OBJECTS_OF_AN_OWNER: usize = 2 * MAX_OBJECTS_A_PROCESS;

/// Threads of one process that the driver remembers.
pub const MAX_THREADS_A_PROCESS: usize = 1 << 16;

/// Death notifications of one process that are registered, queued or unacknowledged.
pub const MAX_DEATHS_A_PROCESS: usize = MAX_OBJECTS_A_PROCESS;

/// File descriptors in one transaction: as many as Android's native handles have at most.
pub const MAX_FILES_A_TRANSACTION: usize = 1024;

/// Items in a thread's own queue, above which its transactions fail: a thread that writes but never
/// reads. A transaction to a well-behaved thread finds a handful.
pub const MAX_THREAD_WORK: usize = 1 << 16;

/// What commands may cost before other clients have a turn: 256 of them, 32 transactions, or
/// parcels of 64 KiB. libbinder's batches end within one slice.
pub const SLICE_COST: u64 = 64 << 10;

/// What a command costs, in bytes of a parcel.
pub const COMMAND_COST: u64 = 256;

/// What a transaction costs besides its parcel: a buffer, its queue, a wake-up.
pub const TRANSACTION_COST: u64 = 2048;

/// What an object in a parcel costs: it is translated.
pub const OBJECT_COST: u64 = 256;

/// Command bytes that are fetched at a time; an ordinary write fits in one.
pub const COMMAND_CHUNK: usize = 4096;

/// Room in a read buffer that must be left before an item is taken: the largest return.
pub const ROOM_FOR_ONE: u64 = 4 + size_of::<BinderTransactionDataSecctx>() as u64;

/// Bytes that one read delivers at most.
pub const MAX_READ_BYTES: u64 = 64 << 10;

/// Idle pages that are reclaimed when a receiver's owner has reached its memory quota: less than a
/// millisecond of work.
pub const RECLAIM_BATCH: u32 = 64;
