//! What Headroom does to a victim: kill it and get its memory back quickly.
//!
//! * [`victim`]: a process pinned by its identity, and the signal;
//! * [`mrelease`]: one `process_mrelease` call and what its errors mean;
//! * [`reaper`]: threads for that call, which can take hundreds of milliseconds;
//! * [`reclaim`]: from the signal until the memory is back, a step at a time, for an event loop.
//!
//! The memory of a victim comes back when it exits, on its own priority and CPU: measured, 4 GiB of
//! a nice-19 process beside a busy loop took 8.7 s. `process_mrelease` frees it from our own thread
//! instead, in 0.13 s, even when the victim cannot run at all. A healthy victim frees its memory as
//! fast alone, and a many-threaded one faster (141 ms against 232), so it gets that chance first.

pub mod mrelease;
pub mod reaper;
pub mod reclaim;
pub mod victim;

pub use mrelease::{Mrelease, mrelease};
pub use reaper::Reaper;
pub use reclaim::{Progress, Reclaim};
pub use victim::{Identity, KillError, OpenError, Victim};
