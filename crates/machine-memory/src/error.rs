//! A file that cannot be used, by its name.

use std::io;
use std::path::{Path, PathBuf};

/// A file of `/proc` (or a fake tree in its place) could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file was read but does not have the form it should have.
    #[error("{}: cannot parse {what}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The field or line that is missing or malformed.
        what: String,
    },
}

impl ReadError {
    /// It cannot be opened or read.
    pub fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// It lacks something, or has it in another form.
    pub fn parse(path: &Path, what: impl Into<String>) -> Self {
        Self::Parse { path: path.to_owned(), what: what.into() }
    }

    /// Whether the process the file belonged to is gone (`ENOENT` or `ESRCH`).
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
