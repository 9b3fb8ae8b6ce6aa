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

mod allocator;
mod buffer;
mod call;
mod check;
mod commands;
mod context;
mod death;
mod descriptors;
mod driver;
mod errno;
mod freeze;
mod freeze_notification;
mod handles;
pub mod host;
mod keys;
mod limits;
mod logs;
mod node;
mod objects;
mod pages;
mod priority;
mod process;
mod queue;
mod quota;
mod read;
mod reclaim;
mod reference;
mod scatter_gather;
pub mod snapshot;
mod statistics;
mod thread;
mod trace;
mod transaction;
mod transaction_log;
mod wake;
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
