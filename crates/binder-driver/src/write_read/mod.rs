//! `BINDER_WRITE_READ`: commands in, work items out, parked readers and wake-ups.

mod commands;
pub mod deliver;
pub mod held;
pub mod queue;
mod read;
pub mod types;
mod wake;
