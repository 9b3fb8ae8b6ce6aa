//! Diagnostics of the driver for operators: logs, counters, traces, snapshots.

pub mod counters;
mod logs;
pub mod snapshot;
pub mod trace;
pub mod transaction_log;
