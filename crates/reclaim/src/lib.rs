//! What Headroom does to a victim: kill it and get its memory back quickly.
//!
//! * [`victim`]: a process pinned by its [`identity`], and the signal;
//! * [`mrelease`]: one `process_mrelease` call and what its errors mean;
//! * [`boost`]: the victim's threads run before others, on any CPU, and out of a freezer;
//! * [`reaper`]: threads for both;
//! * [`reclaim`]: from the signal until the memory is back, a step at a time, for an event loop that has
//!   a reaper already;
//! * [`kill`]: all of that in one call, for a process, its group or its [`family`]; [`end`]: what has
//!   become of them; [`holdings`]: what they had, and what does not come back.
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
//! The memory of a victim comes back when it exits, on its own priority and CPU: 4 GiB of a nice-19
//! process beside a busy loop took 8.7 s. `process_mrelease` frees it from our own thread instead, even
//! when the victim cannot run at all, if it gets there before the victim lets go of its memory; after
//! that only the victim's own exit can free it, and the boost makes that fast.

pub mod boost;
mod cgroup;
pub mod end;
pub mod family;
pub mod holdings;
pub mod identity;
pub mod kill;
pub mod mrelease;
pub mod reaper;
pub mod reclaim;
mod schedule;
pub mod victim;

pub use boost::Boost;
pub use end::{End, ReapError, VictimReport};
pub use family::Scope;
pub use holdings::Holdings;
pub use identity::Identity;
pub use kill::{Options, Reap, Status};
pub use mrelease::{Mrelease, mrelease};
pub use reaper::{Done, Reaper};
pub use reclaim::{Help, Progress, Reclaim};
pub use victim::{KillError, OpenError, Victim};
