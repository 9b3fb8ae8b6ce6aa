//! Code shared by `headroom-binderd`, `headroom-oomd` and the command line.
//!
//! * [`privileges`]: real-time priority, locked memory, exemption from the kernel's OOM killer;
//! * [`page_out`]: drops memory that only the start needed, before the rest is locked;
//! * [`message`]: error texts without numbers;
//! * [`octal_mode`]: modes of files on command lines;
//! * [`signals`]: signals as a file descriptor;
//! * [`service_manager`]: readiness and watchdog notifications;
//! * [`trusted_path`]: files that only root and the own user can change;
//! * [`upgrade`]: replaces the program of a running daemon;
//! * [`stderr`]: log lines that do not block the daemon;
//! * [`user_database`]: users and groups by name and number.

pub mod message;
pub mod octal_mode;
pub mod page_out;
pub mod privileges;
pub mod service_manager;
pub mod signals;
pub mod stderr;
pub mod trusted_path;
pub mod upgrade;
pub mod user_database;

pub use service_manager::ServiceManager;
pub use signals::Signals;
