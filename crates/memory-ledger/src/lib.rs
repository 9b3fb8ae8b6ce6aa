//! Who may use how much memory, and who dies when a limit is broken: the rules, without any I/O.
//!
//! * [`limit`]: a hard and a soft limit that make sense together;
//! * [`authority`]: whose word about a user's limit counts;
//! * [`account`]: what a user has, and its victim on the way out;
//! * [`process`]: what is known of a process;
//! * [`verdict`]: from a snapshot of all that to who dies and why;
//! * [`ledger`]: all accounts together.
//!
//! Time comes in as nanoseconds of a clock that never goes back, memory in bytes, processes as a
//! list that somebody else has read. Nothing here calls the system.
#![forbid(unsafe_code)]

pub mod account;
pub mod authority;
pub mod ledger;
pub mod limit;
pub mod process;
pub mod verdict;

pub use account::{Account, InFlight, Phase, Reading, Settled};
pub use authority::{Asker, Change, Refusal, Source};
pub use ledger::Ledger;
pub use limit::{Limit, LimitError};
pub use process::{Comm, Process, ProcessId};
pub use verdict::{Choice, NoVictim, Snapshot, Verdict, verdict};
