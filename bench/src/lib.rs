//! The frame that all benchmarks share.
//!
//! A benchmark compares *subjects* in one run: they alternate in short blocks (A B C A B C ...), so
//! that other load on the machine affects all of them alike. Medians are compared, never single
//! runs; a result is always reported beside something well known, such as a socket.
//!
//! * [`devices`]: what is measured: a device of any driver, or a private daemon's; [`rings`];
//! * [`measure`]: subjects that alternate, percentiles; [`statistics`]: medians, their intervals;
//! * [`results`]: one JSON object a line (stdout), a line of text a row (stderr); [`report`]: rows
//!   that several benchmarks have;
//! * [`affinity`]: cores and scheduling classes; [`machine`]: CPU clocks and available memory;
//! * [`peer`]: the other end, the same program in a process of its own; [`server`] and
//!   [`sockets`]: what it serves; [`callers`]: processes that time their own calls;
//! * [`pingpong`], [`throughput`], [`mix`], [`passing`], [`stash`], [`contention`]: the calls;
//!   [`shrink`], [`order3`] (with [`tracing`]): what happens meanwhile;
//! * [`stressor`]: a process that allocates memory and keeps writing to it;
//! * [`oomd`]: a private headroom-oomd; [`child`]: processes that another process kills, and the
//!   words that they share with it; [`memory`]: private memory of small or huge pages;
//! * [`overshoot`]: processes that grow over their user's limit; [`requesters`]: those that request
//!   far more;
//! * [`fault_work`]: operations that change a process's accounts all the time; [`watchers`]: the
//!   notifier meanwhile;
//! * [`victims`]: processes that are killed with much memory, in a [`control_group`] or not;
//! * [`sleepers`], [`walk`]: very many processes, and earlyoom's scan of them.

pub mod affinity;
pub mod callers;
pub mod child;
pub mod contention;
pub mod control_group;
pub mod devices;
pub mod fault_work;
pub mod machine;
pub mod measure;
pub mod memory;
pub mod mix;
pub mod oomd;
pub mod order3;
pub mod overshoot;
pub mod passing;
pub mod peer;
pub mod pingpong;
pub mod report;
pub mod requesters;
pub mod results;
pub mod rings;
pub mod server;
pub mod shrink;
pub mod sleepers;
pub mod sockets;
pub mod stash;
pub mod statistics;
pub mod stressor;
pub mod throughput;
pub mod tracing;
pub mod victims;
pub mod walk;
pub mod watchers;
