//! Who may use how much memory, and who dies when a limit is broken: the rules, without any I/O.
//!
//! * [`limit`]: a hard and a soft limit that make sense together;
//! * [`count`](mod@count): what of a process's memory counts;
//! * [`account_id`]: whose an account is;
//! * [`precedence`]: the layers of a limit, and which one counts;
//! * [`group`]: users who share one account;
//! * [`cgroup`]: of which control groups a limit speaks;
//! * [`cgroup_accounts`]: what those have, and when to look again;
//! * [`account`]: the limit and reading of one account;
//! * [`process`]: what is known of a process;
//! * [`address_space`]: processes that share their memory;
//! * [`rules`]: what an administrator says of processes;
//! * [`growth`]: who grew of late;
//! * [`recent_kills`]: newborns that were killed;
//! * [`score`]: how much a process is to blame, as one number;
//! * [`family`], [`herd`]: processes that belong, and grow, together;
//! * [`verdict`]: from a snapshot of all that to who dies and why;
//! * [`machine`]: when the machine itself runs short;
//! * [`margin`]: how much must be left free for a kill to come in time;
//! * [`measurement`]: actual usage, and how it corrects the sum of processes;
//! * [`kills_in_flight`]: from a signal until the memory is back and the next process may be
//!   killed;
//! * [`kill_rate`]: how often somebody was killed of late;
//! * [`lease`]: memory that is promised before it is used;
//! * [`ledger`]: all accounts together.
//!
//! Time comes in as nanoseconds of a clock that never goes back, memory in bytes, processes as a
//! list that somebody else has read. Nothing here calls the system.
#![forbid(unsafe_code)]

pub mod account;
pub mod account_id;
pub mod address_space;
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
pub mod margin;
pub mod measurement;
pub mod precedence;
pub mod process;
pub mod recent_kills;
pub mod rules;
pub mod score;
pub mod verdict;

pub use account::{Account, Phase, Reading};
pub use account_id::{AccountId, CgroupId, GroupId, Uid};
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
pub use margin::Margin;
pub use measurement::{
    ControllerUse, Demand, Effort, Measurement, Measurements, Need, Order, Sum, SumCorrection,
    SumState, SumUpdates, UsageSource, Victims, controller_use,
};
pub use precedence::{Change, LimitLayers, Refusal, Requester, Source};
pub use process::{AddressSpaceId, Comm, KillPreference, Process, ProcessId};
pub use rules::Rules;
pub use verdict::{Cause, Choice, Herds, NoVictim, Scope, choose};
