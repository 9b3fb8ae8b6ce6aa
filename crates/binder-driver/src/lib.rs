//! The binder driver as a sans-IO state machine.
//!
//! One [`Driver`] value holds every device: contexts, processes (one open each), threads, nodes,
//! references, transactions, buffers. A front end decodes requests, calls the driver, and acts on
//! its results; everything that the driver needs from its environment goes through the traits of
//! [`host`]. The driver never blocks, locks, makes a system call or reads a clock, so a run is a
//! deterministic sequence that a test can replay.
//!
//! The rules of the protocol are grouped by concept: `process` (contexts, opens, threads, quotas),
//! `objects` (nodes, references, handles), `transaction` (sending, translation of objects and
//! descriptors, call stacks, priorities), `buffer` (receive areas, their pages), `notifications`
//! (deaths, freezes), `write_read` (commands, work items, readers) and `debug` (logs, counters,
//! snapshots). In each of them `types` holds the data, and the other files implement [`Driver`] on
//! top of it. [`state`] serialises the driver, and verifies its invariants when it is read back.
#![forbid(unsafe_code)]

mod buffer;
mod debug;
mod driver;
mod errno;
pub mod host;
mod keys;
mod limits;
mod notifications;
mod objects;
mod process;
pub mod state;
mod transaction;
mod write_read;

pub use buffer::pages::PageSize;
pub use buffer::reclaim::PageCounts;
pub use debug::counters::CommandCounts;
pub use debug::records::{Refusal, Sent, TraceEvent};
pub use debug::snapshot;
pub use driver::Driver;
pub use errno::Errno;
pub use host::{
    Caller, ClientMemory, Fault, FileToken, Files, Freshness, Host, Identity, Mapping, Mappings,
    Piece, Policy, Priority, Scheduler, StoreError,
};
pub use keys::{ContextId, FreezeId, ProcessId};
pub use notifications::types::Freeze;
pub use owners::{Owner, Uid};
pub use process::account::{AreaMemory, OwnerMemory};
pub use process::types::{Opener, SpamDetection};
pub use transaction::priority::AwaitsTick;
pub use write_read::types::{HeldReads, Interrupt, Waiting, Wake, WriteRead};
