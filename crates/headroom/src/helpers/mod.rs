//! Code that several commands share.

pub mod client;
pub mod clock;
pub mod decision;
pub mod elf;
pub mod exit_code;
pub mod kernel_limits;
pub mod oom_daemons;
pub mod oomd_config;
pub mod output;
pub mod preload;
pub mod programs;
pub mod signals;
pub mod size;
pub mod starting;
pub mod status_line;
pub mod upgrade;
pub mod user;
pub mod visibility;
