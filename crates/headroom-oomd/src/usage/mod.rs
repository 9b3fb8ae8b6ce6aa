//! Actual usage of accounts, measured outside the event loop: shared pages are counted once, page
//! tables and tmpfs files that are held open are included.
//!
//! [`memory_ledger::measurement`] decides when an account is measured and what follows. A thread of
//! ordinary priority measures ([`worker`]). It reads the memory [`controller`]'s charge of the
//! user's slice if that is the user's usage, and otherwise the processes, both with [`bounded`]
//! readers: a process's owner can keep its mmap lock held for any time, and a slice can have many
//! cgroups. The thread also detects changes that no account shows ([`unseen_growth`]), and searches
//! for memory files that processes hold open ([`open_files`]) when the system is short of memory.

mod bound;
mod bounded;
mod controller;
mod mapped_files;
mod measure;
mod open_files;
mod program;
mod slice;
mod unseen_growth;
mod worker;

pub(crate) use bounded::{Answer, BoundedReader, Question};
pub(crate) use measure::machine_shmem_bytes;
pub use measure::{Files, Held, Member, Request, Unlisted};
pub use open_files::Holder;
pub(crate) use unseen_growth::GROWTH_BYTES;
pub(crate) use worker::Measured;
pub use worker::UsageWorker;
