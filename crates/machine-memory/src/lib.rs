//! The kernel's reports on the machine's memory: `/proc/meminfo`, pressure stall information, zram.
//!
//! Readers take the root of their file tree as a parameter, return structs of `Option<T>` where the
//! kernel may leave a value out, and errors that contain the path. Both daemons use them.

pub mod error;
pub mod machine;
pub mod meminfo;
pub mod pressure;
pub mod size;
pub mod text;

pub use error::ReadError;
pub use machine::MachineReader;
pub use meminfo::Meminfo;
pub use pressure::{Pressure, PressureTrigger};
