//! The OOM manager: from an exceeded limit, or system memory pressure, to reclaimed memory.
//!
//! Detectors decide:
//! * [`user_limits`](self::user_limits): limits of users and groups;
//! * [`cgroup_limits`](self::cgroup_limits): limits of cgroups and login sessions;
//! * [`system_monitor`](self::system_monitor): the system as a whole;
//! * [`default_limits`](self::default_limits): ordinary users without a limit of their own.
//!
//! Each returns a [`KillPlan`](self::kill_plan) (the last one: changes of limits), which the
//! [`executor`](self::executor) carries out: only the executor sends signals and reclaims memory.
//! The state machine of kills in flight is [`memory_ledger::kills_in_flight`]. [`manager`]
//! coordinates them.
//!
//! State that the detectors read and the executor changes:
//! * [`shared_state`](self::shared_state): [`accounts`] of users and groups, kills in flight, and a
//!   snapshot of the processes with their [`preferences`](self::preferences);
//! * [`usage_monitor`](self::usage_monitor): actual usage, and the correction of accounts by it;
//! * [`held_memory`](self::held_memory): memory that other daemons hold for processes;
//! * [`scan_timer`](self::scan_timer): when everything is scanned.
//!
//! Around the manager:
//! * [`reconfigure`]: applies a configuration; [`earlier_daemon`](self::earlier_daemon): what
//!   another one has left;
//! * [`control`]: replies to control requests.

pub mod accounts;
mod cgroup_limits;
pub mod control;
mod default_limits;
mod earlier_daemon;
mod executor;
mod held_memory;
mod kill_plan;
pub mod manager;
mod preferences;
pub mod reconfigure;
mod scan_timer;
mod shared_state;
mod system_monitor;
mod usage_monitor;
mod user_backstop;
mod user_limits;

pub use accounts::Accounts;
pub use earlier_daemon::SavedLimit;
pub use manager::{AfterExit, ChangeError, OomManager, OomManagerBuilder};
