//! All inputs that Headroom reads.
//!
//! Each module reads one interface of the operating system. Those which are file trees (`/proc`,
//! `/sys`) take their root as a parameter, return structs of `Option<T>` where the kernel may leave
//! a value out, and errors that contain the path. This crate makes no decisions and takes no
//! actions, with one necessary exception: the BPF notifier kills the *armed* victim in the very
//! page fault that exceeds a hard limit, because no other place is as early.

pub mod capability;
pub mod cgroups;
pub mod choice;
pub mod error;
mod kcmp;
pub mod notifier;
pub mod poller;
pub mod process;
mod sharers;
pub mod watch;

pub use capability::{Capability, Probe};
pub use choice::{Chosen, choose_source};
pub use error::NotifierError;
pub use notifier::{
    Notifier, account_of_key, enforces_without_daemon, key_of_account, remove_left_pins,
};
pub use poller::ProcPoller;
pub use watch::{
    Backend, Charge, Charged, Correction, Event, Inherited, Killed, KilledBy, Precision,
    ProcessSample, Reconciled, SlotLimit, SpaceState, UnarmedKills, UnlistedSpace, Usage, Watch,
};
