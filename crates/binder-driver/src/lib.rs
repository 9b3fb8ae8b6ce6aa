//! The binder driver as a sans-IO state machine.
//!
//! One [`Driver`] value holds every device: contexts, processes (one open each), threads, nodes,
//! references, transactions, buffers. A front end decodes requests, calls the driver, and acts on
//! what it returns; whatever the driver needs from the world goes through the traits of [`host`].
//! Nothing in here blocks, locks, makes a system call or reads a clock, so a run is a
//! deterministic sequence that a test can replay.
#![forbid(unsafe_code)]

mod driver;
mod errno;
pub mod host;
pub mod snapshot;

pub use driver::{ContextId, Driver, Opener, ProcessId, Wake, WriteRead};
pub use errno::Errno;
pub use host::{
    Caller, ClientMemory, Fault, Host, Identity, Mapping, Mappings, ReadPart, StoreError,
};
