//! Memory limits and victim selection: the rules, without any I/O.
//!
//! * [`limit`]: a consistent pair of a hard and a soft limit, and the kinds of memory that count;
//! * [`account`]: the account of a user, a group or a cgroup: its id, limit and reading;
//! * [`precedence`]: the sources of a limit, and which one is in force;
//! * [`group`]: users that share one account;
//! * [`cgroup`]: patterns of control groups that a limit applies to, usage of those, and when to
//!   read it again;
//! * [`process`]: a process in a snapshot, and its badness as one number;
//! * [`rules`]: kill preferences that an administrator configures;
//! * [`growth`]: recent growth of processes, and newborns that were killed;
//! * [`family`], [`herd`]: processes that are related or share their memory, and those that grow
//!   together;
//! * [`verdict`]: from a snapshot of all that to a victim and the cause;
//! * [`machine`]: memory pressure of the whole machine;
//! * [`measurement`]: actual usage, and how it corrects the sum of processes;
//! * [`kills_in_flight`]: from a signal until the memory is back and the next process may be
//!   killed;
//! * [`kill_rate`]: rate of recent kills;
//! * [`lease`]: memory that is reserved before it is used;
//! * [`ledger`]: all accounts together.
//!
//! Time is passed in as nanoseconds of a monotonic clock, memory in bytes, processes as a list that
//! the caller has read. This crate makes no system calls.
#![forbid(unsafe_code)]

/// Nanoseconds in a millisecond.
pub const NS_PER_MS: u64 = 1_000_000;
const NS_PER_SECOND: u128 = 1_000_000_000;

pub mod account;
pub mod cgroup;
pub mod family;
pub mod group;
pub mod growth;
pub mod herd;
pub mod kill_rate;
pub mod kills_in_flight;
pub mod lease;
pub mod ledger;
pub mod limit;
pub mod machine;
pub mod measurement;
pub mod precedence;
pub mod process;
pub mod rules;
pub mod verdict;

pub use account::{Account, AccountId, CgroupId, GroupId, Phase, Reading, Uid, is_ordinary};
pub use cgroup::{CgroupAccount, CgroupAccounts, CgroupLimit, CgroupPattern};
pub use group::{Group, Groups};
pub use growth::Growth;
pub use herd::{Bombs, Herd};
pub use kill_rate::{KillRate, RateLimit, Sake};
pub use kills_in_flight::{
    Action, ChargedAccount, InFlightKill, KillToken, KillsInFlight, Latch, LatchAction, NewKill,
    Sender, Settled, Signal,
};
pub use lease::{Book, ClientId, Decision, Lease, Standing};
pub use ledger::Ledger;
pub use limit::{Backstop, Count, Limit, LimitError};
pub use machine::{Floors, Level, Machine, MachineReading, Pressure, PressureTrigger, Thresholds};
pub use measurement::{
    ControllerUse, Demand, Effort, Measurement, Measurements, Need, Order, Sum, SumCorrection,
    SumState, SumUpdates, UsageSource, Victims, controller_use,
};
pub use precedence::{Change, Grace, LimitLayers, Refusal, Requester, Source};
pub use process::{AddressSpaceId, Comm, KillPreference, Process, ProcessId};
pub use rules::Rules;
pub use verdict::{Cause, Choice, Herds, NoVictim, Scope, choose};
