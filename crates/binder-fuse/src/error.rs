//! Errors that prevent the server from serving a device.

use std::io;
use std::path::PathBuf;

use headroom_linux::fuse_device;
use rustix::io::Errno;

/// An error of the server. Clients never see one: they get errnos.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/fuse` cannot be opened.
    #[error("{}: {errno}; {}", fuse_device::PATH, fuse_device::remedy(*errno))]
    FuseDevice {
        /// Errno of the failed open.
        errno: Errno,
    },
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
    /// The program that should serve a [`Bus`](crate::Bus) cannot be started.
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
    /// The process of a [`Bus`](crate::Bus) could not serve.
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
