//! Errors of a client.

use std::path::PathBuf;

use binder_uapi::StreamError;
use rustix::io::Errno;

/// Error of a client's operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The device could not be opened.
    #[error("{path}: cannot open: {errno}")]
    Open {
        /// The device.
        path: PathBuf,
        /// Errno of the failed open.
        errno: Errno,
    },
    /// The device could not be mapped.
    #[error("{path}: cannot map {len} bytes: {errno}")]
    Map {
        /// The device.
        path: PathBuf,
        /// Requested size, bytes.
        len: usize,
        /// Errno of the failed mmap.
        errno: Errno,
    },
    /// The device implements another protocol version.
    #[error("{path}: speaks binder protocol {found}; only 8 (64-bit structures) is known here")]
    Version {
        /// The device.
        path: PathBuf,
        /// The version that it returned.
        found: i32,
    },
    /// A system call on the device failed.
    #[error("{doing}: {errno}")]
    Ioctl {
        /// Name of the call.
        doing: &'static str,
        /// Errno of the failed call.
        errno: Errno,
    },
    /// The driver returned a stream that does not parse.
    #[error("the driver's returns do not parse: {0}")]
    Stream(#[from] StreamError),
    /// The driver reported more bytes than the buffer has.
    #[error("the driver reports that it moved {counted} bytes of a {given}-byte buffer")]
    Count {
        /// Bytes reported by the driver.
        counted: u64,
        /// Bytes in the buffer.
        given: usize,
    },
    /// The driver returned an address outside of the mapping.
    #[error("the driver put {len} bytes at {address:#x}, which is not in the mapping")]
    OutsideMapping {
        /// Address of the range.
        address: u64,
        /// Length of the range, bytes.
        len: u64,
    },
    /// The contents received are not those that the protocol of sender and receiver requires.
    #[error("unexpected contents: {0}")]
    Contents(&'static str),
    /// `BR_DEAD_REPLY`: the target is gone.
    #[error("the target of the call is dead (BR_DEAD_REPLY)")]
    DeadReply,
    /// `BR_FAILED_REPLY`: the call failed; the extended error has the reason.
    #[error("the call failed (BR_FAILED_REPLY)")]
    FailedReply,
    /// `BR_FROZEN_REPLY`: the target is frozen.
    #[error("the target of the call is frozen (BR_FROZEN_REPLY)")]
    FrozenReply,
    /// `BR_ERROR`.
    #[error("the driver reports error {0} (BR_ERROR)")]
    Driver(i32),
    /// The target replied with a status code instead of data.
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
