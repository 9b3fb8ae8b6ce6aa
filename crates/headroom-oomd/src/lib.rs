//! The OOM daemon: watches the memory of limited users and kills one process of a user that breaks
//! its limit.
//!
//! The rules are in `memory-ledger`, what is read comes from `memory-watch`, what is done is in
//! `reclaim`. Here they are put together:
//!
//! * [`oom`]: from a broken limit, or a system that runs short, to memory that is back;
//! * [`leases`]: memory that is promised before it is used;
//! * [`records`], [`history`]: why who died, in memory and on disk, shared out by [`partition`];
//!   [`counters`]: how often;
//! * [`requests`]: what the control socket is asked, and who may ask it; [`account_ref`]: accounts
//!   in its words;
//! * [`config`]: the configuration's files;
//! * [`reload`]: the same once more, while running;
//! * [`tell`]: hooks, warnings, the journal, metrics;
//! * [`shrink`]: what others can do without goes back first;
//! * [`usage`]: actual usage, measured off the event loop;
//! * [`watching`]: the BPF notifier, or the fallback;
//! * [`self_test`]: kills of own children at start, so that a kill's code is resident;
//! * [`watchdog`]: notices when the event loop is stuck;
//! * [`daemon`]: the event loop around all that;
//! * [`log`], [`clock`]: small tools.

pub mod account_ref;
pub mod clock;
pub mod config;
pub mod counters;
pub mod daemon;
pub mod history;
pub mod leases;
pub mod log;
pub mod notifications;
pub mod oom;
pub mod partition;
pub mod records;
pub mod reload;
pub mod requests;
pub mod self_test;
pub mod shrink;
pub mod usage;
pub mod watchdog;
pub mod watching;
