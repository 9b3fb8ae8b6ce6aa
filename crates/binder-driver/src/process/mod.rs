//! Contexts (devices), opens of them, their threads, and the quotas of users.

mod context;
mod open;
mod quota;
mod thread;
pub mod types;
