//! Diagnostics of the driver for operators: logs, counters, traces, snapshots.

pub mod counters;
mod logs;
pub mod records;
pub mod snapshot;
mod statistics;
mod trace;
mod transaction_log;
