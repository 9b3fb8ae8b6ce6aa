//! Code shared by `headroom-binderd`, `headroom-oomd` and the command line.
//!
//! * [`privileges`]: real-time priority, locked memory without what only the start needed,
//!   exemption from the kernel's OOM killer;
//! * [`message`]: error texts without numbers, log lines that do not block the daemon;
//! * [`permissions`]: users and groups by name and number, modes of files on command lines;
//! * [`service_manager`]: readiness and watchdog notifications, signals as a file descriptor;
//! * [`trusted_path`]: files that only root and the own user can change.

pub mod message;
pub mod permissions;
pub mod privileges;
pub mod service_manager;
pub mod trusted_path;

pub use service_manager::{ServiceManager, Signal, Signals};
