//! Errors of reading a file, with its path.

use std::io;
use std::path::{Path, PathBuf};

/// A file of `/proc` (or of a test's tree in its place) could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The file was read but does not have the expected form.
    #[error("{}: cannot parse {what}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// The field or line that is missing or malformed.
        what: String,
    },
}

impl ReadError {
    /// Creates the error for a file that cannot be opened or read.
    pub fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// Creates the error for a missing or malformed field.
    pub fn parse(path: &Path, what: impl Into<String>) -> Self {
        Self::Parse { path: path.to_owned(), what: what.into() }
    }

    /// The process that the file belongs to has exited (`ENOENT` or `ESRCH`).
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                source.kind() == io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(libc::ESRCH)
            }
            Self::Parse { .. } => false,
        }
    }
}
