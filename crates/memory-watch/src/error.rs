//! Errors of reading, each with the object that it is about.

use std::io;

use machine_memory::ReadError;
use memory_ledger::AccountId;

/// An operation of the watch failed.
#[derive(Debug, thiserror::Error)]
pub enum NotifierError {
    /// The kernel lacks a feature that the notifier requires.
    #[error("this kernel or container does not allow the BPF notifier: {0}")]
    Unsupported(String),
    /// A BPF operation failed.
    #[error("BPF: cannot {doing}: {source}")]
    Bpf {
        /// The operation, with the name of its map or program.
        doing: String,
        /// The error of libbpf or the kernel.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    Os {
        /// The operation that failed.
        doing: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The soft limit is above the hard one, or the hard one is zero.
    #[error(
        "{account}: soft limit of {soft_pages} pages must be at most the hard limit of \
         {hard_pages} pages, and the hard limit at least 1"
    )]
    BadLimit {
        /// The account that the limit is for.
        account: AccountId,
        /// The requested soft limit.
        soft_pages: u64,
        /// The requested hard limit.
        hard_pages: u64,
    },
    /// There are more users than slots.
    #[error(
        "{account}: {slots} users have limits already, and there is room for no more; clear one \
         first"
    )]
    TooManyLimits {
        /// The account that got no slot.
        account: AccountId,
        /// Maximum number of users with a limit.
        slots: u32,
    },
    /// The user has no limit, so there is no slot to arm or release.
    #[error("{0} has no limit set")]
    NoSuchLimit(AccountId),
    /// The folder for the pins that outlive the daemon cannot be used.
    #[error("{}: {why}", .path.display())]
    Pins {
        /// The folder of the pins.
        path: std::path::PathBuf,
        /// The reason.
        why: String,
    },
    /// A file of `/proc` could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl NotifierError {
    pub(crate) fn bpf(doing: impl Into<String>, source: libbpf_rs::Error) -> Self {
        Self::Bpf { doing: doing.into(), source }
    }

    pub(crate) fn os(doing: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Os { doing: doing.into(), source: source.into() }
    }
}
