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
//! snapshots). Each file has the data of its concept, and implements [`Driver`] on top of it.
//! [`state`] serialises the driver, and verifies its invariants when it is read back;
//! [`slab`] keeps its objects by key.
#![forbid(unsafe_code)]

mod buffer;
mod debug;
mod driver;
pub mod host;
mod limits;
mod notifications;
mod objects;
mod process;
pub mod slab;
pub mod state;
mod transaction;
mod write_read;

pub use buffer::pages::{PageCounts, PageSize};
pub use debug::counters::CommandCounts;
pub use debug::snapshot;
pub use debug::trace::{Sent, TraceEvent};
pub use debug::transaction_log::Refusal;
pub use driver::{ContextId, Driver, FreezeId, ProcessId};
pub use host::{
    Caller, ClientMemory, Errno, Fault, FileToken, Files, Freshness, Host, Identity, Mapping,
    Mappings, Piece, Policy, Priority, Scheduler, StoreError,
};
pub use notifications::freeze::Freeze;
pub use owners::{Owner, Uid};
pub use process::account::{AreaMemory, OwnerMemory};
pub use process::{Opener, SpamDetection};
pub use transaction::priority::AwaitsTick;
pub use write_read::held::HeldReads;
pub use write_read::wake::{Interrupt, Wake};
pub use write_read::{Waiting, WriteRead};
