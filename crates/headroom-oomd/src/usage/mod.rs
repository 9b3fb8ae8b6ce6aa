//! Actual usage of accounts, measured off the event loop: shared pages once, page tables and files
//! of memory that are held open included.
//!
//! When it is measured and what follows is decided by [`memory_ledger::measurement`]. A thread of
//! ordinary priority measures ([`worker`]). It takes the memory [`controller`]'s charge of the
//! user's slice where that is the user's usage, and otherwise reads processes; both through
//! [`bounded`] readers, for the map lock of a process can be held for as long as its owner likes,
//! and a slice can have many cgroups. It also looks for growth that no account shows.

mod bounded;
mod controller;
mod measure;
mod worker;

pub use measure::{Files, Member, Request};
pub use worker::UsageWorker;
