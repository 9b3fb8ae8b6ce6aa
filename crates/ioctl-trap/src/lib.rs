//! A seccomp filter that holds `ioctl(.., BINDER_WRITE_READ)` for a listener, and what the listener
//! does there.
//!
//! No system call gives a descriptor to another process, but for one: whoever listens to a seccomp
//! filter may add one to a thread that is held by it (`SECCOMP_IOCTL_NOTIF_ADDFD`). A launcher
//! [`install`]s the filter in a command before that is executed, and hands the [`Listener`] to the
//! server of the bus. Nothing is decided from a call's arguments: each goes on to the kernel
//! ([`Listener::proceed`]), whatever it is.
//!
//! A filter cannot be taken off. Should its listener vanish, the kernel fails the trapped calls
//! with `ENOSYS`; so the [`Launcher`] keeps a duplicate, and lets all calls go on once the server
//! is gone ([`stand_in`]). The server notes what it has in hand in memory that both see
//! ([`InHand`]), so that no call is held for ever.

mod filter;
mod in_hand;
mod launcher;
mod listener;
mod message;
mod stand_in;

pub use filter::install;
pub use in_hand::{InHand, PLACES};
pub use launcher::Launcher;
pub use listener::{Listener, Trapped};
pub use message::{offer, receive, send};
pub use stand_in::stand_in;
