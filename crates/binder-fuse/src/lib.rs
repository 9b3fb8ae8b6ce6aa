//! The binder device in user space: a FUSE filesystem whose files behave like `/dev/binder`.
//!
//! Unmodified clients `open`, `mmap`, `ioctl` and `poll` a file of this filesystem; a [`Server`]
//! decodes the requests, passes them to a [`binder_driver::Driver`], and executes its decisions.
//!
//! * [`wire`]: the FUSE protocol as plain data, no I/O;
//! * `channel`, `mount`, `helper_mount`: `/dev/fuse` and the mount over it, privileged or not;
//! * `tree`: names, owners and modes, node ids;
//! * `mapping`: how receive buffers reach a client's mapping (passthrough, notify-store);
//! * `host`: the driver core's host for real clients;
//! * `files`: how file descriptors get from client to client;
//! * `page_server`: prevents a client from making the event loop wait for itself;
//! * `client_access`, `loop_threads`, `access_limits`, `memory_touch`: prevent a client from
//!   blocking the event loop with its memory ([`serve`]);
//! * `placement`: runs threads that wake each other on one CPU;
//! * `guardian`: ends the connection of a killed server, so that no client hangs;
//! * [`server`](Server): the event loop;
//! * `state`: what a later version of the program needs to continue serving ([`ServerState`]);
//! * [`Bus`]: all of that in a child process, for tests.
//!
//! ```no_run
//! use binder_fuse::{Config, Event, Server};
//!
//! let mut server = Server::new(&Config::new("/dev/binderfs"))?;
//! // Serves until it is unmounted; `add_external` watches a signalfd or a socket, too.
//! while server.next_event()? != Event::Unmounted {}
//! # Ok::<(), binder_fuse::Error>(())
//! ```

mod access_limits;
mod address_space;
mod announcement;
mod atomics;
mod bus;
mod call_mix;
mod calls;
mod channel;
mod client_access;
mod client_memory;
mod coarse_clock;
mod doorbell_memory;
mod error;
mod event_watch;
mod files;
mod fixed;
mod futex;
#[doc(hidden)]
pub mod fuzzing;
mod guardian;
mod helper_mount;
mod host;
mod interrupt_timer;
mod lookup_budget;
#[cfg(test)]
mod loom_tests;
mod loop_threads;
mod mapping;
mod maps;
mod memory_touch;
mod mount;
mod nonblock;
mod owner_budgets;
mod page_server;
mod pid_view;
mod place;
mod placement;
mod priority;
mod rings;
mod server;
mod shared_mapping;
mod sleeping_call;
mod state;
mod sync;
mod task_watch;
mod transfer_slot;
mod tree;
mod user_view;
mod warning_limits;
pub mod wire;

pub use bus::{Builder, Bus};
pub use error::Error;
pub use loop_threads::serve;
pub use mapping::{MappingChoice, MappingKind};
pub use mount::{FSTYPE, MountNamespace};
pub use server::{
    BufferHolder, Config, DeviceOwner, Event, HeldMemory, Obstacle, PausedServer, RingPolicy,
    Server, TraceEnd, TraceOutcome, TracePart, TraceRecord,
};
pub use state::{ServerState, ServerStateFormat1, VerifiedState};
