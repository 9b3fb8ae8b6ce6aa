//! One file per command; a command with several parts has a folder.

pub mod binder;
pub mod completions;
pub mod config;
pub mod container;
pub mod doctor;
pub mod explain;
pub mod kill;
pub mod limit;
pub mod metrics;
pub mod notify;
pub mod oom;
pub mod reserve;
pub mod run;
pub mod run_oom_killer;
pub mod status;
pub mod top;
pub mod up;
pub mod why;
