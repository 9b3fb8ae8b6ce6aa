//! A seccomp filter that traps `ioctl(.., BINDER_WRITE_READ)`, and the operations of its listener
//! on a trapped call.
//!
//! Only one system call installs a descriptor in another process: the listener of a seccomp filter
//! may add one to a thread that is trapped by the filter (`SECCOMP_IOCTL_NOTIF_ADDFD`). A launcher
//! [`install`]s the filter in a child before it executes a command, and passes the [`Listener`] to
//! the server of the bus. The arguments of a call are never inspected: each call proceeds to the
//! kernel ([`Listener::proceed`]).
//!
//! A filter cannot be removed. If its listener is closed, the kernel fails the trapped calls with
//! `ENOSYS`; so the [`Launcher`] keeps a duplicate, and lets all calls proceed once the server has
//! exited ([`stand_in`]). The server records the calls that it holds in memory that it shares with
//! the launcher ([`HeldCalls`]), so that no call is blocked for ever.

mod filter;
mod held_calls;
mod launcher;
mod listener;
mod message;
mod stand_in;

pub use filter::install;
pub use held_calls::{HeldCalls, PLACES};
pub use launcher::Launcher;
pub use listener::{Listener, Trapped};
pub use message::{offer, receive, send};
pub use stand_in::stand_in;
