//! The binder device in user space: a FUSE filesystem whose files behave like `/dev/binder`.
//!
//! Unmodified clients `open`, `mmap`, `ioctl` and `poll` a file of this filesystem; a [`Server`]
//! decodes the requests, passes them to a [`binder_driver::Driver`], and executes its decisions.
//!
//! * [`wire`]: the FUSE protocol as plain data, no I/O;
//! * `channel`, `mount`, `helper_mount`: `/dev/fuse` and the mount over it, by root or by anybody;
//! * `tree`: names, owners and modes, node ids;
//! * `mapping`: how receive buffers reach a client's mapping (passthrough, notify-store);
//! * `host`: what the driver core needs from the world, for real clients;
//! * `files`: how file descriptors get from client to client;
//! * `page_server`: why a client cannot make us wait for ourselves; * `client_access`,
//!   `loop_threads`, `lateness`: why a client cannot make us wait for its memory ([`serve`]);
//! * `guardian`: why a killed server leaves no client hanging;
//! * [`server`](Server): the event loop;
//! * [`Bus`]: all of that in a child process, for tests.
//!
//! ```no_run
//! use binder_fuse::{Config, Event, Server};
//!
//! let mut server = Server::new(&Config::new("/dev/binderfs"))?;
//! // Serves until it is unmounted; add a signalfd or a socket with `add_external` to have a say.
//! while server.next_event()? != Event::Unmounted {}
//! # Ok::<(), binder_fuse::Error>(())
//! ```

mod bus;
mod calls;
mod channel;
mod client_access;
mod client_memory;
mod error;
mod files;
mod fixed;
#[doc(hidden)]
pub mod fuzzing;
mod guardian;
mod helper_mount;
mod host;
mod lateness;
mod lookup_budget;
mod loop_threads;
mod mapping;
mod maps;
mod mount;
mod page_server;
mod pid_view;
mod priority;
mod server;
mod sync;
mod task_watch;
mod tree;
mod user_view;
mod warning_limits;
pub mod wire;

pub use bus::{Builder, Bus};
pub use error::Error;
pub use loop_threads::serve;
pub use mapping::{MappingChoice, MappingKind};
pub use server::{
    Config, DeviceOwner, Event, Server, TraceEnd, TraceOutcome, TracePart, TraceRecord,
};
