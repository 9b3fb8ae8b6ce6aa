//! The frame that all benchmarks share.
//!
//! A benchmark compares *subjects* in one run: they take turns in short blocks (A B C A B C ...), so
//! that whatever else the machine does hits all of them alike. Medians are compared, never single
//! runs; a result is always reported beside something that everybody knows, such as a socket.
//!
//! * [`measure`]: subjects, interleaving, medians and percentiles;
//! * [`report`]: a table for people (stderr), one JSON object a line for machines (stdout);
//! * [`affinity`]: one core, high priority;
//! * [`peer`]: the other end, the same program in a process of its own;
//! * [`pingpong`]: round trips over a pipe, a socket, a futex, a binder device.

pub mod affinity;
pub mod measure;
pub mod peer;
pub mod pingpong;
pub mod report;
