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
//! * [`shared_state`](self::shared_state): [`accounts`] of users and groups, kills in flight, and
//!   the [`process_snapshot`](self::process_snapshot) with
//!   [`rule_preferences`](self::rule_preferences), [`user_preferences`](self::user_preferences) and
//!   the [`cgroup_tree`](self::cgroup_tree);
//! * [`charge`](self::charge): the account that a process is charged to, and its size;
//! * [`kill_record`](self::kill_record), [`rate_monitor`](self::rate_monitor): decisions as they
//!   are recorded and counted;
//! * [`usage_monitor`](self::usage_monitor): actual usage, and the correction of accounts by it;
//! * [`held_memory`](self::held_memory): memory that other daemons hold for processes;
//! * [`file_search`](self::file_search): when files that processes hold open are searched;
//! * [`relief`](self::relief): memory that can be released before any process is killed;
//! * [`scan_timer`](self::scan_timer): when everything is scanned.
//!
//! Around the manager:
//! * [`reconfigure`]: applies a configuration; [`inherited_limits`](self::inherited_limits),
//!   [`origin`](self::origin): limits left by an earlier daemon;
//!   [`earlier_kills`](self::earlier_kills): its victims that still exit;
//! * [`control`]: replies to control requests.

pub mod accounts;
mod cgroup_limits;
mod cgroup_tree;
mod charge;
pub mod control;
mod default_limits;
mod earlier_kills;
mod executor;
mod file_search;
mod first_grace;
mod held_memory;
mod inherited_limits;
mod kill_plan;
mod kill_record;
pub mod manager;
mod origin;
mod process_snapshot;
mod rate_monitor;
pub mod reconfigure;
mod relief;
mod rule_preferences;
mod scan_timer;
mod shared_state;
mod system_monitor;
mod unlisted_spaces;
mod usage_monitor;
mod user_backstop;
mod user_limits;
mod user_preferences;

pub use accounts::Accounts;
pub use inherited_limits::SavedLimit;
pub use manager::{AfterExit, ChangeError, OomManager, OomManagerBuilder};
pub use reconfigure::Reconfigured;
