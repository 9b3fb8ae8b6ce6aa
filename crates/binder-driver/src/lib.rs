//! The binder driver as a sans-IO state machine.
//!
//! One [`Driver`] value holds every device: contexts, processes (one open each), threads, nodes,
//! references, transactions, buffers. A front end decodes requests, calls the driver, and acts on
//! what it returns; whatever the driver needs from the world goes through the traits of [`host`].
//! Nothing in here blocks, locks, makes a system call or reads a clock, so a run is a
//! deterministic sequence that a test can replay.
//!
//! The rules of the protocol live in the file of their noun: `context`, `process`, `thread`,
//! `node`, `reference` and `handles`, `call` (sending), `objects`, `scatter_gather`
//! and `descriptors` (translation), `transaction` (call stacks), `priority`, `buffer` and `allocator`,
//! `pages` and `reclaim`, `death`, `freeze`
//! and `freeze_notification`, `work` (what a
//! reader can be handed), `commands` and `read` (the two halves of `BINDER_WRITE_READ`), `wake`,
//! `quota`, `trace`, `statistics`, `transaction_log` and `logs` (the texts of `binder_logs`).
#![forbid(unsafe_code)]

#[path = "buffer/allocator.rs"]
mod allocator;
#[path = "buffer/lifecycle.rs"]
mod buffer;
#[path = "transaction/send.rs"]
mod call;
#[path = "debug/invariants.rs"]
mod check;
#[path = "write_read/commands.rs"]
mod commands;
#[path = "process/context.rs"]
mod context;
#[path = "notifications/death.rs"]
mod death;
#[path = "transaction/descriptors.rs"]
mod descriptors;
mod driver;
mod errno;
#[path = "notifications/freeze.rs"]
mod freeze;
#[path = "notifications/freeze_notification.rs"]
mod freeze_notification;
#[path = "objects/handles.rs"]
mod handles;
pub mod host;
mod keys;
mod limits;
#[path = "debug/logs/mod.rs"]
mod logs;
#[path = "objects/node_counts.rs"]
mod node;
#[path = "transaction/translate.rs"]
mod objects;
#[path = "buffer/pages.rs"]
mod pages;
#[path = "transaction/priority.rs"]
mod priority;
#[path = "process/open.rs"]
mod process;
#[path = "write_read/queue.rs"]
mod queue;
#[path = "process/quota.rs"]
mod quota;
#[path = "write_read/read.rs"]
mod read;
#[path = "buffer/reclaim.rs"]
mod reclaim;
#[path = "objects/reference_counts.rs"]
mod reference;
#[path = "transaction/scatter_gather.rs"]
mod scatter_gather;
#[path = "debug/snapshot.rs"]
pub mod snapshot;
#[path = "debug/statistics.rs"]
mod statistics;
#[path = "process/thread.rs"]
mod thread;
#[path = "debug/trace.rs"]
mod trace;
#[path = "transaction/stack.rs"]
mod transaction;
#[path = "debug/transaction_log.rs"]
mod transaction_log;
#[path = "write_read/wake.rs"]
mod wake;
#[path = "write_read/work.rs"]
mod work;

pub use driver::{Driver, Opener, Wake, WriteRead};
pub use errno::Errno;
pub use freeze::Freeze;
pub use host::{
    Caller, ClientMemory, Fault, FileToken, Files, Host, Identity, Mapping, Mappings, Piece,
    Scheduler, StoreError,
};
pub use keys::{ContextId, FreezeId, ProcessId};
pub use priority::{Policy, Priority};
pub use reclaim::PageCounts;
pub use statistics::CommandCounts;
pub use trace::{Sent, TraceEvent};
