//! All inputs that Headroom reads.
//!
//! Each module reads one interface of the operating system. Those which are file trees (`/proc`,
//! `/sys`) take their root as a parameter, return structs of `Option<T>` where the kernel may leave
//! a value out, and errors that contain the path. This crate makes no decisions and takes no
//! actions, with one necessary exception: the BPF notifier kills the *armed* victim in the very
//! page fault that exceeds a hard limit, because no other place is as early.

pub mod capability;
pub mod cgroups;
pub mod notifier;
pub mod poller;
pub mod process;
mod sharers;
pub mod watch;

use std::io;
use std::path::{Path, PathBuf};

use headroom_linux::machine_memory::ReadError;
use memory_ledger::AccountId;

pub use capability::Capability;
pub use notifier::{
    Notifier, account_of_key, enforces_without_daemon, key_of_account, remove_left_pins,
};
pub use poller::ProcPoller;
pub use watch::{
    Backend, Charge, Charged, Correction, Event, Inherited, Killed, KilledBy, Parent, Precision,
    ProcessSample, Reconciled, SlotLimit, SpaceState, UnarmedKills, UnlistedSpace, Usage, Watch,
};

/// A watch, and the reason if it is not the preferred one.
pub struct Chosen {
    /// The watch that was chosen.
    pub watch: Box<dyn Watch>,
    /// Why the BPF notifier could not be used, or why its accounts end with the daemon, as text for
    /// an operator; `None` without a problem. To be logged once, at start.
    pub degraded: Option<String>,
}

/// The BPF notifier, with accounts pinned under `pins` if requested and possible.
pub fn choose_notifier(pins: Option<&Path>) -> Result<Chosen, NotifierError> {
    let Some(root) = pins else {
        return Ok(Chosen { watch: Box::new(Notifier::load()?), degraded: None });
    };
    match Notifier::load_pinned(root) {
        Ok(notifier) => Ok(Chosen { watch: Box::new(notifier), degraded: None }),
        Err(error @ NotifierError::Pins { .. }) => Ok(Chosen {
            watch: Box::new(Notifier::load()?),
            degraded: Some(format!("no limit holds while a killed daemon is replaced: {error}")),
        }),
        Err(error) => Err(error),
    }
}

/// The BPF notifier (see [`choose_notifier`]), or else the poller. Fails only if neither works.
pub fn choose_source(pins: Option<&Path>) -> Result<Chosen, NotifierError> {
    match choose_notifier(pins) {
        Ok(chosen) => Ok(chosen),
        Err(error) => Ok(Chosen {
            watch: Box::new(ProcPoller::new()?),
            degraded: Some(format!(
                "{error}; watching by reading /proc on a timer instead, which acts later"
            )),
        }),
    }
}

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
        path: PathBuf,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_comes_with_a_reason_and_the_notifier_without() {
        let chosen = choose_source(None).unwrap();
        match chosen.watch.backend() {
            Backend::Bpf => assert_eq!(chosen.degraded, None),
            Backend::ProcPolling => {
                test_support::skip(format_args!(
                    "{}",
                    chosen.degraded.as_deref().unwrap_or_default()
                ));
                assert!(chosen.degraded.is_some());
            }
        }
    }
}
