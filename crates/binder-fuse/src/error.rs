//! What can keep the device from being served.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// An error of the server. Clients never see one: they get errnos.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `/dev/fuse` cannot be opened.
    #[error("/dev/fuse: {errno}; load the fuse module, or give the container access to the device")]
    FuseDevice {
        /// Why.
        errno: Errno,
    },
    /// The mount point cannot be used.
    #[error("{path}: {doing}: {errno}")]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        errno: Errno,
    },
    /// A folder that must not be hidden by a mount.
    #[error("{path}: {reason}; choose an empty folder, or one that does not exist")]
    MountFolder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Somebody serves this mount point already.
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
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The kernel's first request was not INIT.
    #[error("the kernel did not start the FUSE session: {0}")]
    Handshake(String),
    /// A device name that no file could have, or one that is taken.
    #[error("device name {name:?}: {reason}")]
    DeviceName {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Passthrough was asked for and cannot be had.
    #[error("mapping by passthrough is not possible here: {0}; use auto or notify-store")]
    NoPassthrough(String),
    /// There is no root here, and no way without.
    #[error(
        "only root can mount here, because user namespaces are not to be had: {0}; `headroom \
         doctor` tells more"
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
        /// Why it cannot be started.
        error: io::Error,
    },
    /// The process of a [`Bus`](crate::Bus) could not serve.
    #[error("the server did not come up: {0}")]
    Server(String),
    /// A system call that should not fail did.
    #[error("{doing}: {error}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        error: io::Error,
    },
}

impl Error {
    /// For `map_err`: names what was being done.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Io { doing, error: error.into() }
    }
}
