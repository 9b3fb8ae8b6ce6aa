//! Actual usage of accounts, measured off the event loop: shared pages once, page tables and files
//! of memory that are held open included.
//!
//! When it is measured and what follows is decided by [`memory_ledger::measurement`]. A thread of
//! ordinary priority measures ([`worker`]): it reads processes through [`bounded`] readers, for the
//! map lock of a process can be held for as long as its owner likes, and looks for growth that no
//! account shows.

mod bounded;
mod measure;
mod worker;

pub use measure::{Files, Member, Request};
pub use worker::UsageWorker;
