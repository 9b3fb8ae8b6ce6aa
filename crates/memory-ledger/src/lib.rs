//! Memory limits and victim selection: the rules, without any I/O.
//!
//! * [`limit`]: a consistent pair of a hard and a soft limit;
//! * [`count`](mod@count): the kinds of a process's memory that count;
//! * [`account_id`]: ids of accounts of users, groups and cgroups;
//! * [`precedence`]: the sources of a limit, and which one is in force;
//! * [`group`]: users that share one account;
//! * [`cgroup`]: patterns of control groups that a limit applies to;
//! * [`cgroup_accounts`]: usage of those, and when to read it again;
//! * [`account`]: the limit and reading of one account;
//! * [`process`]: a process in a snapshot;
//! * [`address_space`]: processes that share their memory;
//! * [`rules`]: kill preferences that an administrator configures;
//! * [`growth`]: recent growth of processes;
//! * [`recent_kills`]: newborns that were killed;
//! * [`score`]: the badness of a process, as one number;
//! * [`family`], [`herd`]: related processes, and those that grow together;
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

pub mod account;
pub mod account_id;
pub mod address_space;
pub mod backstop;
pub mod bytes;
pub mod cgroup;
pub mod cgroup_accounts;
pub mod count;
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
pub mod recent_kills;
pub mod rules;
pub mod score;
pub mod verdict;

pub use account::{Account, Phase, Reading};
pub use account_id::{AccountId, CgroupId, GroupId, Uid, is_ordinary};
pub use cgroup::{CgroupLimit, CgroupPattern};
pub use cgroup_accounts::{CgroupAccount, CgroupAccounts};
pub use count::Count;
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
pub use limit::{Limit, LimitError};
pub use machine::{Floors, Level, Machine, MachineReading, Pressure, PressureTrigger, Thresholds};
pub use measurement::{
    ControllerUse, Demand, Effort, Measurement, Measurements, Need, Order, Sum, SumCorrection,
    SumState, SumUpdates, UsageSource, Victims, controller_use,
};
pub use precedence::{Change, Grace, LimitLayers, Refusal, Requester, Source};
pub use process::{AddressSpaceId, Comm, KillPreference, Process, ProcessId};
pub use rules::Rules;
pub use verdict::{Cause, Choice, Herds, NoVictim, Scope, choose};
