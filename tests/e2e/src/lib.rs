//! Private buses for end-to-end tests and benchmarks, and clients that attack them.
//!
//! * [`Bus`]: a private `headroom-binderd` on a temporary mount, removed completely at the end;
//! * [`Peer`]: a client in a separate process (the program `peer`), to be stopped or killed;
//! * [`malice`]: malicious and faulty actions of a `peer`;
//! * [`attacks`]: attacks of an ordinary user on the daemon;
//! * [`attacker`]: processes that run these, and a list of attacks;
//! * [`late_clients`]: an attack by clients in many uids of one user;
//! * [`hung_mapping`]: memory whose filesystem never answers;
//! * [`ring_client`]: clients that use their rings by themselves;
//! * [`soak`]: the clients of the program `soak`;
//! * [`upgrades`]: upgrades of a daemon in a loop;
//! * [`wait`]: bounded waits, and the state of a process in `/proc`;
//! * [`random`]: a seeded generator, so that a failing run can be repeated.

pub mod attacker;
pub mod attacks;
pub mod bus;
pub mod hung_mapping;
pub mod late_clients;
pub mod malice;
pub mod peer;
pub mod random;
pub mod ring_client;
pub mod sandbox;
pub mod soak;
pub mod upgrades;
pub mod wait;

pub use bus::{Bus, BusError, FAILING_UPGRADE, Mapping};
pub use peer::Peer;
