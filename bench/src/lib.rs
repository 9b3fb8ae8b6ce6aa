//! The frame that all benchmarks share.
//!
//! A benchmark compares *subjects* in one run: they alternate in short blocks (A B C A B C ...), so
//! that other load on the machine affects all of them alike. Medians are compared, never single
//! runs; a result is always reported beside something well known, such as a socket.
//!
//! * [`devices`]: what is measured: a device of any driver, or a private daemon's;
//! * [`measure`]: subjects, interleaving, percentiles; [`statistics`]: medians and their intervals;
//!   [`histogram`]: distributions;
//! * [`results`]: one JSON object a line for machines (stdout); [`report`]: tables for people
//!   (stderr);
//! * [`affinity`]: cores and scheduling classes; [`machine`]: CPU clocks and memory;
//! * [`peer`]: the other end, the same program in a process of its own;
//! * [`pingpong`]: round trips over a pipe, a socket, a futex, a binder device;
//! * [`throughput`]: calls per second of several pairs of processes;
//! * [`mix`]: a mix of operations, replayed from a seed; [`server`]: a server with several threads;
//! * [`passing`]: calls that carry file descriptors; [`timed_caller`]: processes that time their
//!   own calls;
//! * [`stash`], [`naive`]: a new node with every transaction, and the baseline, a walk over a map;
//! * [`stressor`]: a process that allocates memory and keeps writing to it;
//! * [`oomd`]: a private headroom-oomd; [`child`]: processes that another process kills;
//! * [`overshoot`]: processes that grow over their user's limit; [`requesters`]: those
//!   that request far more;
//! * [`allocator_cost`]: what a call of tmalloc costs;
//! * [`fault_work`]: operations that change a process's accounts all the time; [`watchers`]: the
//!   programs that watch it meanwhile, with [`scan_every_event`] and [`poll_by_timer`] as
//!   baselines; [`victims`]: processes that are killed with much memory ([`victim_memory`]), in a
//!   [`control_group`] or not;
//! * [`sleepers`], [`walk`]: very many processes, and earlyoom's scan of them;
//! * [`contention`]: clients of several scheduling classes, one server;
//! * [`tracing`]: counts of kernel events; [`order3`]: large allocations; [`shrink`]: the
//!   shrinkers, driven.

pub mod affinity;
pub mod allocator_cost;
pub mod child;
pub mod contention;
pub mod control_group;
pub mod devices;
pub mod fault_work;
pub mod histogram;
pub mod machine;
pub mod measure;
pub mod mix;
pub mod naive;
pub mod oomd;
pub mod order3;
pub mod overshoot;
pub mod passing;
pub mod peer;
pub mod pingpong;
pub mod poll_by_timer;
pub mod progress;
pub mod report;
pub mod requesters;
pub mod results;
pub mod rings;
pub mod scan_every_event;
pub mod server;
pub mod shrink;
pub mod sleepers;
pub mod stash;
pub mod statistics;
pub mod stressor;
pub mod throughput;
pub mod timed_caller;
pub mod tracing;
pub mod victim_memory;
pub mod victims;
pub mod walk;
pub mod watchers;
