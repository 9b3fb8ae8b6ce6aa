//! Interfaces of Linux that neither `rustix` nor `libc` wraps, and that more than one crate needs.
//!
//! * [`mountinfo`]: parses `/proc/<pid>/mountinfo`;
//! * [`sched`]: scheduling policy and priority of a thread, by `sched_setattr(2)`.

pub mod mountinfo;
pub mod sched;
