//! Kills processes and reclaims their memory.
//!
//! * [`victim`]: a process pinned by its identity, and the signal;
//! * [`boost`]: a higher priority for a victim that has not exited after that, and removal from a
//!   freezer;
//! * [`reaper`]: one `process_mrelease` call and what its errors mean, and threads for both;
//! * [`reclaim`]: from the signal until the memory is back, in steps, for an event loop;
//! * [`kill`]: all of that in one call, for a process, its group or its [`family`], and the result;
//! * [`holdings`]: a process's memory, and the part that is not freed;
//! * [`exiting`](mod@exiting): whether a victim runs, sleeps, or is held at its exit.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut reap = reclaim::Victim::open(4711)?.kill(&reclaim::Options::default())?;
//! let status = reap.wait()?;
//! println!("{} bytes back in {:?}", status.bytes_back, status.memory_back);
//! # Ok(())
//! # }
//! ```
//!
//! A victim frees its memory as it exits, at its own priority and on its own CPU.
//! `process_mrelease` frees it from the calling thread, even when the victim cannot run at all, if
//! it is called before the victim's last thread has detached from the memory; after that only its
//! exit frees it, and the boost speeds that up. `docs/design/reclaim.md` has the measurements,
//! and names the steps that are not worth taking.

pub mod boost;
pub mod exiting;
pub mod family;
pub mod holdings;
pub mod kill;
pub mod reaper;
pub mod reclaim;
pub mod victim;

pub use boost::Boost;
pub use exiting::{Exiting, exiting, holder_of};
pub use family::Scope;
pub use holdings::Holdings;
pub use kill::{End, Memory, Options, Reap, ReapError, Status, VictimReport};
pub use reaper::{Done, Mrelease, Reaper, check_mrelease, mrelease};
pub use reclaim::{Progress, Reclaim};
pub use victim::{Identity, KillError, OpenError, Victim};
