//! What end-to-end tests and benchmarks need to run a bus of their own and to torture it.
//!
//! * [`Bus`]: a private `headroom-binderd` on a temporary mount, gone without a trace at the end;
//! * [`Peer`]: a client in a process of its own (the program `peer`), to be stopped or killed;
//! * [`malice`]: what a `peer` does that means harm;
//! * [`attacks`]: what an ordinary user can do to the daemon;
//! * [`hung_mapping`]: memory whose filesystem never answers;
//! * [`soak`]: what the clients of the program `soak` do;
//! * [`wait`]: bounded waits and what `/proc` says about a process;
//! * [`random`]: a seeded generator, so that a failing run can be repeated.

pub mod attacks;
pub mod bus;
pub mod hung_mapping;
pub mod malice;
pub mod peer;
pub mod random;
pub mod soak;
pub mod wait;

pub use bus::{Bus, BusError, Mapping};
pub use peer::Peer;
