//! Fuzz targets: functions that accept any bytes and panic on an error.
//!
//! * [`commands`](driver::commands): ioctls of several clients on the driver core, whose invariants
//!   must hold after each;
//! * [`objects`](driver::objects): one call, with any offsets and objects, and its reply;
//! * [`device`](wire::device): ioctls of `binder-control`, names of devices, and messages of the
//!   control socket;
//! * [`requests`](wire::requests): requests read from `/dev/fuse`;
//! * [`state`](state::read): the state of the driver, which `execve` carries over an upgrade;
//! * [`server_state`](server_state::read): the same of a whole daemon, with the server's part;
//! * [`ring`]: both sides of a ring, and hostile changes of its memory;
//! * [`sockets`](sockets::sockets): packets with files on control and lease sockets;
//! * [`streams`](wire::streams): `BC_` and `BR_` streams, parsed and written again.
//!
//! The crate in `libfuzzer/` runs them with coverage; `tests/corpus.rs` runs them on any toolchain
//! over the seeds in `corpus/`, and over mutations of these ([`mutate`]).
#![forbid(unsafe_code)]

pub mod driver;
mod host;
pub mod mutate;
pub mod seeds;
pub mod server_state;
pub mod sockets;
pub mod state;
pub mod wire;

pub use binder_ring::fuzzing::run as ring;

/// A target.
pub type Target = fn(&[u8]);

/// All targets, by name.
pub const TARGETS: [(&str, Target); 9] = [
    ("commands", driver::commands),
    ("objects", driver::objects),
    ("device", wire::device),
    ("requests", wire::requests),
    ("state", state::read),
    ("server_state", server_state::read),
    ("ring", ring),
    ("sockets", sockets::sockets),
    ("streams", wire::streams),
];
