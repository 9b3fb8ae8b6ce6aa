//! The OOM daemon: monitors the memory of limited users and kills one process of a user that
//! exceeds its limit.
//!
//! The rules are in `memory-ledger`, the readings come from `memory-watch`, and `reclaim` carries
//! out kills. This crate combines them:
//!
//! * [`oom`]: from an exceeded limit, or system memory pressure, to reclaimed memory;
//! * [`leases`]: memory that is reserved before it is used;
//! * [`records`], [`history`]: decisions with their reasons, in memory and on disk;
//! * [`requests`]: requests on the control socket and their authorization;
//! * [`config`]: the configuration files;
//! * [`reload`]: reload of the configuration;
//! * [`notifications`]: log entries, hooks and warnings;
//! * [`shrink`]: releases memory before a kill;
//! * [`usage`]: actual usage, measured off the event loop;
//! * [`limits_file`]: limits that a daemon with other BPF programs takes over;
//! * [`self_test`]: kills child processes at start, so that the code of a kill is resident;
//! * [`victim_details`]: what tells a victim from others with its name;
//! * [`watchdog`]: detects a stuck event loop;
//! * [`daemon`]: the event loop;
//! * [`log`], [`clock`]: utilities.

pub mod clock;
pub mod config;
pub mod daemon;
pub mod history;
pub mod leases;
pub mod limits_file;
pub mod log;
pub mod names;
pub mod notifications;
pub mod oom;
pub mod records;
pub mod reload;
pub mod requests;
pub mod self_test;
pub mod shrink;
pub mod usage;
pub mod victim_details;
pub mod watchdog;
