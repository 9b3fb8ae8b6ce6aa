//! The FUSE wire format: numbers, structures, parsing and encoding. No I/O.
//!
//! Only what a binder device needs is here; names and numbers are those of `linux/fuse.h`
//! (protocol 7.31 and later, little endian hosts).
//!
//! * [`opcode`]: request numbers, and the errnos of those that we do not serve;
//! * [`types`]: the structures;
//! * [`request`]: parses bytes from `/dev/fuse` into an [`Operation`];
//! * [`reply`]: encodes replies and notifications.

pub mod opcode;
pub mod reply;
pub mod request;
pub mod types;

pub use request::{Operation, ParseError, Request};
