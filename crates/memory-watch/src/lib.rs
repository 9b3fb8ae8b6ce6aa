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

pub use capability::{Capability, Probe};
pub use choice::{Chosen, choose};
pub use error::NotifierError;
pub use notifier::{Notifier, account_of_key, key_of_account, remove_left_pins};
pub use poller::ProcPoller;
pub use watch::{
    Backend, Charge, Charged, Correction, Event, Inherited, Killed, KilledBy, Precision,
    ProcessSample, Reconciled, SlotLimit, UnarmedKills, Usage, Watch,
};
