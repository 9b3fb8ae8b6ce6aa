//! The binder device in user space: a FUSE filesystem whose files behave like `/dev/binder`.
//!
//! Unmodified clients `open`, `mmap`, `ioctl` and `poll` a file of this filesystem; a [`Server`]
//! decodes the requests, passes them to a [`binder_driver::Driver`], and executes its decisions.
//!
//! * [`wire`]: the FUSE protocol as plain data, no I/O;
//! * `channel`, `mount`: `/dev/fuse` and the mount over it, privileged or not;
//! * `tree`: names, owners and modes, node ids;
//! * `mapping`: how receive buffers reach a client's mapping (passthrough, notify-store);
//! * `host`: the driver core's host for real clients;
//! * `files`: how file descriptors get from client to client;
//! * `page_server`: prevents a client from making the event loop wait for itself;
//! * `client_access`, `access_limits`: prevent a client from blocking the event loop with its
//!   memory ([`serve`]);
//! * `placement`: runs threads that wake each other on one CPU;
//! * `guardian`: ends the connection of a killed server, so that no client hangs;
//! * [`server`](Server): the event loop, and what a later version of the program needs to continue
//!   serving ([`ServerState`]);
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
mod bus;
mod channel;
mod client_access;
mod client_memory;
mod files;
mod fixed;
mod futex;
#[doc(hidden)]
pub mod fuzzing;
mod guardian;
mod host;
mod identity;
mod interrupt_timer;
#[cfg(test)]
mod loom_tests;
mod mapping;
mod maps;
mod mount;
mod nonblock;
mod open;
mod owner_budgets;
mod page_server;
mod placement;
mod priority;
mod rings;
mod server;
mod sync;
mod task_watch;
mod tree;
pub mod wire;

pub use bus::{Builder, Bus};
pub use client_access::serve;
pub use mapping::{MappingChoice, MappingKind};
pub use mount::{FSTYPE, MountNamespace};
pub use server::{
    BufferHolder, Config, DeviceOwner, Event, HeldMemory, Obstacle, PausedServer, RingPolicy,
    Server, ServerState, TracePart, VerifiedState,
};

use std::io;
use std::path::PathBuf;

use headroom_linux::mountinfo::FuseError;
use rustix::io::Errno;

/// An error that prevents the server from serving a device. Clients never see one: they get errnos.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/fuse` cannot be opened.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    FuseDevice(FuseError),
    /// The mount point cannot be used.
    #[error("{path}: {doing}: {errno}")]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// Description of the failed operation.
        doing: &'static str,
        /// Errno of the failed operation.
        errno: Errno,
    },
    /// The mount point is a folder that must not be hidden by a mount.
    #[error("{path}: {reason}; choose an empty folder, or one that does not exist")]
    MountFolder {
        /// The folder.
        path: PathBuf,
        /// Reason why it must not be hidden.
        reason: &'static str,
    },
    /// Another server already serves this mount point.
    #[error(
        "{path}: a {fstype} filesystem is mounted there already; stop its owner or choose another \
         mount point"
    )]
    InUse {
        /// The mount point.
        path: PathBuf,
        /// Type of the filesystem.
        fstype: String,
    },
    /// The kernel's FUSE is too old.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or later is needed")]
    TooOld {
        /// Major version of the kernel's protocol.
        major: u32,
        /// Minor version of the kernel's protocol.
        minor: u32,
    },
    /// The first request of the kernel was not INIT.
    #[error("the kernel did not start the FUSE session: {0}")]
    Handshake(String),
    /// A device name that is not a valid file name, or is in use.
    #[error("device name {name:?}: {reason}")]
    DeviceName {
        /// The name.
        name: String,
        /// Reason why it is refused.
        reason: &'static str,
    },
    /// Passthrough was requested and is not available.
    #[error("mapping by passthrough is not possible here: {0}; use auto or notify-store")]
    NoPassthrough(String),
    /// Root privileges are missing, and an unprivileged mount is not possible either.
    #[error(
        "only root can mount here, because user namespaces are not to be had: {0}; `headroom \
         doctor` has details"
    )]
    NoNamespaces(String),
    /// The program that should serve a [`Bus`] cannot be started.
    #[error(
        "{program}: {error}; install headroom-binderd, name a program with Builder::program, or \
         call Bus::serve_if_started first in main"
    )]
    BusProgram {
        /// The program.
        program: PathBuf,
        /// Reason why it cannot be started.
        error: io::Error,
    },
    /// The process of a [`Bus`] could not serve.
    #[error("the server did not come up: {0}")]
    Server(String),
    /// A system call that should not fail did.
    #[error("{doing}: {error}")]
    Io {
        /// Description of the failed operation.
        doing: &'static str,
        /// Error of the failed operation.
        error: io::Error,
    },
}

impl Error {
    /// For `map_err`: adds a description of the failed operation.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Io { doing, error: error.into() }
    }
}

/// The atomic types of the code that the loom tests include a second time, with loom's types.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

    /// `std::cell::UnsafeCell` with the interface of loom's.
    #[derive(Debug, Default)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}
