//! A raw client of the binder UAPI, for tests and benchmarks.
//!
//! The crate implements the wire protocol only: no AIDL, no parcels of any language, no object
//! model. It does not depend on the implementation of the driver, so the same test runs on any
//! device: it needs only a path.
//!
//! * [`Client`]: one open of a device with its mapping, and the ioctls; shared by threads;
//! * [`Session`]: one thread's state: commands out, returns in, calls, replies, serving;
//! * [`Parcel`] and [`Payload`]: data to send; [`Received`]: received data, read in place;
//! * [`registry`]: a context manager that registers and looks up objects by name, and its client;
//! * [`binderfs`]: adding devices.
//!
//! ```no_run
//! # use binder_client::{Client, Options, Payload, Session};
//! # fn main() -> Result<(), binder_client::ClientError> {
//! let client = Client::open("/dev/binderfs/binder", &Options::default())?;
//! let mut session = Session::new(&client);
//! let reply = session.call(0, 1, Payload::bytes(b"ping"))?;
//! assert_eq!(reply.data()?, b"ping");
//! session.free(reply);
//! session.flush()
//! # }
//! ```

mod client;
mod parcel;
pub mod registry;
mod session;

pub use client::{Client, ClientError, LIBBINDER_MAP_LEN, Options, Sharing};
pub use parcel::{Parcel, Parent, Payload, Received};
pub use rustix::event::PollFlags;
pub use rustix::io::Errno;
pub use session::{Answer, Call, Echo, OnSignal, RefuseAll, Served, Service, Session};

/// Adding devices to a binderfs.
pub mod binderfs {
    pub use crate::client::add_device;
}
