//! What can go wrong, as values.

use std::path::PathBuf;

use binder_uapi::StreamError;
use rustix::io::Errno;

/// Why a client could not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The device could not be opened.
    #[error("{path}: cannot open: {errno}")]
    Open {
        /// The device.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The device could not be mapped.
    #[error("{path}: cannot map {len} bytes: {errno}")]
    Map {
        /// The device.
        path: PathBuf,
        /// Bytes asked for.
        len: usize,
        /// Why.
        errno: Errno,
    },
    /// The device speaks another protocol.
    #[error("{path}: speaks binder protocol {found}; only 8 (64-bit structures) is known here")]
    Version {
        /// The device.
        path: PathBuf,
        /// What it said.
        found: i32,
    },
    /// A system call on the device failed.
    #[error("{doing}: {errno}")]
    Ioctl {
        /// Name of the call.
        doing: &'static str,
        /// How it failed.
        errno: Errno,
    },
    /// The driver returned a stream that does not parse.
    #[error("the driver's returns do not parse: {0}")]
    Stream(#[from] StreamError),
    /// The driver counted more bytes than it was given.
    #[error("the driver says that it moved {counted} bytes of a {given}-byte buffer")]
    Count {
        /// What it said.
        counted: u64,
        /// How many there were.
        given: usize,
    },
    /// The driver named an address outside of the mapping.
    #[error("the driver put {len} bytes at {address:#x}, which is not in the mapping")]
    OutsideMapping {
        /// Where.
        address: u64,
        /// How much.
        len: u64,
    },
    /// What was received is not what the sender and we agreed upon.
    #[error("unexpected contents: {0}")]
    Contents(&'static str),
    /// `BR_DEAD_REPLY`: the target is gone.
    #[error("the target of the call is dead (BR_DEAD_REPLY)")]
    DeadReply,
    /// `BR_FAILED_REPLY`: the call failed; the extended error tells why.
    #[error("the call failed (BR_FAILED_REPLY)")]
    FailedReply,
    /// `BR_FROZEN_REPLY`: the target is frozen.
    #[error("the target of the call is frozen (BR_FROZEN_REPLY)")]
    FrozenReply,
    /// `BR_ERROR`.
    #[error("the driver reports error {0} (BR_ERROR)")]
    Driver(i32),
    /// The other side answered with a status code instead of data.
    #[error("the target answered with status {0}")]
    Status(i32),
}

impl ClientError {
    /// The errno of a failed system call.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. } | Self::Map { errno, .. } | Self::Ioctl { errno, .. } => {
                Some(*errno)
            }
            _ => None,
        }
    }
}
