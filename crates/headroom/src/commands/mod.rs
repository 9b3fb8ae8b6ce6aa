//! One file per command, or per group of commands about one thing; what has several parts has a
//! folder.

pub mod binder;
pub mod completions;
pub mod config;
pub mod container;
pub mod doctor;
pub mod kill;
pub mod limit;
pub mod notify;
pub mod oom;
pub mod preload;
pub mod run;
pub mod status;
pub mod top;
pub mod up;
pub mod why;
