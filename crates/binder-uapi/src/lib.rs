//! The binder wire protocol: ioctl numbers, structures, and `BC_`/`BR_` command streams.
//!
//! This crate is plain data in the 64-bit protocol (version 8), for little endian hosts, with the
//! names of the UAPI. Nothing does I/O. The numbers are checked against the distribution's own
//! `linux/android/binder.h` by `tests/header.rs`.
//!
//! * [`ioctl`]: the ioctl numbers of a device and of `binder-control`;
//! * [`types`]: the structures that cross the boundary, as zerocopy types;
//! * [`command`]: `BC_` commands, client to driver: [`Command`], parser and writer;
//! * [`returns`]: `BR_` returns, driver to client: [`Return`], parser and writer.
#![forbid(unsafe_code)]

pub mod command;
pub mod ioctl;
pub mod returns;
pub mod types;

pub use command::{Command, CommandReader, StreamError};
pub use returns::{Return, ReturnReader};
pub use types::*;

/// The protocol version that `BINDER_VERSION` returns: 64-bit structures.
pub const CURRENT_PROTOCOL_VERSION: i32 = 8;
