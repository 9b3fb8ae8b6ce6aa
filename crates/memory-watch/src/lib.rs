//! Everything Headroom reads.
//!
//! Each module reads one interface of the operating system. Those which are file trees (`/proc`,
//! `/sys`) take their root as a parameter, return structs of `Option<T>` where the kernel may leave
//! something out, and errors that carry the path. Nothing here decides or acts, with one exception
//! that has to be here: the BPF notifier kills the *armed* victim in the very page fault that
//! breaks a hard limit, because nothing else is as early.

mod address_space;
pub mod capability;
pub mod cgroups;
pub mod choice;
pub mod error;
pub mod notifier;
pub mod poller;
pub mod process;
pub mod watch;

pub use capability::Capability;
pub use capability::Probe;
pub use choice::Chosen;
pub use choice::choose;
pub use error::NotifierError;
pub use notifier::Notifier;
pub use notifier::account_of_key;
pub use notifier::key_of_account;
pub use notifier::remove_left_pins;
pub use poller::ProcPoller;
pub use watch::Backend;
pub use watch::Charge;
pub use watch::Charged;
pub use watch::Correction;
pub use watch::Event;
pub use watch::Inherited;
pub use watch::Killed;
pub use watch::KilledBy;
pub use watch::Precision;
pub use watch::ProcessSample;
pub use watch::Reconciled;
pub use watch::SlotLimit;
pub use watch::UnarmedKills;
pub use watch::Usage;
pub use watch::Watch;
