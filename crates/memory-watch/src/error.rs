//! What can go wrong while reading, each error naming the thing it is about.

use std::io;

use machine_memory::ReadError;
use memory_ledger::AccountId;

/// The notifier could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum NotifierError {
    /// The kernel lacks something the notifier cannot do without.
    #[error("this kernel or container does not allow the BPF notifier: {0}")]
    Unsupported(String),
    /// A BPF operation failed.
    #[error("BPF: cannot {doing}: {source}")]
    Bpf {
        /// The operation, naming its map or program.
        doing: String,
        /// What libbpf or the kernel said.
        source: libbpf_rs::Error,
    },
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    Os {
        /// The operation.
        doing: String,
        /// Why.
        source: io::Error,
    },
    /// The soft limit is above the hard one, or the hard one is zero.
    #[error(
        "{account}: soft limit of {soft_pages} pages must be at most the hard limit of \
         {hard_pages} pages, and the hard limit at least 1"
    )]
    BadLimit {
        /// Whose.
        account: AccountId,
        /// The soft limit asked for.
        soft_pages: u64,
        /// The hard limit asked for.
        hard_pages: u64,
    },
    /// More users than there are slots for.
    #[error(
        "{account}: {slots} users have limits already, and there is room for no more; clear one \
         first"
    )]
    TooManyLimits {
        /// The account that found no room.
        account: AccountId,
        /// How many users can be limited at a time.
        slots: usize,
    },
    /// The user has no limit, so there is nothing to arm or release.
    #[error("{0} has no limit set")]
    NoSuchLimit(AccountId),
    /// The folder in which accounts are to outlive the daemon cannot be used.
    #[error("{}: {why}", .path.display())]
    Pins {
        /// The folder.
        path: std::path::PathBuf,
        /// Why.
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
