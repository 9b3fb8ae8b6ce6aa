//! Contexts (devices), opens of them, their threads, and the accounts of owners.

pub mod account;
mod context;
mod open;
mod thread;
pub mod types;
